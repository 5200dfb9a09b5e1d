"""Conversations by OpenAI's own client: their items, and responses that read and add to them."""

import time

import openai
import pytest

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.core.llm_messages import Chunk, Finished, Started, Tokenized
from mindspore_serving.frontends.keys import ApiKey
from tests.frontends.openai.serving import serving, spoken, token
from tests.waiting import PATIENCE, eventually


def client_of(web, key="none"):
    return openai.OpenAI(base_url=web.url, api_key=key, max_retries=0, timeout=PATIENCE)


@pytest.fixture(scope="module")
def running():
    with serving() as web:
        yield web


@pytest.fixture
def web(running):
    yield running
    vars(running.inference).pop("received", None)
    running.says(*spoken("Hi", "!"))


@pytest.fixture
def client(web):
    with client_of(web) as one:
        yield one


def user(text, **fields):
    return {"role": "user", "content": text, **fields}


def respond(client, text, name, **fields):
    return client.responses.create(model="toy", input=text, conversation=name, **fields)


def texts(client, name):
    listed = client.conversations.items.list(name, order="asc")
    return [(item.role, item.content[0].text) for item in listed]


def hold(web):
    """The model says "Hi", and nothing more until `go_on`."""

    def received(call):
        call.parse(web.control.card)
        call.say([Started(3, 7), Chunk(0, "Hi", (72,))], is_last=False)

    web.inference.received = received


def go_on(web):
    web.inference.calls[-1].say([*spoken("!"), Finished(3, 1, 2)])


def test_a_conversation_is_created_changed_and_deleted(client):
    made = client.conversations.create(items=[user("1?")], metadata={"a": "b"})
    assert (made.object, made.metadata, made.id[:5]) == ("conversation", {"a": "b"}, "conv_")
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"c": "d"})
    assert (changed.metadata, changed.created_at) == ({"c": "d"}, made.created_at)
    assert client.conversations.retrieve(made.id) == changed
    gone = client.conversations.delete(made.id)
    assert (gone.id, gone.object, gone.deleted) == (made.id, "conversation.deleted", True)
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)
    assert client.conversations.create().metadata == {}


def test_items_of_a_conversation_are_added_listed_and_deleted(client):
    name = client.conversations.create(items=[user("1?", id="mine")]).id
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "5"}
    added = client.conversations.items.create(name, items=[user("2?", id="mine"), call, result])
    assert [item.type for item in added.data] == [
        "message", "function_call", "function_call_output",
    ]  # fmt: skip
    names = [item.id for item in client.conversations.items.list(name, limit=3, order="asc")]
    assert names == ["mine", *(item.id for item in added.data)]
    assert [text.split("_")[0] for text in names] == ["mine", "msg", "fc", "item"]
    newest = client.conversations.items.list(name, limit=1)
    assert (newest.data[0].id, newest.has_more, newest.first_id) == (names[3], True, names[3])
    assert client.conversations.items.retrieve(names[0], conversation_id=name).content[0].text == (
        "1?"
    )
    assert client.conversations.items.delete(names[1], conversation_id=name).id == name
    assert [item.id for item in client.conversations.items.list(name)] == [names[3], *names[2::-2]]
    with pytest.raises(openai.NotFoundError, match="no item 'mine2'"):
        client.conversations.items.delete("mine2", conversation_id=name)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_response_reads_its_conversation_and_adds_its_items(web, client, is_stream):
    name = client.conversations.create(items=[user("1?")]).id
    web.says(*spoken("Two."))
    made = respond(client, "2?", name, stream=is_stream)
    made = [*made][-1].response if is_stream else made
    assert made.conversation.id == name
    assert client.responses.retrieve(made.id).conversation.id == name
    assert [each["content"] for each in web.sent.messages] == ["1?", "2?"]
    web.says(*spoken("Three."))
    respond(client, "3?", {"id": name}, store=False, instructions="Be brief.")
    assert [each["content"] for each in web.sent.messages] == [
        "Be brief.",
        "1?",
        "2?",
        "Two.",
        "3?",
    ]
    turns = [("user", "2?"), ("assistant", "Two."), ("user", "3?"), ("assistant", "Three.")]
    assert texts(client, name) == [("user", "1?"), *turns]
    listed = client.conversations.items.list(name, order="asc").data
    assert listed[2].id == made.output[0].id
    web.inference.script = lambda request: [Tokenized("abc", (token("a"),) * 3, ((0, 1),) * 3)]
    client.responses.input_tokens.count(model="toy", input="4?", conversation=name)
    assert len(web.sent.messages) == 6


def test_a_failed_or_cut_response_and_its_conversation(web, client):
    name = client.conversations.create().id
    web.says(Chunk(0, "", (), None, "error", "out of memory"))
    with pytest.raises(openai.APIStatusError):
        respond(client, "1?", name)
    assert texts(client, name) == []
    web.says(*spoken("Hal", reason="length"))
    assert respond(client, "2?", name).status == "incomplete"
    assert texts(client, name) == [("user", "2?"), ("assistant", "Hal")]


def test_a_conversation_has_a_single_response_at_a_time(web, client):
    name = client.conversations.create().id
    hold(web)
    made = respond(client, "1?", name, background=True)
    for change in (
        lambda: respond(client, "2?", name),
        lambda: client.conversations.items.create(name, items=[user("2?")]),
        lambda: client.conversations.items.delete("x", conversation_id=name),
    ):
        with pytest.raises(openai.ConflictError, match="wait for its end") as caught:
            change()
        assert caught.value.code == "conversation_locked"
    go_on(web)
    eventually(lambda: client.responses.retrieve(made.id).status == "completed")
    del web.inference.received
    respond(client, "2?", name)
    assert [each["content"] for each in web.sent.messages] == ["1?", "Hi!", "2?"]


