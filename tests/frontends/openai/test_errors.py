"""What clients are told when something is wrong: status, four keys, field, what was given."""

from dataclasses import replace

import pytest

from mindspore_serving.core.llm_messages import Chunk, Refused, Started
from mindspore_serving.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidInputs,
    Overloaded,
    ServableUnavailable,
    ServingError,
    StageFailed,
    TooLarge,
    WorkerUnavailable,
)
from mindspore_serving.frontends.chat.models import LanguageModels, LanguageRules
from tests.frontends.mounting import openai_routes
from tests.frontends.openai.serving import MAX_BODY, all_sent
from tests.frontends.tgi.scripted import WHOLE, Server

USER = {"role": "user", "content": "x"}


def refused(answer, status=400):
    """The error of an answer, which has just the four keys."""
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json) == {"error"}
    assert set(answer.error) == {"message", "type", "param", "code"}
    return answer.error


@pytest.mark.parametrize(
    ("field", "given", "told"),
    [
        ("temperature", "hot", 'temperature is "hot", expected a number or null'),
        ("temperature", 2.5, "temperature is 2.5, expected a number from 0 to 2"),
        ("top_p", 1.5, "top_p is 1.5, expected"),
        ("top_k", -2, "top_k is -2, expected"),
        ("n", 0, "n is 0, expected an int of 1 to 128"),
        ("n", 1.5, "n is 1.5, expected an integer or null"),
        ("n", True, "n is true, expected an integer"),
        ("max_tokens", 0, "max_tokens is 0, expected at least 1"),
        ("max_completion_tokens", -1, "max_completion_tokens is -1, expected at least 1"),
        ("max_tokens", 10**30, "max_tokens"),
        ("seed", 10**30, "seed"),
        ("stop", ["a"] * 5, "stop has 5 texts, expected at most 4"),
        ("stop", [""], "stop is"),
        ("presence_penalty", 3, "presence_penalty is 3"),
        ("frequency_penalty", -3, "frequency_penalty is -3"),
        ("repetition_penalty", 0, "repetition_penalty is 0"),
        ("logit_bias", {"a": 1}, "a key of logit_bias is wrong: expected an integer"),
        ("logit_bias", {"300": 1}, "logit_bias has token id 300, expected 0 to 299"),
        ("stop_token_ids", [-1], "stop_token_ids has token id -1"),
        ("truncate_prompt_tokens", 0, "truncate_prompt_tokens is 0"),
        ("stream", "yes", 'stream is "yes", expected true or false or null'),
        ("response_format", {"type": "xml"}, 'response_format.type is "xml"'),
        ("response_format", {"type": "json_schema"}, "response_format.json_schema is missing"),
        ("structured_outputs", {}, "structured_outputs has none"),
        ("structured_outputs", {"regex": "a", "json": {}}, "has json, regex"),
        ("structured_outputs", {"choice": []}, "structured_outputs.choice is []"),
        (
            "tools",
            [{"type": "fn", "function": {"name": "f"}}],
            'tools[0].type is "fn", expected function',
        ),
        ("tools", [{"type": "custom"}], "tools[0].custom is missing"),
        ("tools", [{"type": "function"}], "tools[0].function is missing"),
        ("tools", [{"type": "function", "function": {"name": "a b"}}], 'name is "a b"'),
        ("tool_choice", "maybe", 'tool_choice is "maybe", expected none, auto, required'),
        ("tool_choice", "required", "expected tools with it"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}, 'name is "f"'),
        ("functions", [{"name": "f"}], "functions is not supported: use tools"),
        ("guided_json", {}, None),
        ("guided_regex", "a", "use structured_outputs"),
        ("audio", {"voice": "x"}, "audio is not supported"),
        ("chat_template_kwargs", {"a": 10**30}, "expected integers of 64 bits"),
    ],
)
def test_an_invalid_field_is_named_with_its_value(web, field, given, told):
    answer = web.chat(**{field: given})
    if told is None:
        assert answer.status == 200
        return
    error = refused(answer)
    assert told in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["param"].split(".")[0].split("[")[0] == field
    assert all_sent(web) == []


