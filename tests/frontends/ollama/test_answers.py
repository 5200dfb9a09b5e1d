"""Ollama's protocol as bytes: what the model is asked, what is refused, what is ignored."""

import json
import re
from datetime import datetime

import numpy as np
import pytest
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Chunk, Refused
from mindspore_serving.core.reading_messages import Embedded
from tests.frontends.openai.serving import MAX_BODY, spoken

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CUT = '<tool_call>\n{"name": "add", "arguments": {"left": '


def chat(web, **fields):
    return web.call("POST", "/api/chat", {"model": "toy", "messages": HELLO, **fields})


def generate(web, **fields):
    return web.call("POST", "/api/generate", {"model": "toy", "prompt": "hello", **fields})


def lines(answer):
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson")
    return [json.loads(line) for line in answer.body.splitlines()]


def test_an_answer_is_streamed_as_lines_unless_stream_is_false(web):
    web.says(*spoken("Hi", "!"))
    first, second, last = lines(chat(web))
    assert (first["message"], first["done"]) == ({"role": "assistant", "content": "Hi"}, False)
    assert second["message"]["content"] == "!"
    assert (last["message"], last["done"]) == ({"role": "assistant", "content": ""}, True)
    assert [one["response"] for one in lines(generate(web))] == ["Hi", "!", ""]
    whole = chat(web, stream=False)
    assert whole.headers["content-type"] == "application/json"
    assert whole.json["message"]["content"] == "Hi!"
    assert {*last} == {*whole.json}


def test_times_are_measured_and_in_nanoseconds(web):
    web.says(*spoken("Hi", "!"))
    last = lines(chat(web))[-1]
    names = ("total_duration", "prompt_eval_duration", "eval_duration")
    total, prompt, answer = (last[name] for name in names)
    assert all(isinstance(one, int) for one in (total, prompt, answer))
    assert 0 < prompt + answer <= total


def test_an_answer_that_is_cut_off_has_no_half_call(web):
    web.says(Chunk(0, CUT, (1,), None, "length"))
    for is_stream in (True, False):
        last = lines(chat(web, tools=[TOOL]))[-1]
        if not is_stream:
            last = chat(web, tools=[TOOL], stream=False).json
        assert last["done_reason"] == "length"
        assert "tool_calls" not in last["message"]


