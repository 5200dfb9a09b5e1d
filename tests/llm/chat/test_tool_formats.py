import json

import numpy as np
import pytest

from mindspore_serving.core.llm_messages import Grammar, ToolCallDelta
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.chat.output_parser import OutputParser
from mindspore_serving.llm.chat.reasoning_formats import (
    as_requested,
    find_reasoning_format,
    reason_first,
)
from mindspore_serving.llm.chat.tool_formats import find_tool_format
from mindspore_serving.llm.chat.tool_grammars import tool_grammar
from tests.llm.chat.languages import CALL, CITY, NOW, TOOLS, WRITTEN, allows, make_language, tool
from tests.llm.chat_templates import LLAMA_3, MISTRAL, QWEN

HERMES = """
{%- for tool in tools %}{{ tool | tojson }}{% endfor %}
For each call return <tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>
{%- for tool_call in message.tool_calls %}
    {{- '<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
    {{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}
"""
QWEN_CODER = """<tool_call>\\n<function=name>\\n<parameter=x>\\nvalue\\n</parameter>\\n</function>
</tool_call>{% for name, value in tool_call.arguments | items %}{% endfor %}"""
GLM = "<tool_call>{function-name}\\n<arg_key>{key}</arg_key>{{ tool_call.arguments }}</tool_call>"
MISTRAL_TOOLS = "{{- '[TOOL_CALLS]' + call.name + '[ARGS]' + call.arguments }}"
INTERNLM = "{{ '<|action_start|><|plugin|>\\n' + call | tojson + '<|action_end|>' }}"
LLAMA_TAG = "{{- '<|python_tag|>' + tool_call.name + '.call(' }}"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (HERMES, "hermes"),
        (LLAMA_3, "llama3"),
        (LLAMA_TAG, "llama3"),
        (MISTRAL_TOOLS, "mistral"),
        (INTERNLM, "internlm"),
        (QWEN_CODER, "qwen3_coder"),
        (GLM, "glm"),
        ("{{ '<|channel|>commentary to=functions.' + name + '<|call|>' }}", "harmony"),
        (QWEN, ""),
        (MISTRAL, ""),
        ("", ""),
    ],
)
def test_the_tool_format_is_found_in_a_template(template, name):
    assert find_tool_format(template) == name


TURN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
BEGIN = "{% if add_generation_prompt %}<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (QWEN, "think"),
        (LLAMA_3, ""),
        (f"{TURN}{BEGIN}<think>\n{{% endif %}}", "think_open"),
        (f"{TURN}{BEGIN}{{% if thinking %}}<think>{{% else %}}</think>{{% endif %}}"
         "{% endif %}", "think"),
        (f"{TURN}{BEGIN}{{% if enable_thinking is false %}}<think></think>{{% else %}}<think>\n"
         "{% endif %}{% endif %}", "think_open"),
        ("[SYSTEM_PROMPT]reason in [THINK]...[/THINK]", "mistral"),
        ("<think>{{ raise_exception('no') }}", "think"),
    ],
)  # fmt: skip
def test_the_reasoning_format_is_found_in_a_template(template, name):
    assert find_reasoning_format(template) == name


def test_reasoning_that_is_turned_off_is_not_open():
    assert as_requested("think_open", {"enable_thinking": False}) == "think"
    assert as_requested("think_open", {"enable_thinking": True}) == "think_open"
    assert as_requested("think_open", {}) == "think_open"
    assert as_requested("", {"thinking": False}) == ""


@pytest.fixture(scope="module", params=[False, True], ids=["text", "special-tokens"])
def language(request):
    return make_language(request.param)


@pytest.mark.parametrize("tool_format", WRITTEN)
def test_a_grammar_allows_the_calls_of_models(language, tool_format):
    first, second, end = WRITTEN[tool_format]
    one = tool_grammar(tool_format, TOOLS, None, parallel=False)
    several = tool_grammar(tool_format, TOOLS, None, parallel=True)
    assert allows(language, one, first + end)
    assert not allows(language, one, first + second + end)
    assert allows(language, several, first + end)
    assert allows(language, several, first + second + end)
    assert not allows(language, several, "Hello")


def test_the_newer_form_of_mistral_is_allowed(language):
    grammar = tool_grammar("mistral", TOOLS, None, parallel=True)
    text = '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time[ARGS]{}'
    assert allows(language, grammar, text)
    assert not allows(language, grammar, '[TOOL_CALLS]get_moon[ARGS]{"city": "Paris"}')


def test_without_a_format_the_answer_is_an_object(language):
    grammar = tool_grammar("", TOOLS, None, parallel=True)
    assert allows(language, grammar, CALL % "arguments")
    assert not allows(language, grammar, CALL % "arguments" + "; " + NOW % "arguments")


def test_arguments_follow_the_schema_of_their_tool(language):
    grammar = tool_grammar("", TOOLS, None, parallel=False)
    assert not allows(language, grammar, '{"name": "get_weather", "arguments": {}}')
    assert not allows(language, grammar, '{"name": "get_time", "arguments": {"city": "Paris"}}')


def test_a_named_tool_is_the_only_tool_allowed(language):
    grammar = tool_grammar("hermes", TOOLS, "get_time", parallel=False)
    assert allows(language, grammar, f"<tool_call>\n{NOW % 'arguments'}\n</tool_call>")
    assert not allows(language, grammar, f"<tool_call>\n{CALL % 'arguments'}\n</tool_call>")