@pytest.mark.parametrize(
    ("messages", "param", "told"),
    [
        ([], "messages", "expected at least one"),
        ("hi", "messages", 'messages is "hi", expected an array'),
        (["hi"], "messages[0]", 'messages[0] is "hi", expected an object'),
        ([USER, {"content": "x"}], "messages[1].role", "messages[1].role is missing"),
        ([{"role": "user"}], "messages[0].content", "is null, expected text for the role user"),
        ([{"role": "user", "content": 5}], "messages[0].content", "is 5, expected"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0].type",
            "the model reads no images, audio or files",
        ),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "messages[0].content[0].text",
            "is missing",
        ),
    ],
)
def test_a_wrong_message_is_told_with_its_place(web, messages, param, told):
    error = refused(web.chat(messages=messages))
    assert error["param"] == param
    assert told in error["message"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"messages":"\xff"}', "not JSON"),
        (b'{"messages":"\\ud800"}', "not JSON"),
        (b'{"temperature":NaN}', "not JSON"),
        (b"[]", "the body is [], expected an object"),
        (b"3", "the body is 3, expected an object"),
        (b"{}", "messages is missing"),
        (b'{"temperature":1e999}', "temperature is wrong"),
        (b'{"x":' + b"[" * 100_000, "nested too deeply"),
        (b'{"tools":' + b"9" * 5000 + b"}", "tools is wrong"),
    ],
)
def test_a_body_that_cannot_be_read_is_told_so(web, body, told):
    error = refused(web.call("POST", "/v1/chat/completions", body))
    assert told in error["message"]


def test_json_in_json_is_not_too_deep(web):
    deep = {}
    for _ in range(150):
        deep = {"properties": {"x": deep}}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": deep}}
    error = refused(web.chat(response_format=schema))
    assert error["param"] == "response_format.json_schema.schema"
    assert "over 100 levels" in error["message"]


def test_a_body_over_the_limit_is_refused(web):
    error = refused(web.call("POST", "/v1/completions", b" " * (MAX_BODY + 1)), 413)
    assert error["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("event", "status", "code", "params"),
    [
        (Refused("context", "a", 9, 8), 400, "context_length_exceeded", ("messages", "prompt")),
        (Refused("overloaded", "a"), 429, "rate_limit_exceeded", (None, None)),
        (Refused("template", "a"), 400, None, ("messages", "prompt")),
        (Refused("grammar", "a"), 400, None, ("response_format", "response_format")),
        (Refused("empty", "a"), 400, None, ("messages", "prompt")),
        (Refused("input", "top_p is 7", field="top_p"), 400, None, ("top_p", "top_p")),
        (Refused("input", "a"), 400, None, (None, None)),
    ],
)
def test_a_refusal_is_an_ordinary_status(web, event, status, code, params):
    web.answers(event)
    for is_stream in (False, True):
        for ask, param in zip((web.chat, web.complete), params, strict=True):
            error = refused(ask(stream=is_stream), status)
            assert (error["code"], error["param"]) == (code, param)
            assert event.text in error["message"]


def test_a_refused_grammar_has_the_name_of_its_field_beside_the_message(web):
    web.answers(Refused("grammar", "the regex is empty"))
    error = refused(web.chat(structured_outputs={"regex": "a"}))
    assert (error["message"], error["param"]) == ("the regex is empty", "structured_outputs")


def test_a_long_prompt_is_refused_with_the_context_length(web):
    web.answers(Refused("context", "the prompt has 200 tokens", 200, 128))
    assert "the maximum context length is 128 tokens" in refused(web.chat())["message"]


def test_a_client_that_is_too_many_knows_when_to_come_back(web):
    web.answers(Refused("overloaded", "busy"))
    answer = web.chat()
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    assert refused(answer, 429)["type"] == "requests"


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (Overloaded("x"), 429, "requests"),
        (ServableUnavailable("x"), 503, "server_error"),
        (WorkerUnavailable("x"), 503, "server_error"),
        (DeadlineExceeded("x"), 504, "server_error"),
        (ServingError("x"), 500, "server_error"),
        (StageFailed("x"), 500, "server_error"),
        (Cancelled("x"), 499, "server_error"),
        (InvalidInputs("x"), 400, "invalid_request_error"),
        (TooLarge("x"), 413, "invalid_request_error"),
    ],
)
def test_every_kind_of_failure_has_a_status(web, error, status, kind):
    web.inference.script = lambda request: error
    assert refused(web.chat(), status)["type"] == kind


def test_unexpected_errors_are_hidden_from_clients(web, capfd):
    def script(request):
        raise OSError("/secret/path")

    web.inference.script = script
    error = refused(web.chat(), 500)
    assert error["type"] == "server_error"
    assert "secret" not in str(error)
    assert "/secret/path" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["toys", "TOY", "a/b"])