@pytest.mark.parametrize(
    ("think", "options"),
    [
        (None, {}),
        (True, {"enable_thinking": True, "thinking": True}),
        (False, {"enable_thinking": False, "thinking": False}),
        ("high", {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    ],
)
def test_thinking_is_an_option_of_the_template(think, options, web):
    assert chat(web, think=think).status == 200
    assert web.sent.template_options == options
    web.control.card = replace(web.control.card, reasoning_format="")
    assert chat(web, think=think).status == (400 if think else 200)


def test_an_answer_that_was_begun_is_gone_on_with(web):
    chat(web, messages=[*HELLO, {"role": "assistant", "content": "The sea"}])
    assert web.sent.template_options["continue_final_message"]
    assert web.sent.messages[-1]["content"] == "The sea"


def test_options_are_translated(web):
    given = {"num_predict": -1, "seed": -1, "stop": "x", "repeat_penalty": 1.1, "min_p": 0.1}
    assert chat(web, options=given).status == 200
    params = web.sent.params
    assert (params.max_tokens, params.seed, params.stop) == (None, None, ["x"])
    assert (params.repetition_penalty, params.min_p) == (1.1, 0.1)
    assert chat(web, options={"repeat_penalty": 1.1, "repeat_last_n": 0}).status == 200
    assert web.sent.params.repetition_penalty == 1.0
    assert chat(web, options={"num_predict": "5", "top_k": 3.0}).status == 200
    assert (web.sent.params.max_tokens, web.sent.params.top_k) == (5, 3)
    assert chat(web, options={"mirostat": 2, "mirostat_tau": 3, "tfs_z": 1}).status == 200
    assert (web.sent.params.mirostat, web.sent.params.mirostat_tau) == (2, 3.0)


def test_long_inputs_are_shortened_only_on_request(web):
    for truncate, drops in ((None, False), (False, False), (True, True)):
        assert chat(web, truncate=truncate).status == 200
        assert web.sent.drop_turns is drops
    room = web.control.card.max_model_len - 1
    for truncate, most in ((None, None), (False, None), (True, room)):
        assert generate(web, truncate=truncate, raw=True).status == 200
        assert web.sent.truncate == most
    answer = generate(web, truncate=True)
    assert (answer.status, "only raw prompts are truncated" in answer.json["error"]) == (400, True)


def test_fields_without_effect_are_named(web):
    answer = chat(web, keep_alive="5m", options={"num_ctx": 4096, "shiny": 1}, glow=1)
    names = {"keep_alive", "options.num_ctx", "options.shiny", "glow"}
    assert set(answer.headers["x-ignored-fields"].split(", ")) == names
    assert "x-ignored-fields" not in chat(web, options={"top_k": 3}).headers


def test_a_model_without_a_chat_template_goes_on_with_the_prompt(web):
    web.control.card = replace(web.control.card, has_chat_template=False)
    assert generate(web).status == 200
    assert (web.sent.prompt, web.sent.messages) == ("hello", None)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"options": {"top_p": 2}}, "options.top_p is 2"),
        ({"options": {"num_predict": 0}}, "options.num_predict is 0"),
        ({"options": {"top_k": "many"}}, "options.top_k is wrong"),
        ({"options": {"num_predic": 5}}, "did you mean options.num_predict?"),
        ({"options": {"mirostat": 3}}, "options.mirostat is 3, expected an int of 0 to 2"),
        ({"options": []}, "options is [], expected an object"),
        ({"format": "xml"}, 'format is "xml", expected "json" or a JSON schema'),
        ({"top_logprobs": 21}, "top_logprobs is 21, expected 0 to 20"),
        ({"messages": [{"role": "user", "images": ["aGk="]}]}, "messages[0].images is not"),
        ({"tools": [{"type": "custom"}]}, "tools[0].custom is missing"),
        ({"mesages": []}, "did you mean messages?"),
    ],
)
def test_unsupported_fields_of_a_chat_are_refused(fields, text, web):
    if "mesages" in fields:
        answer = web.call("POST", "/api/chat", {"model": "toy", **fields})
    else:
        answer = chat(web, **fields)
    assert (answer.status, {*answer.json}) == (400, {"error"})
    assert text in answer.json["error"]
    assert not web.inference.calls


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"template": "{{ .Prompt }}"}, "template is not supported"),
        ({"context": [1, 2]}, "context is not supported"),
        ({"images": ["aGk="]}, "images is not supported: the model reads no images"),
        ({"system": "x", "raw": True}, "system is set, but the prompt is raw"),
    ],
)
def test_unsupported_fields_of_a_prompt_are_refused(fields, text, web):
    answer = generate(web, **fields)
    assert answer.status == 400
    assert text in answer.json["error"]
    empty = {name: type(value)() for name, value in fields.items() if name != "raw"}
    assert generate(web, **empty).status == 200


def test_refusals_of_the_model_use_ollamas_names(web):
    web.answers(Refused("input", "max_tokens is wrong", field="max_tokens"))
    assert chat(web).json == {"error": "num_predict is wrong"}


