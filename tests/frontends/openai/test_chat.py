"""Chats: what the model is asked, what the client is told."""

import pytest

from mindspore_serving.core.llm_messages import Chunk
from tests.frontends.openai.serving import spoken, token

HELLO = {"role": "user", "content": "hello"}


def test_an_answer_is_an_object_with_message_usage_and_identity(web):
    web.says(Chunk(0, "Hi!", (72, 33, 2), None, "stop"), num_prompt=5, num_generated=3)
    answer = web.chat(model="toy")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    found = answer.json
    assert found.pop("id").startswith("chatcmpl-")
    assert found.pop("system_fingerprint").startswith("fp_")
    assert found.pop("created") > 1_700_000_000
    assert found == {
        "object": "chat.completion",
        "model": "toy",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi!", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 1},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
    }
    assert not web.sent.is_stream


def test_a_stream_is_these_bytes(web):
    web.says(*spoken("Hi", ' \u00e9\n"'))
    answer = web.chat(model="toy", stream=True)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    first = answer.chunks[0]
    head = (
        f'{{"id":"{first["id"]}","object":"chat.completion.chunk","created":{first["created"]},'
        f'"model":"toy","system_fingerprint":"{first["system_fingerprint"]}","choices":[{{"index":0,'
    )
    rest = [
        '"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}]}',
        '"delta":{"content":"Hi"},"logprobs":null,"finish_reason":null}]}',
        '"delta":{"content":" \u00e9\\n\\""},"logprobs":null,"finish_reason":null}]}',
        '"delta":{},"logprobs":null,"finish_reason":"stop"}]}',
    ]
    expected = "".join(f"data: {head}{end}\n\n" for end in rest) + "data: [DONE]\n\n"
    assert answer.body.decode() == expected


def test_usage_is_null_in_all_chunks_but_the_last(web):
    answer = web.chat(stream=True, stream_options={"include_usage": True})
    *others, last = answer.chunks
    assert [chunk["usage"] for chunk in others] == [None] * len(others)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 5
    assert len({chunk["id"] for chunk in answer.chunks}) == 1


def test_chunks_have_no_usage_unless_requested(web):
    chunks = web.chat(stream=True).chunks
    assert chunks
    assert [chunk for chunk in chunks if "usage" in chunk] == []


def test_stream_options_without_a_stream_are_refused(web):
    answer = web.chat(stream_options={"include_usage": True})
    assert (answer.status, answer.error["param"]) == (400, "stream_options")


def test_choices_of_a_stream_interleave_by_index(web):
    web.says(
        Chunk(1, "b", (98,)),
        Chunk(0, "a", (97,)),
        Chunk(0, "", (2,), None, "stop"),
        Chunk(1, "!", (33,), None, "length"),
    )
    told = [chunk["choices"][0] for chunk in web.chat(n=2, stream=True).chunks]
    assert [one["index"] for one in told] == [0, 1, 1, 0, 0, 1, 1]
    assert [one["finish_reason"] for one in told] == [None] * 4 + ["stop", None, "length"]
    assert web.sent.params.n == 2


def test_choices_of_an_answer_are_in_order(web):
    web.says(Chunk(1, "b", (98,), None, "stop"), Chunk(0, "a", (97,), None, "length"))
    choices = web.chat(n=2).json["choices"]
    assert [one["index"] for one in choices] == [0, 1]
    assert [one["message"]["content"] for one in choices] == ["a", "b"]


def test_logprobs_have_bytes_and_alternatives(web):
    best = token("\u00e9", -0.25, token("\u00e9", -0.25), token("x", -9999.0))
    web.says(Chunk(0, "\u00e9", (233,), (best,), "stop"))
    entry = {"token": "\u00e9", "logprob": -0.25, "bytes": [195, 169]}
    other = {"token": "x", "logprob": -9999.0, "bytes": [120]}
    expected = {"content": [{**entry, "top_logprobs": [entry, other]}], "refusal": None}
    assert web.chat(logprobs=True, top_logprobs=2).json["choices"][0]["logprobs"] == expected
    assert web.sent.params.logprobs == 2
    assert web.sent.has_tokens


