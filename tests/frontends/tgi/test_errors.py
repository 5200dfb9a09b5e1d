"""Every error that clients of the protocol know, as they get it."""

from typing import Any

import pytest

from mindspore_serving.core.llm_messages import Refused
from mindspore_serving.errors import Overloaded, WorkerUnavailable
from mindspore_serving.frontends.tgi import Recorder, RequestLimits
from tests.frontends.mounting import tgi_routes
from tests.frontends.tgi.scripted import WHOLE, Server, begun, ended, piece

GRAMMAR = {"properties": {"a": {"type": "integer"}}}

INVALID: list[tuple[dict[str, Any], str]] = [
    ({"best_of": 3, "do_sample": True}, "`best_of` must be > 0 and <= 2. Given: 3"),
    ({"best_of": 0}, "`best_of` must be > 0 and <= 2. Given: 0"),
    ({"best_of": 2}, "you must use sampling when `best_of` is > 1"),
    (
        {"best_of": 2, "do_sample": True, "seed": 1},
        "`seed` must not be set when `best_of` > 1",
    ),
    ({"top_n_tokens": 6}, "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
    ({"temperature": 0}, "`temperature` must be strictly positive"),
    ({"temperature": -1.5}, "`temperature` must be strictly positive"),
    ({"repetition_penalty": 0}, "`repetition_penalty` must be strictly positive"),
    ({"frequency_penalty": 2.5}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    ({"top_p": 1.0}, "`top_p` must be > 0.0 and < 1.0"),
    ({"top_p": 0}, "`top_p` must be > 0.0 and < 1.0"),
    ({"top_k": 0}, "`top_k` must be strictly positive"),
    ({"top_k": -1}, "`top_k` must be strictly positive"),
    ({"truncate": 0}, "`truncate` must be strictly positive and less than 63. Given: 0"),
    ({"truncate": 64}, "`truncate` must be strictly positive and less than 63. Given: 64"),
    ({"typical_p": 1.0}, "`typical_p` must be > 0.0 and < 1.0"),
    ({"max_new_tokens": 0}, "`max_new_tokens` must be strictly positive"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "`stop` supports up to 4 stop sequences. Given: 5"),
    ({"watermark": True}, "`watermark` is not supported"),
    ({"grammar": {"type": "json", "value": 3}}, "grammar is not supported"),
    (
        {"grammar": {"type": "json", "value": {"type": "object"}}},
        "grammar is not valid: Grammar must have a 'properties' field",
    ),
    (
        {"grammar": {"type": "json", "value": "{"}},
        "grammar is not valid: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)",
    ),
    (
        {"adapter_id": "sql"},
        "The model 'sql' does not exist; available: poem, tiny",
    ),
    ({"seed": 2**64}, "seed is 18446744073709551616, expected an int of 0 to 18446744073709551615"),
]


@pytest.mark.parametrize(("parameters", "text"), INVALID, ids=lambda value: str(value)[:40])
async def test_a_wrong_parameter_is_named(parameters: dict[str, Any], text: str) -> None:
    server = Server(tgi_routes, WHOLE)
    reply = await server.post("/generate", {"inputs": "Hi", "parameters": parameters})
    assert reply.status_code == 422
    assert reply.json() == {
        "error": f"Input validation error: {text}",
        "error_type": "validation",
    }
    assert list(reply.json()) == ["error", "error_type"]
    assert server.inference.sent == []


async def test_parameters_are_looked_at_in_a_fixed_order() -> None:
    wrong: dict[str, Any] = {
        "best_of": 3,
        "temperature": 0,
        "repetition_penalty": 0,
        "frequency_penalty": 3,
        "top_p": 1,
        "typical_p": 1,
        "top_k": 0,
        "max_new_tokens": 0,
        "stop": list("abcde"),
        "top_n_tokens": 6,
        "truncate": 0,
    }
    right: dict[str, Any] = {"best_of": 1, "temperature": 1, "frequency_penalty": 0, "stop": []}
    told = []
    for name in list(wrong):
        body = {"inputs": "Hi", "parameters": wrong}
        error = (await Server(tgi_routes, WHOLE).post("/generate", body)).json()["error"]
        told.append(error.split("`")[1])
        wrong[name] = right.get(name)
    assert told == list(wrong)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"best_of": 2}, "`best_of` != 1 is not supported when streaming tokens"),
        (
            {"decoder_input_details": True},
            "`decoder_input_details` == true is not supported when streaming tokens",
        ),
    ],
)
async def test_streams_refuse_best_of_and_input_details(
    parameters: dict[str, Any], text: str
) -> None:
    body = {"inputs": "Hi", "parameters": parameters}
    reply = await Server(tgi_routes, WHOLE).post("/generate_stream", body)
    error = f'{{"error":"Input validation error: {text}","error_type":"validation"}}'
    assert reply.text == f"data: {error}\n\n"


