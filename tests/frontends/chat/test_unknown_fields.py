"""Fields that no route has: the answer names them, the log once, and near misses are refused."""

import re

import msgspec
import pytest

from mindspore_serving.core.sampling_params import SAMPLING
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.field_names import ROWS
from mindspore_serving.frontends.chat.unknown_fields import HEADER, KnownFields
from mindspore_serving.frontends.ollama.fields import OPTIONS, Options
from mindspore_serving.frontends.ollama.requests import OllamaRequest
from mindspore_serving.frontends.openai.fields import CHAT
from mindspore_serving.frontends.openai.requests import OpenAIChatRequest
from tests.frontends.mounting import tgi_routes
from tests.frontends.openai.serving import Web, serving
from tests.frontends.tgi.scripted import STREAMED, WHOLE, Server


def known() -> KnownFields:
    return KnownFields("/here", OpenAIChatRequest, CHAT.ignored)


def find(**fields: object) -> tuple[str, ...]:
    return known().find_unknown(msgspec.json.encode(fields))


def test_fields_that_are_known_or_knowingly_ignored_are_not_named() -> None:
    names = [one.name for one in msgspec.structs.fields(OpenAIChatRequest)]
    assert find(**dict.fromkeys(names)) == ()
    assert find(**dict.fromkeys(CHAT.ignored)) == ()


def test_unknown_fields_are_named_in_their_order() -> None:
    assert find(messages=[], top_a=0.5, plugins=2) == ("top_a", "plugins")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("temprature", "temperature"),
        ("max_token", "max_tokens"),
        ("maxTokens", "max_tokens"),
        ("max-tokens", "max_tokens"),
        ("message", "messages"),
        ("TOP_P", "top_p"),
        ("tool_choise", "tool_choice"),
        ("max_tokenz", "max_tokens"),
        ("top_pp", "top_p"),
        ("tempature", "temperature"),
        ("mesages", "messages"),
        ("max_new_tokens", "max_tokens"),
        ("num_predict", "max_tokens"),
        ("n_predict", "max_tokens"),
        ("max_length", "max_tokens"),
        ("maxOutputTokens", "max_tokens"),
        ("repeat_penalty", "repetition_penalty"),
        ("stop_sequences", "stop"),
        ("random_seed", "seed"),
        ("num_return_sequences", "n"),
    ],
)
def test_a_misspelt_or_foreign_name_is_refused_with_the_name_here(given: str, meant: str) -> None:
    with pytest.raises(InvalidField, match=f"^{given} is not known: did you mean {meant}\\?$"):
        find(**{given: 1})


# What other servers and gateways have.
@pytest.mark.parametrize(
    "name",
    [
        *("models", "provider", "transforms", "reasoning", "top_a", "min_length"),
        *("store", "metadata", "enable_thinking", "num_ctx", "cache_prompt", "use_beam_search"),
        *("top_k_return_sequences", "api_key", "options", "plugins", "route", "min_k", "stop_id"),
        *("early_stopping", "length_penalty", "prompt_logprobs", "return_token_ids", "documents"),
        *("echo", "chat_template", "mm_processor_kwargs", "add_generation_prompt", "request_id"),
        *("continue_final_message", "kv_transfer_params", "thinking", "input"),
    ],
)
def test_a_field_of_another_server_is_no_near_miss(name: str) -> None:
    assert find(messages=[], **{name: 1}) in {(name,), ()}


def test_a_near_miss_beside_the_right_name_is_only_named() -> None:
    assert find(max_tokens=1, maxTokens=1) == ("maxTokens",)
    assert find(max_completion_tokens=1, max_new_tokens=1) == ("max_new_tokens",)
    assert find(temperature=1, do_sample=1) == ("do_sample",)


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("do_sample", "did you mean temperature, where 0 takes the likeliest token?"),
        ("system", "send a message with the role system"),
        ("extra_body", "it is an argument of OpenAI's library"),
    ],
)
def test_a_field_without_another_name_here_is_refused_with_advice(given: str, advice: str) -> None:
    with pytest.raises(InvalidField, match=f"^{given} is not known: {re.escape(advice)}"):
        find(messages=[], **{given: 1})