def test_chunks_have_the_logprobs_of_their_own_tokens(web):
    tokens = [
        token("H", -1.0),
        token("\ufffd", -2.0, data=b"\xc3"),
        token("\ufffd", -3.0, data=b"\xa9"),
    ]
    web.says(
        Chunk(0, "H", (72,), (tokens[0],)),
        Chunk(0, "", (1,), (tokens[1],)),
        Chunk(0, "\u00e9", (1,), (tokens[2],)),
        Chunk(0, "", (2,), (token("</s>", -0.5, is_special=True),), "stop"),
    )
    told = [chunk["choices"][0] for chunk in web.chat(stream=True, logprobs=True).chunks]
    assert [one["delta"].get("content") for one in told] == ["", "H", "\u00e9", None]
    shown = [one["logprobs"] and [e["logprob"] for e in one["logprobs"]["content"]] for one in told]
    assert shown == [None, [-1.0], [-2.0, -3.0], [-0.5]]
    assert told[2]["logprobs"]["content"][0]["bytes"] == [0xC3]
    assert told[1]["logprobs"]["content"][0]["top_logprobs"] == []


@pytest.mark.parametrize("extra", [{"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 21}])
def test_wrong_top_logprobs_are_refused(web, extra):
    answer = web.chat(**extra)
    assert (answer.status, answer.error["param"]) == (400, "top_logprobs")
    assert str(extra["top_logprobs"]) in answer.error["message"] or "logprobs: true" in str(
        answer.error
    )


def test_missing_parameters_have_openais_defaults(web):
    web.chat()
    params = web.sent.params
    assert (params.max_tokens, params.temperature, params.top_p, params.n) == (None, 1.0, 1.0, 1)
    assert (params.seed, params.logprobs, params.stop) == (None, None, [])
    assert web.sent.grammar is None


def test_null_is_as_good_as_nothing(web):
    names = "max_tokens temperature top_p n stop seed logit_bias logprobs top_logprobs tools stream"
    assert web.chat(**dict.fromkeys(names.split())).status == 200


def test_every_sampling_parameter_reaches_the_model(web):
    given = {
        "temperature": 0.5,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.8,
        "top_k": 7,
        "n": 3,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.25,
        "repetition_penalty": 1.5,
        "logit_bias": {"5": -100, "6": 2.5},
        "min_tokens": 2,
        "ignore_eos": True,
        "stop_token_ids": [4],
        "bad_words": ["no"],
        "seed": 11,
    }
    answer = web.chat(**given, max_tokens=9, stop="X", include_stop_str_in_output=True)
    assert answer.status == 200
    params = web.sent.params
    told = {name: getattr(params, name) for name in given}
    assert told == {**given, "logit_bias": {5: -100.0, 6: 2.5}}
    assert (params.max_tokens, list(params.stop), params.include_stop) == (9, ["X"], True)


def test_some_values_have_other_names_here(web):
    web.chat(top_k=-1, seed=-1, stop=["a", "b"], max_completion_tokens=4, user="u", store=True)
    params = web.sent.params
    assert (params.top_k, params.seed, list(params.stop)) == (0, 2**64 - 1, ["a", "b"])
    assert params.max_tokens == 4


def test_other_fields_of_the_request_reach_the_model(web):
    web.chat(
        truncate_prompt_tokens=5,
        cache_salt="s",
        priority=2,
        reasoning_effort="low",
        chat_template_kwargs={"enable_thinking": True},
    )
    sent = web.sent
    assert (sent.truncate, sent.cache_salt, sent.priority, sent.adapter) == (5, "s", 2, "")
    assert sent.template_options == {"reasoning_effort": "low", "enable_thinking": True}


def test_no_effort_is_no_thinking(web):
    web.chat(reasoning_effort="none")
    assert web.sent.template_options == {"reasoning_effort": "none", "enable_thinking": False}


@pytest.mark.parametrize(
    "fields", [{"thinking_token_budget": 64}, {"reasoning": {"max_tokens": 64, "effort": "low"}}]
)
def test_reasoning_is_limited_by_either_name_of_its_budget(web, fields):
    web.chat(**fields)
    assert web.sent.params.thinking_token_budget == 64
    effort = {"reasoning_effort": "low"} if "reasoning" in fields else {}
    assert web.sent.template_options == effort


def test_negative_budget_is_refused_by_its_path(web):
    answer = web.chat(reasoning={"max_tokens": -1})
    assert answer.status == 400
    assert "reasoning.max_tokens is -1, expected an integer >= 0" in answer.error["message"]


def test_an_adapter_is_asked_by_its_name(web):
    assert web.chat(model="tuned").json["model"] == "tuned"
    assert web.sent.adapter == "tuned"
    assert web.inference.calls[-1].request.servable == "toy"


@pytest.mark.parametrize(
    ("wanted", "kind", "source"),
    [
        ({"type": "json_object"}, "json_object", ""),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}},
            "json_schema",
            '{"type":"null"}',
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {}}},
            "json_schema",
            "{}",
        ),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "json_object", ""),
        (
            {
                "type": "json_schema",
                "json_schema": {"name": "x", "strict": True, "schema": {"properties": {}}},
            },
            "json_schema",
            '{"properties":{},"additionalProperties":false}',
        ),
        ({"type": "json_object", "schema": {"type": "null"}}, "json_schema", '{"type":"null"}'),
        ({"type": "json_object", "value": {"type": "null"}}, "json_schema", '{"type":"null"}'),
        ({"type": "json", "value": {"type": "null"}}, "json_schema", '{"type":"null"}'),
        ({"type": "json", "value": '{"type":"null"}'}, "json_schema", '{"type":"null"}'),
        ({"type": "regex", "value": "a+"}, "regex", "a+"),
        ({"type": "json_schema", "value": {"schema": {}}}, "json_schema", "{}"),
        ({"type": "json_schema", "value": {"name": "x", "schema": {}}}, "json_schema", "{}"),
    ],
)
def test_a_response_format_is_a_grammar(web, wanted, kind, source):
    assert web.chat(response_format=wanted).status == 200
    assert (web.sent.grammar.kind, web.sent.grammar.source) == (kind, source)


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ({"type": "json"}, "response_format.value"),
        ({"type": "regex", "value": 5}, "response_format.value"),
        ({"type": "regex", "schema": {}}, "response_format.schema"),
        ({"type": "text", "value": "a+"}, "response_format.value"),
        ({"type": "json_object", "value": {}, "schema": {}}, "response_format.value"),
        ({"type": "json_object", "schema": 5}, "response_format.schema"),
        ({"type": "json_schema", "value": {"name": "x"}}, "response_format.value"),
        ({"type": "json_schema", "schema": {}}, "response_format.schema"),
    ],
)
def test_a_response_format_that_is_none_is_refused_and_never_ignored(web, wanted, param):
    answer = web.chat(response_format=wanted)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert web.inference.calls == []


