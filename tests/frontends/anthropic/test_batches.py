"""Batches of messages by Anthropic's own client."""

import anthropic
import pytest

from tests.frontends.anthropic.conftest import mount
from tests.frontends.openai.serving import serving, spoken, whole
from tests.waiting import PATIENCE, eventually


@pytest.fixture
def stored(tmp_path):
    with serving(mount, directory=str(tmp_path)) as running:
        yield running


@pytest.fixture
def batches(stored):
    base = stored.url.removesuffix("/v1")
    with anthropic.Anthropic(
        base_url=base, api_key="none", max_retries=0, timeout=PATIENCE
    ) as client:
        yield client.messages.batches


def request(name, text="Hello", **fields):
    messages = [{"role": "user", "content": text}]
    params = {"model": "toy", "max_tokens": 4, "messages": messages}
    return {"custom_id": name, "params": {**params, **fields}}


def end(batches, name):
    def ended():
        found = batches.retrieve(name)
        return found.processing_status == "ended" and found

    return eventually(ended)


def results(batches, name):
    return {each.custom_id: each.result for each in batches.results(name)}


def test_a_batch_of_messages_answers_each_request(stored, batches):
    stored.inference.script = lambda request: whole(*spoken(request.messages[-1]["content"][:1]))
    made = batches.create(
        requests=[
            request("a", "x"),
            request("b", "y"),
            request("stream", stream=True),
            request("model", model="nobody"),
        ]
    )
    assert made.processing_status == "in_progress"
    done = end(batches, made.id)
    counts = done.request_counts
    assert (counts.succeeded, counts.errored, counts.processing) == (2, 2, 0)
    found = results(batches, made.id)
    assert [found[name].message.content[0].text for name in "ab"] == ["x", "y"]
    assert found["model"].error.error.type == "not_found_error"
    assert "not streamed" in found["stream"].error.error.message
    assert [each.id for each in batches.list()] == [made.id]
    assert batches.delete(made.id).id == made.id
    with pytest.raises(anthropic.NotFoundError, match="there is no batch"):
        batches.retrieve(made.id)


def test_the_rest_of_a_cancelled_batch_of_messages_is_canceled(stored, batches):
    stored.inference.script = lambda request: None
    made = batches.create(requests=[request("a"), request("b")])
    early = stored.call("GET", f"/v1/messages/batches/{made.id}/results")
    assert (early.status, "has not ended" in early.json["error"]["message"]) == (400, True)
    assert batches.cancel(made.id).processing_status in ("canceling", "ended")
    assert end(batches, made.id).request_counts.canceled == 2
    assert {result.type for result in results(batches, made.id).values()} == {"canceled"}


@pytest.mark.parametrize(
    ("requests", "text"), [([], "is empty"), ([request("a"), request("a")], "is repeated")]
)
def test_a_wrong_batch_of_messages_is_refused(batches, requests, text):
    with pytest.raises(anthropic.BadRequestError, match=text):
        batches.create(requests=requests)
