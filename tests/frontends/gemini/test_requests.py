"""What Gemini's routes do beyond what Google's client shows."""

import json

import pytest

from mindspore_serving.core.llm_messages import Chunk
from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.gemini.requests import GenerateContentRequest
from mindspore_serving.frontends.gemini.schemas import to_json_schema
from mindspore_serving.frontends.gemini.spelling import to_camel
from tests.frontends.openai.serving import spoken

GENERATE = "/v1beta/models/toy:generateContent"
STREAM = "/v1beta/models/toy:streamGenerateContent"
HELLO = {"contents": [{"parts": [{"text": "Hello"}]}]}


def test_names_in_snake_case_are_accepted(web):
    web.says(*spoken("Hi"))
    schema = {"type": "object", "properties": {"mime_type": {"type": "string"}}}
    sent = {
        "system_instruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Go."}]},
            {
                "role": "model",
                "parts": [{"function_call": {"name": "f", "args": {"mime_type": 1}}}],
            },
            {"parts": [{"function_response": {"name": "f", "response": {"file_uri": "a"}}}]},
        ],
        "tools": [{"function_declarations": [{"name": "f", "parameters_json_schema": schema}]}],
        "generation_config": {"max_output_tokens": 9, "thinking_config": {"thinking_budget": 3}},
    }
    assert web.call("POST", GENERATE, sent).status == 200
    assert web.sent.messages[0] == {"role": "system", "content": "Be brief."}
    assert web.sent.messages[2]["tool_calls"][0]["function"]["arguments"] == {"mime_type": 1}
    assert web.sent.messages[3]["content"] == '{"file_uri":"a"}'
    assert web.sent.tools[0]["function"]["parameters"] == schema
    assert (web.sent.params.max_tokens, web.sent.params.thinking_token_budget) == (9, 3)


def test_a_body_in_camel_case_or_no_json_is_unchanged():
    for body in (json.dumps(HELLO).encode(), b'{"system_instruction": ', b'"system_instruction"'):
        assert to_camel(body, GenerateContentRequest) == body


def test_a_model_with_a_namespace_is_found(web):
    web.says(*spoken("Hi"))
    assert web.call("POST", "/v1beta/models/org/toy:generateContent", HELLO).status == 200


def test_a_stream_without_alt_is_an_array(web):
    web.says(*spoken("Hel", "lo"))
    found = web.call("POST", STREAM, HELLO)
    parts = [one["candidates"][0]["content"]["parts"][0]["text"] for one in found.json]
    assert (found.headers["content-type"], "".join(parts)) == ("application/json", "Hello")
    assert web.call("POST", f"{STREAM}?alt=proto", HELLO).error["status"] == "INVALID_ARGUMENT"


def test_a_failed_stream_ends_with_an_error_of_the_form(web):
    failed = Chunk(0, "", (), None, "error", "broken")
    web.says(Chunk(0, "Hi", (72,)), failed)
    *_, last = web.call("POST", STREAM, HELLO).json
    assert (last["error"]["code"], last["error"]["status"]) == (500, "INTERNAL")
    events = web.call("POST", f"{STREAM}?alt=sse", HELLO).body.split(b"\n\n")
    assert events[0].startswith(b"data: ")
    assert json.loads(events[-2]) == last