def test_a_url_is_no_name_of_a_model(web):
    for url in (web.url, "https://example.org/endpoint"):
        assert web.chat(model=url).json["model"] == "toy"
    assert web.chat(model="ftp://example.org").status == 404
    assert web.call("GET", f"/v1/models/{web.url}").status == 404


def test_the_client_of_tgi_gets_a_role_in_every_event(web):
    web.says(*spoken("Hi", "!"))
    deltas = [one["choices"][0]["delta"] for one in web.chat(model="tgi", stream=True).chunks]
    assert [(one["role"], one["tool_calls"]) for one in deltas] == [("assistant", None)] * 4
    assert "".join(one.get("content") or "" for one in deltas) == "Hi!"
    assert b"[DONE]" not in web.chat(model="tgi", stream=True).body


def test_clients_of_openai_may_call_the_model_tgi(web):
    body = {"model": "tgi", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    sent = ("POST", "/v1/chat/completions", body, {"user-agent": "OpenAI/Python 3.52.0"})
    for answer in (web.call(*sent), web.chat(stream=True)):
        roles = ["role" in one["choices"][0]["delta"] for one in answer.chunks]
        assert roles == [True, *[False] * (len(roles) - 1)]
        assert b"[DONE]" in answer.body


def test_text_is_no_grammar(web):
    web.chat(response_format={"type": "text"})
    assert web.sent.grammar is None


@pytest.mark.parametrize(
    ("wanted", "kind", "source"),
    [
        ({"json": {"type": "null"}}, "json_schema", '{"type":"null"}'),
        ({"json": '{"type":"null"}'}, "json_schema", '{"type":"null"}'),
        ({"regex": "a+"}, "regex", "a+"),
        ({"choice": ["yes", 'n"o']}, "lark", 'start: CHOICE\nCHOICE: "yes" | "n\\"o"'),
        ({"grammar": 'start: "a"'}, "lark", 'start: "a"'),
        ({"grammar": 'root ::= "a"'}, "gbnf", 'root ::= "a"'),
    ],
)
def test_structured_outputs_are_grammars(web, wanted, kind, source):
    assert web.chat(structured_outputs=wanted).status == 200
    assert (web.sent.grammar.kind, web.sent.grammar.source) == (kind, source)


def test_the_grammar_of_a_chat_is_gbnf(web):
    assert web.chat(grammar='root ::= "a"').status == 200
    assert (web.sent.grammar.kind, web.sent.grammar.source) == ("gbnf", 'root ::= "a"')
    answer = web.chat(grammar='root ::= "a"', structured_outputs={"regex": "a"})
    assert (answer.status, answer.error["param"]) == (400, "structured_outputs")
