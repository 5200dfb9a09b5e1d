"""Responses that run in the background, by OpenAI's own client."""

import openai
import pytest

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.core.llm_messages import Chunk, Finished, Started
from mindspore_serving.errors import WorkerUnavailable
from mindspore_serving.frontends.response_store import ResponseStore, to_stored
from tests.frontends.openai.serving import serving, spoken
from tests.waiting import PATIENCE, eventually


def client_of(web):
    return openai.OpenAI(base_url=web.url, api_key="none", max_retries=0, timeout=PATIENCE)


@pytest.fixture
def client(web):
    with client_of(web) as one:
        yield one


def create(client, **fields):
    return client.responses.create(model="toy", input="hello", background=True, **fields)


def end(client, name):
    def ended():
        found = client.responses.retrieve(name)
        return found.status not in ("queued", "in_progress") and found

    return eventually(ended)


def hold(web):
    """The model says "Hi", and nothing more until `go_on`."""

    def received(call):
        call.parse(web.control.card)
        call.say([Started(3, 7), Chunk(0, "Hi", (72,))], is_last=False)

    web.inference.received = received


def go_on(web):
    web.inference.calls[-1].say([*spoken("!"), Finished(3, 1, 2)])


def test_a_background_response_goes_on_after_its_request(web, client):
    hold(web)
    made = create(client)
    assert (made.status, made.background) == ("in_progress", True)
    assert client.responses.retrieve(made.id).status == "in_progress"
    go_on(web)
    done = end(client, made.id)
    assert (done.status, done.output_text, done.background) == ("completed", "Hi!", True)
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_stream_is_resumed_behind_the_last_event_of_the_client(web, client):
    events = [*create(client, stream=True)]
    name = events[0].response.id
    assert [each.sequence_number for each in events] == [*range(len(events))]
    for after in (0, 3, len(events) - 1):
        rest = [*client.responses.retrieve(name, stream=True, starting_after=after)]
        assert rest == events[after + 1 :]
    with pytest.raises(openai.BadRequestError, match="starting_after"):
        client.responses.retrieve(name, stream=True, extra_query={"starting_after": "x"})


def test_a_running_response_is_streamed_from_its_beginning(web, client):
    hold(web)
    made = create(client)
    stream = client.responses.retrieve(made.id, stream=True, starting_after=1)
    assert next(iter(stream)).sequence_number == 2
    go_on(web)
    assert [*stream][-1].type == "response.completed"


def test_a_cancelled_response_frees_the_model(web, client):
    hold(web)
    made = create(client)
    assert client.responses.cancel(made.id).status == "cancelled"
    web.inference.wait(lambda: web.inference.num_cancelled == 1)
    assert client.responses.retrieve(made.id).status == "cancelled"
    assert client.responses.cancel(made.id).status == "cancelled"


def test_a_cancelled_response_keeps_its_partial_text(web, client):
    hold(web)
    made = create(client)
    events = iter(client.responses.retrieve(made.id, stream=True))
    while next(events).type != "response.output_text.delta":
        pass
    done = client.responses.cancel(made.id)
    (message,) = done.output
    assert (done.output_text, message.status) == ("Hi", "incomplete")
    assert client.responses.retrieve(made.id).output_text == "Hi"
    del web.inference.received  # the model answers at once
    client.responses.create(model="toy", input="more", previous_response_id=made.id)
    assert [each["content"] for each in web.sent.messages] == ["hello", "Hi", "more"]


def test_a_response_cancelled_before_its_first_token_is_empty(web, client):
    web.inference.received = lambda call: (
        call.parse(web.control.card),
        call.say([Started(3, 7)], is_last=False),
    )
    made = create(client)
    assert client.responses.cancel(made.id).output == []


def test_a_background_response_has_to_be_stored(client):
    with pytest.raises(openai.BadRequestError, match="expected store: true"):
        create(client, store=False)


def test_background_responses_survive_the_server_with_their_events(tmp_path):
    with serving(directory=str(tmp_path)) as web, client_of(web) as client:
        made = create(client)
        end(client, made.id)
    with serving(directory=str(tmp_path)) as web, client_of(web) as client:
        events = [*client.responses.retrieve(made.id, stream=True)]
        assert events[-1].response.output_text == "Hi!"


def test_a_response_that_a_server_did_not_end_is_failed(web, client):
    made = client.responses.create(model="toy", input="hello")
    body = made.to_dict() | {"status": "in_progress"}
    responses = ResponseStore(web.store)

    async def restart():
        stored = to_stored(body, body["output"], ())
        responses.add("", made.id, stored, LanguageLimits(), is_open=True)
        responses.fail_interrupted()

    web.run(restart())
    found = client.responses.retrieve(made.id)
    assert (found.status, found.error.code) == ("failed", "server_error")


def test_a_failed_background_response_says_why(web, client):
    hold(web)
    made = create(client)
    web.inference.calls[-1].say(WorkerUnavailable("the worker was lost"))
    failed = end(client, made.id)
    assert (failed.error.message, failed.output_text) == ("the worker was lost", "Hi")
