"""Ollama's own client, over a model that says what the test tells it to."""

import asyncio

import numpy as np
import ollama
import pydantic
import pytest

from mindspore_serving.core.llm_messages import Chunk, Refused, Started
from mindspore_serving.core.reading_messages import Embedded
from mindspore_serving.frontends.keys import ApiKey
from tests.frontends.ollama.conftest import mount
from tests.frontends.openai.serving import serving, spoken, token

HELLO = [{"role": "user", "content": "hello"}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"left": 1, "right": 2}}\n</tool_call>'
VECTORS = np.array([[0.6, 0.8], [0.0, 1.0]], "<f4")


def add(left: int, right: int) -> int:
    """Adds.

    Args:
        left: one
        right: the other
    """
    return left + right


def test_an_answer_has_a_message_counts_and_times(web, client):
    web.says(Chunk(0, "<think>Hm.</think>Hi!", (1,), None, "stop"), num_prompt=5, num_generated=3)
    found = client.chat("toy:latest", HELLO)
    assert (found.message.role, found.message.content) == ("assistant", "Hi!")
    assert found.message.thinking == "Hm."
    assert (found.model, found.done, found.done_reason) == ("toy:latest", True, "stop")
    assert (found.prompt_eval_count, found.eval_count, found.load_duration) == (5, 3, 0)
    assert found.total_duration >= found.prompt_eval_duration + found.eval_duration >= 0
    assert found.created_at.endswith("Z")
    assert web.sent.params.top_k == 7
    assert web.sent.params.max_tokens is None


def test_a_stream_adds_up_to_the_answer(web, client):
    web.says(*spoken("<think>", "Hm.", "</think>", "Hi", " there"))
    found = list(client.chat("toy", HELLO, stream=True))
    assert "".join(one.message.content for one in found) == "Hi there"
    assert "".join(one.message.thinking or "" for one in found) == "Hm."
    assert [one.done for one in found] == [False] * 3 + [True]
    assert found[-1].eval_count == 2
    assert found[0].eval_count is None


def test_a_function_is_called_with_its_arguments_as_an_object(web, client):
    text = f"Well.{CALL}\n{CALL}"
    for is_stream in (False, True):
        web.says(*spoken(*[text[i : i + 9] for i in range(0, len(text), 9)]))
        answer = client.chat("toy", HELLO, tools=[add], stream=is_stream)
        found = list(answer) if is_stream else [answer]
        calls = [call.function for one in found for call in one.message.tool_calls or ()]
        assert [(call.name, call.arguments) for call in calls] == [
            ("add", {"left": 1, "right": 2})
        ] * 2
        assert (found[-1].done_reason, web.sent.tools[0]["function"]["name"]) == ("stop", "add")


def test_a_conversation_continues_with_the_output_items(web, client):
    web.says(Chunk(0, f"<think>Hm.</think>{CALL}", (1,), None, "stop"))
    first = client.chat("toy", HELLO, tools=[add])
    result = {"role": "tool", "tool_name": "add", "content": "3"}
    client.chat("toy", [*HELLO, first.message, result], tools=[add])
    _, asked, told = web.sent.messages
    assert asked["reasoning_content"] == "Hm."
    assert asked["tool_calls"][0]["function"] == {
        "name": "add",
        "arguments": {"left": 1, "right": 2},
    }
    assert told == {"role": "tool", "name": "add", "content": "3"}


def test_a_prompt_is_a_chat_unless_raw(web, client):
    web.says(*spoken("Hi", "!"))
    found = client.generate("toy", "hello", system="Be kind.")
    assert (found.response, found.done_reason) == ("Hi!", "stop")
    assert [one["content"] for one in web.sent.messages] == ["Be kind.", "hello"]
    stream = client.generate("toy", "hello", raw=True, stream=True)
    assert "".join(one.response for one in stream) == "Hi!"
    assert (web.sent.prompt, web.sent.messages) == ("hello", None)


class Sum(pydantic.BaseModel):
    left: int
    right: int


def test_an_answer_has_the_form_of_a_pydantic_model(web, client):
    web.says(Chunk(0, '{"left":1,"right":2}', (1,), None, "stop"))
    found = client.chat("toy", HELLO, format=Sum.model_json_schema())
    assert Sum.model_validate_json(found.message.content) == Sum(left=1, right=2)
    assert web.sent.grammar.kind == "json_schema"
    client.generate("toy", "hello", format="json")
    assert web.sent.grammar.kind == "json_object"


def test_options_are_sampling_parameters(web, client):
    options = ollama.Options(num_predict=9, temperature=0.5, top_p=0.9, seed=3, stop=["x"])
    client.chat("toy", HELLO, options=options)
    params = web.sent.params
    assert (params.max_tokens, params.temperature, params.top_p) == (9, 0.5, 0.9)
    assert (params.seed, params.stop) == (3, ["x"])


def test_log_probabilities_are_of_tokens(web, client):
    web.says(Chunk(0, "Hi", (1,), (token("Hi", -1.0, token("Ho", -2.0)),), "stop"))
    (found,) = client.chat("toy", HELLO, logprobs=True, top_logprobs=1).logprobs
    assert (found.token, found.logprob, found.top_logprobs[0].token) == ("Hi", -1.0, "Ho")
    assert web.sent.params.logprobs == 1