def test_a_cancelled_response_adds_nothing_to_its_conversation(web, client):
    name = client.conversations.create(items=[user("1?")]).id
    hold(web)
    made = respond(client, "2?", name, background=True)
    client.responses.cancel(made.id)
    assert texts(client, name) == [("user", "1?")]
    client.conversations.items.create(name, items=[user("3?")])


def test_a_reference_to_an_item_of_the_conversation_is_not_stored(web, client):
    name = client.conversations.create(items=[user("1?", id="first")]).id
    reference = {"type": "item_reference", "id": "first"}
    respond(client, [reference, user("2?")], name)
    assert [each["content"] for each in web.sent.messages] == ["1?", "2?"]
    assert len(texts(client, name)) == 3


def test_an_unknown_conversation_is_404(client):
    for ask in (
        lambda: client.conversations.retrieve("conv_1"),
        lambda: client.conversations.update("conv_1", metadata={}),
        lambda: client.conversations.delete("conv_1"),
        lambda: client.conversations.items.list("conv_1"),
        lambda: client.conversations.items.create("conv_1", items=[user("x")]),
        lambda: client.conversations.items.retrieve("msg_1", conversation_id="conv_1"),
        lambda: respond(client, "x", "conv_1"),
        lambda: respond(client, "x", "conv_1", background=True),
    ):
        with pytest.raises(openai.NotFoundError, match="no conversation 'conv_1'") as caught:
            ask()
        assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "body", "param", "text"),
    [
        ("", {"items": [{"role": "robot", "content": "x"}]}, "items[0].role", "one of user"),
        ("", {"items": [{"type": "item_reference", "id": "x"}]}, "items[0].id", "the item itself"),
        ("", {"items": [5]}, "items[0]", "object"),
        ("", {"metadata": {"a": "x" * 513}}, "metadata", "too large"),
        ("", {"metadata": {"a": 5}}, "metadata", "string"),
        ("/NAME", {}, "metadata", "missing"),
        ("/NAME/items", {"items": []}, "items", "at least one"),
    ],
)
def test_a_wrong_request_about_conversations_is_refused(web, path, body, param, text):
    name = web.call("POST", "/v1/conversations", {}).json["id"]
    answer = web.call("POST", f"/v1/conversations{path.replace('NAME', name)}", body)
    assert (answer.status, text in answer.error["message"]) == (400, True), answer.body
    assert (answer.error["param"] or "").startswith(param)


def test_a_conversation_and_a_previous_response_exclude_each_other(client):
    first = client.responses.create(model="toy", input="x")
    name = client.conversations.create().id
    with pytest.raises(openai.BadRequestError, match="one of the two"):
        respond(client, "x", name, previous_response_id=first.id)


def test_bytes_that_are_no_utf8_are_refused_before_they_are_stored(web, client):
    """The model does not read the field, but who lists the items does."""
    name = client.conversations.create().id
    item = b'{"role": "user", "content": "x", "extra": "\xff"}'
    answer = web.call("POST", f"/v1/conversations/{name}/items", b'{"items": [%b]}' % item)
    assert answer.status == 400
    body = b'{"model": "toy", "input": [%b], "conversation": "%b"}' % (item, name.encode())
    assert web.call("POST", "/v1/responses", body).status == 400
    assert web.call("GET", f"/v1/conversations/{name}/items").status == 200


def test_numbers_of_any_size_come_back(web, client):
    name = client.conversations.create().id
    item = b'{"role": "user", "content": "x", "extra": %d}' % 2**70
    path = f"/v1/conversations/{name}/items"
    assert web.call("POST", path, b'{"items": [%b]}' % item).status == 200
    (found,) = web.call("GET", path).json["data"]
    assert found["extra"] == 2**70


def test_conversations_have_a_key_a_number_and_a_size(tmp_path):
    keys = [ApiKey("first-of-all-keys"), ApiKey("second-of-all-keys")]
    limits = LanguageLimits(max_stored=2, max_stored_bytes=3000)
    with serving(keys=keys, limits=limits, directory=str(tmp_path)) as web:
        ours, others = (client_of(web, key.secret) for key in keys)
        with ours, others:
            first, second = (ours.conversations.create(items=[user("1?")]).id for _ in "12")
            with pytest.raises(openai.NotFoundError):
                others.conversations.retrieve(first)
            with pytest.raises(openai.NotFoundError):
                respond(others, "x", first)
            ours.conversations.items.create(first, items=[user("2?")])
            third = ours.conversations.create().id  # second was not used for longest
            with pytest.raises(openai.NotFoundError):
                ours.conversations.retrieve(second)
            with pytest.raises(openai.APIStatusError, match="over the limit of 3000") as caught:
                ours.conversations.items.create(third, items=[user("x" * 3000)])
            assert caught.value.status_code == 413
    with serving(keys=keys, directory=str(tmp_path)) as web, client_of(web, keys[0].secret) as ours:
        assert texts(ours, first) == [("user", "1?"), ("user", "2?")]
        assert texts(ours, third) == []


def test_a_server_that_stores_nothing_has_no_conversations():
    limits = LanguageLimits(max_stored=0)
    refused = pytest.raises(openai.NotFoundError, match="max_stored=0")
    with serving(limits=limits) as web, client_of(web) as client, refused:
        client.conversations.create()


def test_conversations_expire_without_a_directory(web, client, monkeypatch):
    name = client.conversations.create().id
    response = client.responses.create(model="toy", input="x").id
    later = time.time() + 31 * 86_400
    monkeypatch.setattr("mindspore_serving.frontends.response_store.time.time", lambda: later)
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(name)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response)
