"""Responses that are asked for again, or gone on from, by OpenAI's own client and as bytes."""

import asyncio

import openai
import pytest

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.core.llm_messages import Chunk, Tokenized
from mindspore_serving.frontends.keys import ApiKey
from mindspore_serving.frontends.response_store import ResponseStore, to_stored
from mindspore_serving.frontends.state.store import StateStore
from tests.frontends.openai.serving import serving, spoken, token
from tests.waiting import PATIENCE


@pytest.fixture
def client(web):
    with openai.OpenAI(base_url=web.url, api_key="none", max_retries=0, timeout=PATIENCE) as one:
        yield one


def said(web):
    return [(message["role"], message["content"]) for message in web.sent.messages]


def test_a_response_is_stored_found_and_deleted(client):
    made = client.responses.create(model="toy", input="hello", metadata={"a": "b"})
    found = client.responses.retrieve(made.id)
    assert found.to_dict() == made.to_dict()
    assert found.store
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError, match="no longer stored"):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(made.id)


def test_a_streamed_response_is_stored_once_complete(client):
    *_, last = client.responses.create(model="toy", input="hello", stream=True)
    assert client.responses.retrieve(last.response.id).output_text == "Hi!"


def test_a_response_is_not_stored_against_the_clients_will(client):
    made = client.responses.create(model="toy", input="hello", store=False)
    assert not made.store
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_response_that_failed_is_not_stored(web, client):
    web.says(Chunk(0, "", (), None, "error", "out of memory"))
    *_, last = client.responses.create(model="toy", input="hello", stream=True)
    assert last.type == "response.failed"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(last.response.id)


def test_a_conversation_goes_on_from_a_response(web, client):
    web.says(*spoken("One."))
    first = client.responses.create(model="toy", input="1?", instructions="Be brief.")
    web.says(*spoken("Two."))
    asked = [{"role": "user", "content": [{"type": "input_text", "text": "2?"}]}]
    second = client.responses.create(model="toy", input=asked, previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert said(web) == [("user", "1?"), ("assistant", "One."), ("user", "2?")]
    client.responses.create(model="toy", input="3?", previous_response_id=second.id)
    assert said(web)[2:] == [("user", "2?"), ("assistant", "Two."), ("user", "3?")]
    client.responses.create(model="toy", input="4?", previous_response_id=first.id)
    assert said(web) == [("user", "1?"), ("assistant", "One."), ("user", "4?")]
    web.inference.script = lambda request: [Tokenized("abc", (token("a"),) * 3, ((0, 1),) * 3)]
    client.responses.input_tokens.count(model="toy", input="5?", previous_response_id=first.id)
    assert said(web) == [("user", "1?"), ("assistant", "One."), ("user", "5?")]


def test_a_response_continues_though_its_beginning_was_deleted(web, client):
    first = client.responses.create(model="toy", input="1?")
    second = client.responses.create(model="toy", input="2?", previous_response_id=first.id)
    client.responses.delete(first.id)
    client.responses.create(model="toy", input="3?", previous_response_id=second.id)
    assert [text for role, text in said(web) if role == "user"] == ["1?", "2?", "3?"]


def test_to_go_on_from_an_unknown_response_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="does not exist") as caught:
        client.responses.create(model="toy", input="x", previous_response_id="resp_1")
    assert caught.value.code == "previous_response_not_found"
    assert caught.value.param == "previous_response_id"


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
def test_a_conversation_may_hold_no_more_than_a_body(web, path):
    """Items that become no message fill it, and would be read again with each small request."""
    given = [{"role": "user", "content": "1?"}, *[{"type": "reasoning"}] * 9000]
    first = web.call("POST", "/v1/responses", {"model": "toy", "input": given}).json["id"]
    body = {"model": "toy", "input": given, "previous_response_id": first}
    second = web.call("POST", "/v1/responses", body).json["id"]
    body = {"model": "toy", "input": "2?", "previous_response_id": second}
    answer = web.call("POST", path, body)
    assert (answer.status, answer.error["param"]) == (400, "previous_response_id")
    assert answer.error["message"] == (
        "previous_response_id: its conversation has over 16384 objects, expected at most 16384: "
        "start a new one"
    )