async def test_best_of_may_be_turned_off() -> None:
    server = Server(lambda state: tgi_routes(state, RequestLimits(max_best_of=1)), WHOLE)
    body = {"inputs": "Hi", "parameters": {"best_of": 2, "do_sample": True}}
    reply = await server.post("/generate", body)
    text = "Input validation error: `best_of` != 1 is not allowed for this endpoint"
    assert reply.json()["error"] == text


REFUSED: list[tuple[Refused, int, str, str]] = [
    (
        Refused("context", "too long", 64, 64),
        422,
        "Input validation error: `inputs` must have less than 63 tokens. Given: 64",
        "validation",
    ),
    (
        Refused("empty", "no tokens"),
        422,
        "Input validation error: `inputs` cannot be empty",
        "validation",
    ),
    (
        Refused("grammar", "an unknown type"),
        422,
        "Input validation error: grammar is not valid: an unknown type",
        "validation",
    ),
    (Refused("input", "n is 3"), 422, "Input validation error: n is 3", "validation"),
    (Refused("overloaded", "200 wait"), 429, "Model is overloaded", "overloaded"),
]


@pytest.mark.parametrize(("refused", "status", "text", "kind"), REFUSED)
async def test_refusals_of_the_model_are_reported(
    refused: Refused, status: int, text: str, kind: str
) -> None:
    reply = await Server(tgi_routes, [refused]).post("/generate", {"inputs": "Hi"})
    assert reply.status_code == status
    assert reply.json() == {"error": text, "error_type": kind}


async def test_empty_inputs_are_refused() -> None:
    reply = await Server(tgi_routes, WHOLE).post("/generate", {"inputs": ""})
    text = "Input validation error: `inputs` cannot be empty"
    assert (reply.status_code, reply.json()["error"]) == (422, text)


async def test_a_full_server_is_overloaded() -> None:
    server = Server(tgi_routes, Overloaded("10000 requests are under way"))
    reply = await server.post("/generate", {"inputs": "Hi"})
    assert reply.status_code == 429
    assert reply.content == b'{"error":"Model is overloaded","error_type":"overloaded"}'


async def test_requests_over_the_limit_are_refused_before_validation() -> None:
    recorder = Recorder()
    limits = RequestLimits(max_concurrent_requests=1)
    server = Server(lambda state: tgi_routes(state, limits, recorder), WHOLE)
    recorder.num_open = 1
    body = {"inputs": "Hi", "parameters": {"temperature": 0}}
    assert (await server.post("/generate", body)).status_code == 429
    recorder.num_open = 0
    assert (await server.post("/generate", body)).status_code == 422
    assert recorder.num_open == 0


async def test_a_failing_model_is_a_failed_dependency() -> None:
    text = {"error": "Request failed during generation: the worker died"}
    server = Server(tgi_routes, WorkerUnavailable("the worker died"))
    reply = await server.post("/generate", {"inputs": "Hi"})
    assert reply.status_code == 424
    assert reply.json() == {**text, "error_type": "generation"}
    error = piece(finish_reason="error", stop_reason="the worker died")
    server = Server(tgi_routes, (begun(), error, ended()))
    reply = await server.post("/generate", {"inputs": "Hi"})
    assert (reply.status_code, reply.json()["error"]) == (424, text["error"])