def test_fields_of_an_embedding(web):
    web.inference.script = lambda request: [
        Embedded(np.array([[0.6, 0.8]], "<f4").tobytes(), 2, (3,))
    ]
    ask = {"model": "vectors", "input": ["a"]}
    answer = web.call("POST", "/api/embed", {**ask, "truncate": True, "keep_alive": 5})
    assert (answer.status, answer.headers["x-ignored-fields"]) == (200, "keep_alive")
    for truncate, side in ((True, "right"), (None, "right"), (False, "")):
        web.call("POST", "/api/embed", {**ask, "truncate": truncate})
        assert web.sent.truncate == side
    answer = web.call("POST", "/api/embed", {**ask, "dimensions": 3})
    assert (answer.status, "dimensions is 3" in answer.json["error"]) == (400, True)
    answer = web.call("POST", "/api/embed", {"model": "toy", "input": "a"})
    assert "generates text; to embed" in answer.json["error"]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (("POST", "/api/chat", b"{"), 400),
        (("POST", "/api/chat", b" " * (MAX_BODY + 1)), 413),
        (("GET", "/api/chat", None), 405),
        (("POST", "/api/show", b'{"model":"x"}'), 404),
        (("POST", "/api/chat", b'{"model":"x","messages":[]}'), 404),
        (("POST", "/api/blobs/sha256:0", b"x"), 403),
        (("GET", "/api/me", None), 404),
    ],
)
def test_an_error_is_a_text(asked, status, web):
    answer = web.call(*asked)
    assert (answer.status, "error" in answer.json) == (status, True)


def test_an_answer_without_num_predict_has_the_operators_limit(web):
    web.control.card = replace(web.control.card, default_max_tokens=9)
    assert chat(web).status == 200
    assert web.sent.params.max_tokens == 9


def test_a_negative_num_predict_has_no_limit_but_the_context(web):
    web.control.card = replace(web.control.card, default_max_tokens=9)
    assert chat(web, options={"num_predict": -1}).status == 200
    assert web.sent.params.max_tokens is None


def test_a_shown_model_names_its_defaults_as_ollama_does(web):
    sampling = (("temperature", 0.7), ("repetition_penalty", 1.0))
    web.control.card = replace(web.control.card, sampling=sampling, default_max_tokens=9)
    shown = web.call("POST", "/api/show", {"model": "toy"}).json
    assert shown["parameters"] == "temperature 0.7\nrepeat_penalty 1.0\nnum_predict 9"


def test_open_webui_gets_all_its_answers(web):
    """Its connection check, list of models, a chat with its settings, embeddings of documents."""
    version = web.call("GET", "/api/version").json["version"]
    assert [int(one) for one in re.sub(r"^v|-.*", "", version).split(".")] > [0, 6, 4]
    models = {one["model"]: one for one in web.call("GET", "/api/tags").json["models"]}
    assert all(one["digest"] and "size" in one and one["details"] for one in models.values())
    loaded = {one["name"]: one["expires_at"] for one in web.call("GET", "/api/ps").json["models"]}
    assert {*loaded} == {*models}
    for text in loaded.values():
        assert datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() > 0
    for name in models:
        assert web.call("POST", "/api/show", {"name": name}).status == 200
    web.says(*spoken("Hi"))
    body = {
        "model": "toy:latest",
        "messages": HELLO,
        "stream": True,
        "keep_alive": "5m",
        "options": {"num_ctx": 8192, "temperature": 0.8, "num_predict": 128, "num_gpu": 1},
    }
    found = lines(web.call("POST", "/api/chat", body))
    assert "".join(one["message"]["content"] for one in found) == "Hi"
    assert {"total_duration", "prompt_eval_count", "eval_count"} <= {*found[-1]}
    web.inference.script = lambda request: [Embedded(np.zeros((2, 2), "<f4").tobytes(), 2, (3, 3))]
    body = {"model": "vectors:latest", "input": ["a", "b"], "truncate": True}
    assert len(web.call("POST", "/api/embed", body).json["embeddings"]) == 2
    unload = {"model": "toy:latest", "keep_alive": 0, "prompt": ""}
    assert web.call("POST", "/api/generate", unload).status == 403


def test_suffix_of_a_prompt_makes_no_chat(web):
    generate(web, prompt="def f(", suffix="return x")
    assert (web.sent.prompt, web.sent.suffix, web.sent.messages) == ("def f(", "return x", None)


def test_tools_of_other_kinds_are_left_out_and_named(web):
    answer = chat(web, tools=[{"type": "browser"}])
    assert (answer.status, answer.headers["x-ignored-fields"]) == (200, "tools[0]")
    assert web.sent.tools is None