def test_an_unknown_model_is_told_which_there_are(web, name):
    error = refused(web.chat(model=name), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "toy, tuned, vectors" in error["message"]


def test_a_model_that_embeds_does_not_chat(web):
    error = refused(web.chat(model="vectors"))
    assert error["param"] == "model"
    assert "embeds" in error["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("said", ["error", "abort", "lost", "silence"])
def test_an_error_in_a_stream_is_its_last_event(web, path, said):
    begun = [Started(1, 0), Chunk(0, "Hi", (72,))]
    rest = {
        "error": [Chunk(0, "", (), None, "error", "out of memory")],
        "abort": [Chunk(0, "", (), None, "abort")],
    }.get(said, [])

    def script(request):
        call = web.inference.calls[-1]
        call.say([*begun, *rest], is_last=said == "silence")
        return ServingError("the worker died") if said == "lost" else None

    web.inference.script = script
    answer = web.call("POST", path, {"prompt": "a", "messages": [USER], "stream": True})
    assert answer.status == 200
    last = answer.chunks[-1]
    assert set(last) == {"error"}
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert b"[DONE]" not in answer.body
    words = {"error": "out of memory", "lost": "the worker died", "silence": "ended early"}
    assert words.get(said, "") in last["error"]["message"]


def test_a_model_that_fails_is_an_error_of_the_server(web):
    web.says(Chunk(0, "", (), None, "error", "out of memory"))
    assert "out of memory" in refused(web.chat(), 500)["message"]
    assert "out of memory" in refused(web.complete(), 500)["message"]


def test_every_answer_names_its_request(web):
    answers = [web.chat(), web.chat(stream=True), web.chat(n=0), web.call("GET", "/v1/models")]
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 4
    assert all(one.startswith("req_") for one in ids)


def test_a_request_can_bring_its_name(web):
    send = lambda name: web.call("GET", "/v1/models", None, {"x-request-id": name})  # noqa: E731
    assert send("trace-7/a").headers["x-request-id"] == "trace-7/a"
    assert send("two words").headers["x-request-id"].startswith("req_")
    assert send("x" * 129).headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    ("verb", "path", "allowed"),
    [("GET", "/v1/chat/completions", "POST"), ("DELETE", "/v1/models/toy", "GET, HEAD")],
)
def test_a_wrong_method_is_answered_with_the_allowed_method(web, verb, path, allowed):
    answer = web.call(verb, path)
    assert refused(answer, 405)["message"] == (
        f"the method is {verb}, expected {allowed.replace(', ', ' or ')}"
    )
    assert answer.headers["allow"] == allowed


def test_a_deadline_reaches_the_model(web):
    web.call("POST", "/v1/completions", {"prompt": "a"}, {"x-request-timeout": "2.5"})
    assert web.inference.calls[-1].request.timeout == 2.5
    answer = web.call("POST", "/v1/completions", {"prompt": "a"}, {"x-request-timeout": "soon"})
    assert "'soon'" in refused(answer)["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(("field", "value"), [("n", 17), ("priority", -1)])
async def test_fields_without_the_operators_permission_are_refused(
    path: str, field: str, value: int
):
    prompt = {"messages": [USER]} if "chat" in path else {"prompt": "Hi"}
    server = Server(openai_routes, WHOLE)
    reply = await server.post(path, {"model": "tiny", **prompt, field: value})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, field)
    assert f"{field} is {value}, expected" in error["message"]
    assert server.inference.sent == []
    allowed = LanguageRules(max_n=17, allows_priority=True)
    models = LanguageModels(server.inference, server.control, allowed)
    state = replace(server.state, models=models)
    again = Server(lambda _: openai_routes(state), WHOLE)
    assert (await again.post(path, {"model": "tiny", **prompt, field: value})).status_code == 200


async def test_the_name_at_a_hub_selects_a_model():
    server = Server(openai_routes, WHOLE)
    for name, status in (("org/tiny", 200), ("org/tinny", 404), ("tiny/org", 404)):
        reply = await server.post("/v1/completions", {"model": name, "prompt": "Hi"})
        assert reply.status_code == status


async def test_a_chat_template_that_the_operator_allows_reaches_the_model():
    server = Server(openai_routes, WHOLE)
    models = LanguageModels(server.inference, server.control, LanguageRules(allows_templates=True))
    state = replace(server.state, models=models)
    again = Server(lambda _: openai_routes(state), WHOLE)
    body = {"model": "tiny", "messages": [USER], "chat_template": "{{ messages }}"}
    assert (await again.post("/v1/chat/completions", body)).status_code == 200
    assert server.inference.sent[-1].chat_template == "{{ messages }}"