async def test_an_aborted_answer_is_incomplete() -> None:
    server = Server(tgi_routes, (begun(), piece(finish_reason="abort"), ended()))
    reply = await server.post("/generate", {"inputs": "Hi"})
    assert reply.status_code == 500
    assert reply.json() == {
        "error": "Incomplete generation",
        "error_type": "incomplete_generation",
    }


async def test_without_a_model_there_is_nothing_to_ask() -> None:
    reply = await Server(tgi_routes, WHOLE, models=[]).post("/generate", {"inputs": "Hi"})
    assert reply.status_code == 404
    assert reply.json()["error_type"] == "not_found"


BODIES: list[tuple[bytes, str, int, str]] = [
    (
        b'{"inputs": 1}',
        "application/json",
        422,
        "Failed to deserialize the JSON body into the target type: "
        "inputs: expected a string, got an integer",
    ),
    (
        b"{}",
        "application/json",
        422,
        "Failed to deserialize the JSON body into the target type: missing field `inputs`",
    ),
    (
        b'{"inputs": "Hi", "parameters": {"max_new_tokens": -1}}',
        "application/json",
        422,
        "Failed to deserialize the JSON body into the target type: "
        "parameters.max_new_tokens: expected an integer >= 0",
    ),
    (
        b'{"inputs": "Hi", "parameters": null}',
        "application/json",
        422,
        "Failed to deserialize the JSON body into the target type: "
        "parameters: expected an object, got null",
    ),
    (
        b'{"inputs": "Hi", "parameters": {"grammar": {"type": "yaml", "value": ""}}}',
        "application/json",
        422,
        "Failed to deserialize the JSON body into the target type: "
        "parameters.grammar.type: Invalid value 'yaml'",
    ),
    (
        b'{"inputs": ',
        "application/json",
        400,
        "Failed to parse the request body as JSON: Input data was truncated",
    ),
    (
        b'{"inputs": "Hi"}',
        "text/plain",
        415,
        "Expected request with `Content-Type: application/json`",
    ),
    (
        b'{"inputs": "' + b"a" * 10_000 + b'"}',
        "application/json",
        413,
        "Failed to buffer the request body: length limit exceeded: the body is bigger than 10000 "
        "bytes; --max-msg-mb of the server sets this limit",
    ),
]


@pytest.mark.parametrize("path", ["/", "/generate", "/generate_stream", "/tokenize"])
@pytest.mark.parametrize(("body", "kind", "status", "text"), BODIES, ids=range(len(BODIES)))
async def test_a_body_that_is_no_request_is_answered_in_plain_text(
    path: str, body: bytes, kind: str, status: int, text: str
) -> None:
    server = Server(tgi_routes, WHOLE)
    reply = await server.send("POST", path, content=body, headers={"content-type": kind})
    assert (reply.status_code, reply.text) == (status, text)
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"


async def test_json_of_a_longer_name_is_json() -> None:
    server = Server(tgi_routes, WHOLE)
    for kind in ("application/json; charset=utf-8", "application/vnd.api+json"):
        reply = await server.send(
            "POST", "/generate", content=b'{"inputs": "Hi"}', headers={"content-type": kind}
        )
        assert reply.status_code == 200


@pytest.mark.parametrize(("verb", "path"), [("GET", "/generate"), ("POST", "/info")])
async def test_a_wrong_verb_has_an_empty_answer(verb: str, path: str) -> None:
    reply = await Server(tgi_routes, WHOLE).send(verb, path)
    assert (reply.status_code, reply.content) == (405, b"")
    assert reply.headers["allow"] == {"GET": "POST", "POST": "GET, HEAD"}[verb]


async def test_unexpected_errors_are_hidden_from_clients() -> None:
    server = Server(tgi_routes, WHOLE)

    def submit(*_: object) -> None:
        raise ValueError("/secret/path")

    server.inference.submit = submit  # type: ignore[assignment]
    reply = await server.post("/generate", {"inputs": "Hi"})
    assert reply.status_code == 424
    assert "secret" not in reply.text
    reply = await server.post("/generate_stream", {"inputs": "Hi"})
    assert "secret" not in reply.text
    assert reply.text.startswith('data: {"error":')