def test_a_parameter_beside_its_object_is_refused_with_its_path() -> None:
    inner = KnownFields("/here, options", Options, OPTIONS.ignored)
    fields = KnownFields("/here", OllamaRequest, inside={"options": inner})
    for name in ("max_tokens", "num_predict", "num_predictt"):
        with pytest.raises(InvalidField, match=r"did you mean options\.num_predict\?$"):
            fields.find_unknown(msgspec.json.encode({name: 1}))
    with pytest.raises(InvalidField, match=r"^options\.max_tokens is not known"):
        fields.find_unknown(b'{"options": {"max_tokens": 1}}')
    assert fields.find_unknown(b'{"options": {"num_predict": 1, "a": 2}, "max_tokens": 1}') == (
        "max_tokens",
        "options.a",
    )


def test_the_names_of_every_protocol_are_in_the_table() -> None:
    for row in SAMPLING.values():
        names = {name for name in row.aliases.values() if name}
        assert len(names) < 2 or any(names <= {*other} for other in ROWS), names


@pytest.mark.parametrize("body", [b"", b"[]", b"5", b"{", b"\xff", b'{"a": }'])
def test_a_body_that_is_no_object_has_no_fields(body: bytes) -> None:
    assert known().find_unknown(body) == ()


def test_names_are_safe_in_a_header_and_bounded() -> None:
    assert find(**{"a\r\nb": 1, "é": 1, "x" * 65: 1, "fine": 1}) == ("?", "?", "?", "fine")
    assert len(find(**{f"unknown{i}": 1 for i in range(1000)})) == 16


def test_a_name_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    fields = known()
    for _ in range(3):
        fields.find_unknown(b'{"top_a": 1}')
    assert capsys.readouterr().err.count("/here: the field top_a is not known and ignored") == 1


def test_the_log_of_names_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    fields = known()
    for i in range(400):
        fields.find_unknown(msgspec.json.encode({f"unknown{i}": 1}))
    assert len(capsys.readouterr().err.splitlines()) == 256


@pytest.fixture(scope="module")
def web() -> "Web":  # type: ignore[misc]
    with serving() as running:
        yield running


def test_an_answer_of_openai_names_them(web: Web) -> None:
    for stream in (False, True):
        answer = web.chat(top_a=1, min_length=5, user="me", stream=stream)
        assert (answer.status, answer.headers[HEADER]) == (200, "top_a, min_length")
    assert HEADER not in web.chat(user="me").headers
    assert web.complete(stream_option=1).status == 400
    answer = web.call("POST", "/v1/responses", {"input": "a", "top_a": 1})
    assert answer.headers[HEADER] == "top_a"
    answer = web.call("POST", "/tokenize", {"prompt": "a", "top_a": 1})
    assert answer.status != 400


def test_a_near_miss_is_a_wrong_field_for_clients_of_openai(web: Web) -> None:
    answer = web.chat(temprature=0)
    assert (answer.status, answer.error["param"]) == (400, "temprature")
    assert "did you mean temperature?" in answer.error["message"]
    answer = web.call("POST", "/v1/chat/completions", {"mesages": []})
    assert "did you mean messages?" in answer.error["message"]


async def test_an_answer_of_tgi_names_them() -> None:
    body = {"inputs": "Hi", "options": {}, "parameters": {"top_a": 1, "top_k": 2}}
    for path, script in (("/generate", WHOLE), ("/", WHOLE), ("/generate_stream", STREAMED)):
        reply = await Server(tgi_routes, script).post(path, body)
        assert (reply.status_code, reply.headers[HEADER]) == (200, "options, parameters.top_a")
    reply = await Server(tgi_routes, WHOLE).post("/generate", {"inputs": "Hi"})
    assert HEADER not in reply.headers


async def test_a_near_miss_is_a_validation_error_for_clients_of_tgi() -> None:
    server = Server(tgi_routes, WHOLE)
    reply = await server.post("/generate", {"inputs": "Hi", "parameters": {"max_new_token": 2}})
    assert (reply.status_code, reply.json()["error_type"]) == (422, "validation")
    assert reply.json()["error"] == (
        "Input validation error: parameters.max_new_token is not known: "
        "did you mean parameters.max_new_tokens?"
    )


async def test_a_body_of_tgi_needs_no_type() -> None:
    server = Server(tgi_routes, WHOLE)
    for path in ("/generate", "/generate_stream", "/"):
        assert (await server.send("POST", path, content=b'{"inputs": "Hi"}')).status_code == 200
