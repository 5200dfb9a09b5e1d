"""What parameters become, which model a path names, and what is said of wrong requests."""

from typing import Any

import pytest
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Refused
from mindspore_serving.errors import Overloaded, WorkerUnavailable
from tests.frontends.mounting import cohere_routes, llm_serving_routes
from tests.frontends.tgi.scripted import CARD, HELLO, WHOLE, Server, begun, ended, piece

PATH = "/models/llama2/generate"


async def asked_with(parameters: Any, **body: Any) -> Server:
    server = Server(llm_serving_routes, WHOLE)
    reply = await server.post(PATH, {"inputs": "Hi", "parameters": parameters, **body})
    assert reply.status_code == 200, reply.text
    return server


@pytest.mark.parametrize(
    ("given", "name", "expected"),
    [
        ({}, "temperature", 1.0),
        ({"do_sample": "False"}, "temperature", 0.0),
        ({"do_sample": None}, "temperature", 0.0),
        ({"temperature": 0}, "temperature", 0.0),
        ({"temperature": 1e-5}, "temperature", 0.0),
        ({"temperature": "0.5"}, "temperature", 0.5),
        ({"temperature": 65536}, "temperature", 100.0),
        ({"temperature": 65537}, "temperature", 0.0),
        ({"temperature": "nan"}, "temperature", 0.0),
        ({}, "top_k", 3),
        ({"top_k": 0}, "top_k", 1),
        ({"top_k": -1}, "top_k", 1),
        ({"top_k": 1000}, "top_k", 1),
        ({"top_k": 999}, "top_k", 100),
        ({"top_k": "7"}, "top_k", 7),
        ({}, "top_p", 1.0),
        ({"top_p": 0}, "top_p", 0.01),
        ({"top_p": -3}, "top_p", 0.01),
        ({"top_p": 0.005}, "top_p", 0.005),
        ({"top_p": 1.5}, "top_p", 1.0),
        ({"top_p": "nan"}, "top_p", 1.0),
        ({}, "max_tokens", 300),
        ({"max_new_tokens": "55"}, "max_tokens", 55),
        ({"max_new_tokens": 0}, "max_tokens", 1),
        ({"max_new_tokens": -4}, "max_tokens", 1),
        ({"repetition_penalty": 1.3}, "repetition_penalty", 1.3),
        ({"repetition_penalty": 0}, "repetition_penalty", 1.0),
        ({"typical_p": 0.4}, "typical_p", 0.4),
        ({"typical_p": 0}, "typical_p", 1.0),
        ({"typical_p": 5}, "typical_p", 1.0),
        ({"seed": 0}, "seed", None),
        ({"seed": 9}, "seed", 9),
        ({"seed": -1}, "seed", 2**64 - 1),
        ({"seed": 10**30}, "seed", 10**30 % 2**64),
        ({"max_new_tokens": 10**30}, "max_tokens", 2**31),
        ({"stop": ["a", ""]}, "stop", ["a"]),
        ({"stop": ["a"]}, "include_stop", True),
        ({}, "logprobs", 0),
        ({"top_n_tokens": 3}, "logprobs", 3),
        ({"top_n_tokens": 300}, "logprobs", 64),
    ],
)
async def test_parameters_are_put_into_their_range(
    given: dict[str, Any], name: str, expected: object
) -> None:
    server = await asked_with(given)
    assert getattr(server.sent.params, name) == expected


async def test_parameters_may_be_missing() -> None:
    for parameters in (None, {}):
        server = await asked_with(parameters)
        assert server.sent.params.max_tokens == 300


async def test_truncation_keeps_the_end_of_the_prompt() -> None:
    assert (await asked_with({"truncate": 5})).sent.truncate == 5
    assert (await asked_with({"truncate": "True", "max_new_tokens": 10})).sent.truncate == 54
    assert (await asked_with({"truncate": True})).sent.truncate == 1
    assert (await asked_with({"truncate": 10**30})).sent.truncate == 64
    for nothing in (False, 0, -1, None):
        assert (await asked_with({"truncate": nothing})).sent.truncate is None


@pytest.mark.parametrize(
    ("name", "prompt", "adds_special"),
    [
        ("internlm_7b", "<s><s><|User|>:Hi<eoh>\n<|Bot|>:", False),
        ("baichuan2pa", "<reserved_106>Hi<reserved_107>", False),
        ("llama_7b", "Hi", True),
    ],
)
async def test_models_of_known_names_have_a_template(
    name: str, prompt: str, adds_special: bool
) -> None:
    server = Server(llm_serving_routes, WHOLE, models=[(name, 1, CARD)])
    await server.post("/models/internlm/generate", {"inputs": "Hi"})
    assert (server.sent.prompt, server.sent.add_special) == (prompt, adds_special)


async def test_a_path_names_a_model_an_adapter_or_the_alias_of_the_first_model() -> None:
    models = [("one", 1, replace(CARD, adapters=())), ("two", 1, CARD)]
    server = Server(llm_serving_routes, WHOLE, models=models)
    for name in ("one", "two", "poem", "llama2", "internlm"):
        reply = await server.post(f"/models/{name}/generate", {"inputs": "Hi"})
        assert reply.status_code == 200
        assert server.sent.adapter == ("poem" if name == "poem" else "")
    reply = await server.post("/models/three/generate", {"inputs": "Hi"})
    assert reply.status_code == 404
    text = "The model 'three' does not exist; available: one, poem, two"
    assert reply.json() == {"detail": text}