def test_input_items_of_a_response_are_listed(client):
    first = client.responses.create(model="toy", input="1?")
    asked = [{"role": "user", "content": "2?"}, {"role": "user", "content": "3?", "id": "mine"}]
    second = client.responses.create(model="toy", input=asked, previous_response_id=first.id)
    found = client.responses.input_items.list(second.id, order="asc", limit=3)
    assert [item.content[0].text for item in found.data] == ["1?", "Hi!", "2?"]
    assert found.has_more
    assert [item.id for item in found][3] == "mine"  # on the next page
    newest = client.responses.input_items.list(second.id, limit=1).data
    assert [item.id for item in newest] == ["mine"]
    again = client.responses.input_items.list(second.id, order="asc", limit=3)
    assert [item.id for item in again.data] == [item.id for item in found.data]


def test_items_have_a_type_and_an_id_whatever_they_came_with(web):
    given = [{"type": None, "role": "user", "content": "x", "id": 5}]
    name = web.call("POST", "/v1/responses", {"model": "toy", "input": given}).json["id"]
    (item,) = web.call("GET", f"/v1/responses/{name}/input_items").json["data"]
    assert (item["type"], item["content"][0]["text"]) == ("message", "x")
    assert item["id"].startswith("item_0_")


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (f"/input_items?limit={'9' * 5000}", "limit is"),
        ("/input_items?limit=101", 'limit is "101", expected 1 to 100'),
        ("/input_items?order=up", 'order is "up", expected asc or desc'),
        ("/input_items?after=x", 'after is "x", expected the id of an item'),
        ("?stream=true", "stream is true, expected false"),
    ],
)
def test_a_wrong_question_about_a_response_is_refused(query, text, web):
    name = web.call("POST", "/v1/responses", {"model": "toy", "input": "x"}).json["id"]
    answer = web.call("GET", f"/v1/responses/{name}{query}")
    assert (answer.status, text in answer.error["message"]) == (400, True)


def test_only_background_responses_can_be_cancelled(client):
    made = client.responses.create(model="toy", input="hello")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_1")


def test_a_key_does_not_see_responses_of_another():
    keys = ["first-of-all-keys", "second-of-all-keys"]
    with serving(keys=[ApiKey(key) for key in keys]) as web:
        ours, others = (openai.OpenAI(base_url=web.url, api_key=key, max_retries=0) for key in keys)
        with ours, others:
            made = ours.responses.create(model="toy", input="hello")
            for ask in (
                lambda: others.responses.retrieve(made.id),
                lambda: others.responses.delete(made.id),
                lambda: others.responses.input_items.list(made.id),
            ):
                with pytest.raises(openai.NotFoundError):
                    ask()
            with pytest.raises(openai.BadRequestError):
                others.responses.create(model="toy", input="x", previous_response_id=made.id)
            assert ours.responses.retrieve(made.id).id == made.id


def _stored(text="x"):
    output = [{"text": text}]
    return to_stored({"id": "x", "output": output}, output, [b'"a"'])


def _kept(limits, *added):
    """The names of what remains of (owner, name, response), added in turn."""

    async def add():
        responses = ResponseStore(StateStore())
        for owner, name, response in added:
            responses.add(owner, name, response, limits)
        return [name for owner, name, _ in added if await responses.find(owner, name)]

    return asyncio.run(add())


def test_the_oldest_of_an_owner_are_forgotten():
    added = [("you", "0", _stored()), *(("me", name, _stored()) for name in "123")]
    assert _kept(LanguageLimits(max_stored=2), *added) == ["0", "2", "3"]


def test_stored_responses_have_a_limit_of_bytes_together():
    small = _stored()
    size = len(small.body) + sum(map(len, small.conversation))
    limits = LanguageLimits(max_stored_bytes=2 * size)
    added = [("me", name, small) for name in "123"]
    assert _kept(limits, *added) == ["2", "3"]
    assert _kept(limits, *added, ("me", "4", _stored("x" * 10_000))) == []  # too large by itself


def test_responses_survive_the_server(tmp_path):
    with serving(directory=str(tmp_path)) as web, _client_of(web) as client:
        made = client.responses.create(model="toy", input="hello")
    with serving(directory=str(tmp_path)) as web, _client_of(web) as client:
        assert client.responses.retrieve(made.id) == made
        client.responses.create(model="toy", input="more", previous_response_id=made.id)
        assert said(web) == [("user", "hello"), ("assistant", "Hi!"), ("user", "more")]


def _client_of(web):
    return openai.OpenAI(base_url=web.url, api_key="none", max_retries=0, timeout=PATIENCE)