def test_texts_are_embedded(web, client):
    web.inference.script = lambda request: [
        Embedded(VECTORS[: len(request.prompts)].tobytes(), 2, (3,) * len(request.prompts))
    ]
    found = client.embed("vectors", ["a", "b"])
    assert np.allclose(found.embeddings, VECTORS)
    assert found.prompt_eval_count == 6
    assert np.allclose(client.embed("vectors:latest", "a").embeddings, VECTORS[:1])
    assert np.allclose(client.embeddings("vectors", "a").embedding, VECTORS[0])
    assert client.embed("vectors", []).embeddings == []


def test_models_are_listed_shown_and_running(web, client):
    names = ["toy:latest", "tuned:latest", "vectors:latest"]
    assert [one.model for one in client.list().models] == names
    running = client.ps().models
    assert [one.name for one in running] == names
    assert (running[0].context_length, running[0].expires_at.year) == (128, 9999)
    shown = client.show("toy:latest")
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert client.show("vectors").capabilities == ["embedding"]
    assert shown.modelinfo["toy.context_length"] == 128
    assert (shown.details.family, shown.parameters) == ("toy", "top_k 7")
    assert shown.modified_at.year == 2023


@pytest.mark.parametrize(
    "change",
    [
        lambda client: client.pull("llama3"),
        lambda client: client.push("toy"),
        lambda client: client.create("mine", from_="toy"),
        lambda client: client.copy("toy", "mine"),
        lambda client: client.delete("toy"),
        lambda client: client.generate("toy", keep_alive=0),
    ],
)
def test_clients_change_no_models(change, client):
    with pytest.raises(ollama.ResponseError) as caught:
        change(client)
    assert caught.value.status_code == 403


@pytest.mark.parametrize("name", ["toy", "toy:latest", "tuned"])
def test_a_model_that_is_served_can_be_pulled(client, name):
    assert client.pull(name).status == "success"
    assert [one.status for one in client.pull(name, stream=True)][-1] == "success"


def test_pulling_another_model_lists_the_served_models(client):
    for is_stream in (False, True):
        with pytest.raises(ollama.ResponseError, match="available: toy") as caught:
            [*client.pull("llama3", stream=is_stream)]
        assert caught.value.status_code == 403


def test_a_request_for_nothing_finds_the_model_loaded(web, client):
    assert client.generate("toy", keep_alive="5m").done_reason == "load"
    found = client.chat("toy", [])
    assert (found.done, found.done_reason, found.message.content) == (True, "load", "")
    assert not web.inference.calls


@pytest.mark.parametrize(
    ("said", "status"), [(Refused("context", "x", 9, 8), 400), (Refused("overloaded", "x"), 429)]
)
def test_errors_are_the_clients_exceptions(said, status, web, client):
    web.answers(said)
    for is_stream in (False, True):
        with pytest.raises(ollama.ResponseError) as caught:
            list(client.chat("toy", HELLO, stream=is_stream))
        assert caught.value.status_code == status


def test_an_unknown_model_is_not_found(client):
    for ask in (client.chat, client.generate, client.show, client.embed):
        with pytest.raises(ollama.ResponseError, match="does not exist") as caught:
            ask("llama3:8b")
        assert caught.value.status_code == 404


def test_an_error_in_a_stream_is_raised(web, client):
    web.says(Chunk(0, "Hi", (1,)), Chunk(0, "", (), None, "error", "out of memory"))
    stream = client.chat("toy", HELLO, stream=True)
    assert next(stream).message.content == "Hi"
    with pytest.raises(ollama.ResponseError, match="out of memory"):
        next(stream)


def test_a_key_comes_in_a_header_of_the_clients():
    key = "a-key-that-is-long-enough"
    with serving(mount, [ApiKey(key)]) as web:
        host = f"http://127.0.0.1:{web.port}"
        with ollama.Client(host, headers={"Authorization": f"Bearer {key}"}) as client:
            assert client.chat("toy", HELLO).message.content == "Hi!"
        with ollama.Client(host, headers={"Authorization": "Bearer wrong"}) as client:
            with pytest.raises(ollama.ResponseError, match="API key is missing") as caught:
                client.list()
            assert caught.value.status_code == 401


async def test_the_asynchronous_client_streams_and_leaves(web):
    web.inference.script = lambda request: None
    async with ollama.AsyncClient(host=f"http://127.0.0.1:{web.port}") as client:

        async def read_one() -> str:
            stream = await client.chat("toy", HELLO, stream=True)
            found = (await anext(stream)).message.content
            await stream.aclose()
            return found

        reading = asyncio.ensure_future(read_one())
        await asyncio.to_thread(web.inference.wait, lambda: web.inference.calls)
        call = web.inference.calls[-1]
        call.say([Started(1, 0), Chunk(0, "Hi", (1,))], is_last=False)
        assert await reading == "Hi"
        await asyncio.to_thread(web.inference.wait, lambda: call.is_cancelled)