async def test_a_model_may_be_called_like_an_alias() -> None:
    models = [("one", 1, replace(CARD, vocab_size=5)), ("llama2", 1, CARD)]
    server = Server(llm_serving_routes, WHOLE, models=models)
    body = {"inputs": "Hi", "parameters": {"top_k": 50}}
    await server.post(PATH, body)
    assert server.sent.params.top_k == 50


@pytest.mark.parametrize(
    ("refused", "text", "token_id", "reason"),
    [
        (
            Refused("context", "too long", 70, 64),
            "Error202: prompt out of range",
            -202,
            "prompt_out_of_range",
        ),
        (Refused("empty", ""), "Error203: prompt token empty", -203, "prompt_token_ids_empty"),
    ],
)
async def test_a_prompt_that_cannot_be_used_is_told_in_place_of_an_answer(
    refused: Refused, text: str, token_id: int, reason: str
) -> None:
    server = Server(llm_serving_routes, [refused])
    reply = await server.post(PATH, {"inputs": "Hi"})
    assert reply.status_code == 200
    shown = {"id": token_id, "logprob": 0.0, "special": False, "text": text}
    assert reply.json() == {
        "generated_text": text,
        "finish_reason": reason,
        "generated_tokens": 0,
        "prefill": [shown],
        "seed": 0,
        "tokens": [shown],
        "top_tokens": [[shown]],
        "details": None,
    }
    reply = await server.post("/models/llama2", {"inputs": "Hi", "stream": True})
    frame = f'data: {{"event": "message", "retry": 30000, "data": "{text}"}}\r\n\r\n'
    assert reply.text == frame * 2


FAILED = "error304: generation task stop abnormally!, please retry!"


async def test_a_failure_is_appended_to_the_generated_text() -> None:
    error = piece(finish_reason="error", stop_reason="out of memory")
    server = Server(llm_serving_routes, (begun(), piece(HELLO), error, ended()))
    body = {"inputs": "Hi", "parameters": {"return_protocol": "lines"}}
    reply = await server.post("/models/llama2/generate_stream", body)
    assert reply.text == (
        'data:{"token": {"text": " Hello", "index": 1}}\n'
        f'data:{{"token": {{"text": "{FAILED}", "index": 2}}}}\n'
        f'data:{{"generated_text": " Hello{FAILED}"}}\n'
    )


async def test_a_worker_that_is_lost_is_told_likewise() -> None:
    for events in (WorkerUnavailable("the worker died"), (begun(),)):
        server = Server(llm_serving_routes, events)
        found = (await server.post(PATH, {"inputs": "Hi"})).json()
        assert found["generated_text"] == FAILED
        assert found["finish_reason"] == "predict_failed"


@pytest.mark.parametrize("path", ["/models/llama2/generate", "/models/llama2/generate_stream"])
async def test_too_many_requests_are_refused_with_a_status(path: str) -> None:
    for answer in (Overloaded("10000 are under way"), [Refused("overloaded", "too many wait")]):
        reply = await Server(llm_serving_routes, answer).post(path, {"inputs": "Hi"})
        assert reply.status_code == 429
        assert reply.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("body", "where", "text"),
    [
        (b'{"parameters": {}}', [], "missing field `inputs`"),
        (b'{"inputs": 5}', ["inputs"], "expected a string, got an integer"),
        (
            b'{"inputs": "a", "parameters": {"top_k": "many"}}',
            ["parameters", "top_k"],
            "expected an integer or null, got a string",
        ),
        (b"{", [], "the body is not JSON: Input data was truncated"),
    ],
)
async def test_a_body_that_is_no_request_is_told_with_its_place(
    body: bytes, where: list[str], text: str
) -> None:
    reply = await Server(llm_serving_routes, WHOLE).send("POST", PATH, content=body)
    assert reply.status_code == 422
    detail = {"loc": ["body", *where], "msg": text, "type": "value_error"}
    assert reply.json() == {"detail": [detail]}


async def test_values_without_a_nearest_valid_value_are_refused() -> None:
    body = {"inputs": "Hi", "parameters": {"stop": ["a"] * 65}}
    reply = await Server(llm_serving_routes, WHOLE).post(PATH, body)
    assert reply.status_code == 422
    assert "stop has 65 texts" in reply.text


async def test_a_body_over_the_limit_is_refused() -> None:
    reply = await Server(llm_serving_routes, WHOLE).post(PATH, {"inputs": "a" * 10_001})
    assert reply.status_code == 413


async def test_a_client_that_leaves_frees_its_request() -> None:
    server = Server(llm_serving_routes, WHOLE[:1])
    server.inference.stays_open = True
    received = [
        {"type": "http.request", "body": b'{"inputs": "Hi"}', "more_body": False},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return received.pop(0) if len(received) > 1 else received[0]

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "headers": [],
    }
    await server.app(scope, receive, send)
    assert sent[0]["status"] == 499
    assert server.inference.num_cancelled == 1


async def test_requests_that_no_model_supports_are_refused_by_task() -> None:
    server = Server(cohere_routes, WHOLE, models=[("one", 1, CARD)])
    for named in ({}, {"model": "default"}):
        body = {"query": "a", "documents": ["b"], **named}
        reply = await server.post("/v1/rerank", body)
        assert reply.status_code == 404
        assert reply.json() == {"message": "No model here can rank; available: one, poem"}