def test_references_are_those_of_each_tool(language):
    def pair(kind):
        schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}, "required": ["x"]}
        return schema | {"$defs": {"X": {"type": kind}}}

    grammar = tool_grammar(
        "", [tool("a", pair("integer")), tool("b", pair("boolean"))], None, False
    )
    assert allows(language, grammar, '{"name": "a", "arguments": {"x": 1}}')
    assert allows(language, grammar, '{"name": "b", "arguments": {"x": true}}')
    assert not allows(language, grammar, '{"name": "b", "arguments": {"x": 1}}')


@pytest.mark.parametrize("name", ['say "hi"', "a\\b", "größe", "a/b", "start"])
@pytest.mark.parametrize("tool_format", ["", "hermes", "mistral", "llama3", "internlm"])
def test_any_name_can_be_called(language, tool_format, name):
    grammar = tool_grammar(tool_format, [tool(name)], None, parallel=True)
    tokenizer, compiler = language
    text = sample(tokenizer, compiler.compile(grammar))
    parser = OutputParser(tool_format, "", [tool(name)])
    deltas = parser.feed(text) + parser.finish()
    assert deltas[:2] == [ToolCallDelta(0, name), ToolCallDelta(0, None, "{}")]


def sample(tokenizer, compiled, most=200):
    """An answer of tokens that are allowed, at random."""
    rng = np.random.default_rng(3)
    state, ids = compiled.begin(), []
    while not state.is_finished and len(ids) < most:
        mask = np.frombuffer(state.matcher.compute_bitmask(), np.uint8)
        allowed = np.nonzero(np.unpackbits(mask, bitorder="little"))[0]
        token_id = int(rng.choice(allowed))
        if token_id in tokenizer.eos_ids:
            break
        ids.append(token_id)
        state.advance(token_id)
        assert state.error is None
    return tokenizer.decode(ids, skip_special_tokens=False)


def test_arguments_are_those_of_the_schema_on_a_single_line(language):
    stated = {"type": "object", "properties": {"x": {"type": "number"}}}
    grammar = tool_grammar("", [tool("a", stated)], None, parallel=False)
    assert allows(language, grammar, '{"name": "a", "arguments": {"x": 1}}')
    assert allows(language, grammar, '{"name": "a", "arguments": {"x":1}}')
    for wrong in ('{"x": 1, "made_up": 2}', '{"x":  1}', '{\n"x": 1}'):
        assert not allows(language, grammar, f'{{"name": "a", "arguments": {wrong}}}')
    anything = {**stated, "additionalProperties": True}
    grammar = tool_grammar("", [tool("a", anything)], None, parallel=False)
    assert allows(language, grammar, '{"name": "a", "arguments": {"x": 1, "made_up": 2}}')


def test_a_tool_that_is_not_strict_may_have_an_unsupported_schema(language):
    unique = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    lenient = tool_grammar("", [tool("a", unique)], None, parallel=False)
    assert allows(language, lenient, '{"name": "a", "arguments": {"x": []}}')
    strict = tool_grammar("", [tool("a", unique, strict=True)], None, parallel=False)
    with pytest.raises(InvalidInputs, match="uniqueItems"):
        language[1].compile(strict)


def test_errors_of_tools_are_reported():
    with pytest.raises(InvalidInputs, match="'c'.*one of a, b"):
        tool_grammar("hermes", [tool("a"), tool("b")], "c", parallel=False)
    with pytest.raises(InvalidInputs, match="there are no tools"):
        tool_grammar("hermes", [], None, parallel=False)
    with pytest.raises(InvalidInputs, match="name is ''"):
        tool_grammar("hermes", [tool("")], None, parallel=False)
    with pytest.raises(InvalidInputs, match='has no "function"'):
        tool_grammar("hermes", [{"type": "function"}], None, parallel=False)
    with pytest.raises(InvalidInputs, match="'array'.*object"):
        tool_grammar("hermes", [tool("a", {"type": "array"})], None, parallel=False)


THOUGHT = "Hm, <b> </thin\n"


@pytest.mark.parametrize(
    ("grammar", "answer"),
    [
        (Grammar("json_object"), '{"a": 1}'),
        (Grammar("json_schema", json.dumps(CITY)), '{"city": "Paris"}'),
        (Grammar("json_schema", "true"), "12"),
        (Grammar("regex", r"a/b\/\d+"), "a/b/17"),
        (Grammar("lark", 'start: "start" x\nx: /start/ // start\n'), "startstart"),
        (tool_grammar("hermes", TOOLS, None, parallel=False), WRITTEN["hermes"][0]),
    ],
)
def test_a_constrained_answer_may_reason_first(language, grammar, answer):
    optional, needed = reason_first("think", grammar), reason_first("think_open", grammar)
    assert allows(language, optional, answer)
    assert allows(language, optional, f"<think>\n{THOUGHT}</think>\n\n{answer}")
    assert not allows(language, optional, f"<think>\n{THOUGHT}")
    assert allows(language, needed, f"{THOUGHT}</think>\n\n{answer}")
    assert not allows(language, needed, answer)
    assert not allows(language, needed, f"{THOUGHT}</think>\n\nHello")
    assert reason_first("", grammar) is grammar


@pytest.mark.parametrize("source", ["{", "[1]", "[" * 100_000])
def test_a_schema_that_is_none_is_refused_before_reasoning(source):
    with pytest.raises(InvalidInputs, match="json_schema"):
        reason_first("think", Grammar("json_schema", source))