def test_unseen_parts_and_tools_are_named(web):
    web.says(*spoken("Hi"))
    sent = {
        **HELLO,
        "contents": [*HELLO["contents"], {"role": "model", "parts": [{"executableCode": {}}]},
                     *HELLO["contents"]],
        "tools": [{"googleSearch": {}}, {"codeExecution": {}}],
        "safetySettings": [{"category": "HARM", "threshold": "NONE"}],
    }  # fmt: skip
    found = web.call("POST", GENERATE, sent)
    assert found.headers["x-ignored-fields"].split(", ") == [
        *("tools[0].googleSearch", "tools[1].codeExecution"),
        *("contents[1].parts[0].executableCode", "safetySettings"),
    ]
    assert web.sent.tools is None


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"contents": []}, "contents has no text"),
        ({"contents": [{"role": "boss", "parts": []}]}, 'contents[0].role is "boss"'),
        ({"contents": [{"parts": [{"text": 1}]}]}, "contents[0].parts[0].text is 1"),
        (
            {"contents": [{"role": "model", "parts": [{"functionCall": {"name": "f"}}]}]},
            "contents ends with a functionCall",
        ),
        (
            {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": ""}}]}]},
            "contents[0].parts[0].inlineData is not supported",
        ),
        ({"cachedContent": "cachedContents/a"}, "cachedContent is not supported"),
        ({"generationConfig": {"topK": 2.5}}, "generationConfig.topK is 2.5, expected an integer"),
        ({"generationConfig": {"topP": 2}}, "generationConfig.topP is 2"),
        ({"generationConfig": {"max_tokens": 2}}, "did you mean generationConfig.maxOutputTokens?"),
        ({"generationConfig": {"logprobs": 2}}, "expected responseLogprobs: true"),
        ({"generationConfig": {"responseModalities": ["IMAGE"]}}, 'expected ["TEXT"]'),
        ({"generationConfig": {"responseMimeType": "text/html"}}, "text/x.enum"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "has no enum of texts"),
        (
            {"generationConfig": {"responseMimeType": "text/plain", "responseSchema": {}}},
            "application/json with a schema",
        ),
        ({"generationConfig": {"responseSchema": {}, "responseJsonSchema": {}}}, "not both"),
        (
            {"generationConfig": {"thinkingConfig": {"thinkingLevel": "DEEP"}}},
            "generationConfig.thinkingConfig.thinkingLevel is",
        ),
        ({"generationConfig": {"thinkingConfig": {"thinkingBudget": -2}}}, "an integer >= -1"),
        ({"tools": [{"functionDeclarations": [{"name": "a b"}]}]}, '.name is "a b"'),
        ({"tools": [{"functionDeclarations": [{"name": "f"}] * 2}]}, "for the second time"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "expected functions with it"),
        (
            {"toolConfig": {"functionCallingConfig": {"allowedFunctionNames": ["f"]}}},
            'allowedFunctionNames is "f"',
        ),
        (
            {"generationConfig": {"responseJsonSchema": json.loads("[" * 150 + "]" * 150)}},
            "has over 100 levels",
        ),
    ],
)
def test_a_mistake_is_refused_in_the_form(web, fields, problem):
    found = web.call("POST", GENERATE, {**HELLO, **fields})
    assert (found.status, found.error["code"], found.error["status"]) == (
        400, 400, "INVALID_ARGUMENT"
    )  # fmt: skip
    assert problem in found.error["message"]
    assert not web.inference.calls


def test_a_model_that_ends_the_conversation_is_continued(web):
    web.says(*spoken("lo"))
    contents = [*HELLO["contents"], {"role": "model", "parts": [{"text": "Hel"}]}]
    assert web.call("POST", GENERATE, {"contents": contents}).status == 200
    assert web.sent.template_options["continue_final_message"] is True


def test_a_broken_call_is_left_out(web):
    web.says(Chunk(0, '<tool_call>\n{"name": "f", "arguments": {"a": ]}\n</tool_call>', (65,),
                   None, "stop"))  # fmt: skip
    sent = {**HELLO, "tools": [{"functionDeclarations": [{"name": "f"}]}]}
    candidate = web.call("POST", GENERATE, sent).json["candidates"][0]
    assert candidate["finishReason"] in ("STOP", "MALFORMED_FUNCTION_CALL")
    assert not any("functionCall" in part for part in candidate["content"]["parts"])


def test_a_failure_before_the_answer_has_its_status(web):
    web.inference.script = lambda request: ServingError("lost")
    assert web.call("POST", f"{STREAM}?alt=sse", HELLO).status == 500


def test_a_schema_of_gemini_becomes_json_schema():
    schema = {
        "type": "OBJECT",
        "properties": {
            "b": {"type": "ARRAY", "items": {"type": "NUMBER", "format": "float"}, "minItems": "2"},
            "a": {"type": "STRING", "nullable": True, "enum": ["x"], "format": "enum"},
            "c": {"anyOf": [{"type": "BOOLEAN"}, {"$ref": "#/$defs/d"}], "nullable": True},
        },
        "propertyOrdering": ["a", "b"],
        "defs": {"d": {"type": "STRING", "format": "date", "maxLength": 9}},
    }
    found = to_json_schema(schema)
    assert [*found["properties"]] == ["a", "b", "c"]
    assert found == {
        "type": "object",
        "properties": {
            "a": {"type": ["string", "null"], "enum": ["x", None]},
            "b": {"type": "array", "items": {"type": "number"}, "minItems": 2},
            "c": {"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/d"}, {"type": "null"}]},
        },
        "$defs": {"d": {"type": "string", "format": "date", "maxLength": 9}},
    }
