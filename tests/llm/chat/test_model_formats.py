"""Calls as published models write them: recognized, read at every cut, and held by grammars."""

import json
from dataclasses import dataclass

import pytest
from tokenizers import AddedToken

from mindspore_serving.core.llm_messages import Grammar, ToolCallDelta
from mindspore_serving.errors import InvalidField
from mindspore_serving.llm.chat.deltas import Delta, PlainContent, Reasoning
from mindspore_serving.llm.chat.messages import Message
from mindspore_serving.llm.chat.output_parser import OutputParser
from mindspore_serving.llm.chat.reasoning_formats import find_reasoning_format, reason_first
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.chat.tool_formats import find_tool_format, with_system_tools
from mindspore_serving.llm.chat.tool_grammars import auto_grammar, tool_grammar
from mindspore_serving.llm.grammar.compiler import GrammarCompiler
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from tests.llm.chat.languages import Language, allows, tool
from tests.llm.tokenizers_trained import byte_level

PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "metric": {"type": "boolean"},
    },
    "required": ["city"],
}
TOOLS = [tool("get_weather", PLACE), tool("get_time", {"type": "object", "properties": {}})]
WEATHER = ("get_weather", {"city": "Paris", "days": 2, "metric": True})
TIME = ("get_time", {})
JSON = '{"city": "Paris", "days": 2, "metric": true}'


@dataclass(frozen=True)
class Form:
    """What a template shows, and an answer of two calls: before, first, between, second, end."""

    template: str
    begin: str
    first: str
    between: str
    second: str
    end: str

    @property
    def answer(self) -> str:
        return self.begin + self.first + self.between + self.second + self.end

    @property
    def single(self) -> str:
        return self.begin + self.first + self.end


def listed(template: str, begin: str, end: str, name="name", arguments="arguments") -> Form:
    return Form(
        template,
        f"{begin}[",
        f'{{"{name}": "get_weather", "{arguments}": {JSON}}}',
        ", ",
        f'{{"{name}": "get_time", "{arguments}": {{}}}}',
        f"]{end}",
    )


def dsml(section: str) -> Form:
    def parameter(name: str, is_text: str, value: str) -> str:
        return f'<｜DSML｜parameter name="{name}" string="{is_text}">{value}</｜DSML｜parameter>\n'

    city, days = parameter("city", "true", "Paris"), parameter("days", "false", "2")
    metric = parameter("metric", "false", "true")
    invoke = '<｜DSML｜invoke name="%s">\n%s</｜DSML｜invoke>\n'
    return Form(
        "{% set dsml = '｜DSML｜' %}{{ '<' + dsml + '" + section + ">' }}",
        f"<｜DSML｜{section}>\n",
        invoke % ("get_weather", city + days + metric),
        "",
        invoke % ("get_time", ""),
        f"</｜DSML｜{section}>",
    )


FORMS = {
    "deepseek_v3": Form(
        "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '```json'",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        f"```json\n{JSON}\n```<｜tool▁call▁end｜>",
        "\n",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": Form(
        "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ tool['name'] + '<｜tool▁sep｜>'",
        "<｜tool▁calls▁begin｜>",
        f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{JSON}<｜tool▁call▁end｜>",
        "",
        "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v32": dsml("function_calls"),
    "deepseek_v4": dsml("tool_calls"),
    "kimi_k2": Form(
        "<|tool_calls_section_begin|>{% for call in calls %}<|tool_call_begin|>{{ call['id'] }}",
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        f"{JSON}<|tool_call_end|>",
        "",
        "<|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
    "minimax": Form(
        '<minimax:tool_call>\n<invoke name="tool-name-1">',
        "<minimax:tool_call>\n",
        '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
        '<parameter name="days">2</parameter>\n<parameter name="metric">true</parameter>\n'
        "</invoke>\n",
        "",
        '<invoke name="get_time">\n</invoke>\n',
        "</minimax:tool_call>",
    ),
    "seed_oss": Form(
        "<seed:tool_call>\n<function=example_function_name>",
        "",
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n<parameter=metric>\ntrue\n</parameter>\n"
        "</function>\n</seed:tool_call>",
        "\n",
        "<seed:tool_call>\n<function=get_time>\n</function>\n</seed:tool_call>",
        "",
    ),
    "granite3": listed("respond only with <|tool_call|> followed by a list", "<|tool_call|>", ""),
    "phi4": listed("<|tool_call|>{{ calls }}<|/tool_call|>", "<|tool_call|>", "<|/tool_call|>"),
    "phi4_mini": listed("{{ 'functools' + calls | tojson }}", "functools", ""),
    "nemotron": listed("<TOOLCALL>{{ calls }}</TOOLCALL>", "<TOOLCALL>", "</TOOLCALL>"),
    "hunyuan": listed("<tool_calls>{{ calls }}</tool_calls>", "<tool_calls>", "</tool_calls>"),
    "pangu": listed("within [unused11][unused12] tags", "[unused11]", "[unused12]"),
    "command": listed(
        "<|START_ACTION|>{{ calls }}<|END_ACTION|>",
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        "tool_name",
        "parameters",
    ),
    "lfm2": Form(
        "List of tools: <|tool_list_start|>",
        "<|tool_call_start|>[",
        'get_weather(city="Paris", days=2, metric=True)',
        ", ",
        "get_time()",
        "]<|tool_call_end|>",
    ),
    "llama4": Form(
        "<|header_start|>system<|header_end|> function definitions with parameters",
        "[",
        'get_weather(city="Paris", days=2, metric=True)',
        ", ",
        "get_time()",
        "]",
    ),
    "gemma4": Form(
        "'<|tool_call>call:' + name + '{' + arguments + '}<tool_call|>'",
        "",
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2,metric:true}<tool_call|>',
        "",
        "<|tool_call>call:get_time{}<tool_call|>",
        "",
    ),
}
HARMONY_CALL = f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{JSON}"
THOUGHT = "<|channel|>analysis<|message|>Hm, <b>.<|end|><|start|>assistant"
MARKERS = [
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<|tool_calls_section_begin|>"),
    *("<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
    *("<|tool_call_end|>", "<|tool_call|>", "<|/tool_call|>", "<|START_ACTION|>"),
    *("<|END_ACTION|>", "<|tool_call_start|>", "<|tool_call>", "<tool_call|>", '<|"|>'),
    *("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"),
    *("<minimax:tool_call>", "</minimax:tool_call>", "<seed:tool_call>", "</seed:tool_call>"),
    *("[unused11]", "[unused12]"),
]


@pytest.fixture(scope="module", params=[False, True], ids=["text", "special-tokens"])
def language(request: pytest.FixtureRequest) -> Language:
    inner = byte_level()
    if request.param:
        inner.add_special_tokens([AddedToken(marker, normalized=False) for marker in MARKERS])
        inner.add_tokens([AddedToken("｜DSML｜", normalized=False)])  # not special in V3.2 either
    tokenizer = Tokenizer(inner, {"eos_token": "</s>"})
    return tokenizer, GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids)


def read(pieces, tool_format: str, reasoning_format: str = "", tools=TOOLS):
    """(reasoning, content, [(name, arguments as text)]) of an answer that comes in `pieces`."""
    parser = OutputParser(tool_format, reasoning_format, tools)
    deltas: list[Delta] = [delta for piece in pieces for delta in parser.feed(piece)]
    deltas += parser.finish()
    calls: list[list[str]] = []
    for delta in deltas:
        if isinstance(delta, ToolCallDelta) and delta.name is not None:
            assert delta.index == len(calls)
            calls.append([delta.name, delta.arguments])
        elif isinstance(delta, ToolCallDelta):
            assert delta.index == len(calls) - 1
            calls[-1][1] += delta.arguments
    texts = {
        kind: "".join(delta.text for delta in deltas if isinstance(delta, kind))
        for kind in (Reasoning, PlainContent)
    }
    return texts[Reasoning], texts[PlainContent], [tuple(call) for call in calls]


@pytest.mark.parametrize("name", FORMS)
def test_format_is_recognized_by_its_template(name: str) -> None:
    assert find_tool_format(FORMS[name].template) == name


@pytest.mark.parametrize("name", FORMS)
def test_two_calls_are_read_the_same_at_every_cut(name: str) -> None:
    text = FORMS[name].answer
    before = "" if name == "llama4" else "Let me look.\n"
    reasoning, content, calls = whole = read([before + text], name)
    assert (reasoning, content) == ("", before.rstrip())
    assert [(called, json.loads(arguments)) for called, arguments in calls] == [WEATHER, TIME]
    assert read(before + text, name) == whole  # a character at a time
    for cut in range(1, len(before + text)):
        assert read([(before + text)[:cut], (before + text)[cut:]], name) == whole


@pytest.mark.parametrize("name", FORMS)
def test_call_that_breaks_off_keeps_its_complete_part(name: str) -> None:
    form = FORMS[name]
    start = form.begin + form.first
    _, content, calls = read([start], name)
    assert (content, [called for called, _ in calls]) == ("", ["get_weather"])
    assert json.loads(calls[0][1]) == WEATHER[1]


@pytest.mark.parametrize("name", FORMS)
def test_text_after_a_marker_that_is_no_call_is_content(name: str) -> None:
    form = FORMS[name]
    marker = form.begin.rstrip("[\n") or form.first[: form.first.find(">") + 1] or "["
    text = f"{marker} no call"
    assert read([text], name) == ("", text, [])
    assert read(text, name) == ("", text, [])


@pytest.mark.parametrize("name", FORMS)
def test_grammar_holds_calls_to_their_schema(language: Language, name: str) -> None:
    form = FORMS[name]
    one = tool_grammar(name, TOOLS, None, parallel=False)
    several = tool_grammar(name, TOOLS, None, parallel=True)
    assert allows(language, one, form.single)
    assert not allows(language, one, form.answer)
    assert allows(language, several, form.answer)
    assert not allows(language, several, "Hello")
    assert not allows(language, several, form.answer.replace("get_weather", "get_moon"))
    free = auto_grammar(name, TOOLS, parallel=True)
    assert allows(language, free, "Hello, you [there]!")
    assert allows(language, free, form.answer)
    assert not allows(language, free, form.answer.replace("days", "nights"))
    if name != "llama4":
        assert allows(language, free, f"Let me look.\n{form.answer}")
    named = tool_grammar(name, TOOLS, "get_time", parallel=False)
    assert allows(language, named, form.begin + form.second + form.end)
    assert not allows(language, named, form.single)


@pytest.mark.parametrize("name", FORMS)
def test_optional_arguments_may_be_left_out(language: Language, name: str) -> None:
    form = FORMS[name]
    text = form.single
    for part in (', "days": 2', ", days=2", ",days:2", '<parameter name="days">2</parameter>\n',
                 "<parameter=days>\n2\n</parameter>\n",
                 '<｜DSML｜parameter name="days" string="false">2'
                 "</｜DSML｜parameter>\n"):  # fmt: skip
        text = text.replace(part, "")
    assert "days" not in text
    assert allows(language, tool_grammar(name, TOOLS, None, parallel=False), text)


@pytest.mark.parametrize("name", ["lfm2", "gemma4"])
def test_names_that_the_syntax_cannot_write_are_refused(name: str) -> None:
    with pytest.raises(InvalidField, match="cannot be written"):
        tool_grammar(name, [tool("say it", PLACE)], None, parallel=False)


def test_typed_keys_decide_the_type_of_a_value(language: Language) -> None:
    schema = {"type": "object", "properties": {"x": {}, "y": {"enum": ["a", "b"]}}}
    begin, end = '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n', "</｜DSML｜invoke>\n"
    grammar = tool_grammar("deepseek_v32", [tool("f", schema)], None, parallel=False)

    def call(key: str, is_text: str, value: str) -> str:
        parameter = f'<｜DSML｜parameter name="{key}" string="{is_text}">{value}'
        return f"{begin}{parameter}</｜DSML｜parameter>\n{end}</｜DSML｜function_calls>"

    for is_text, value in (("true", "5"), ("false", 5), ("true", 'a "b"\n</i>')):
        text = call("x", is_text, str(value))
        assert allows(language, grammar, text)
        ((_, arguments),) = read(text, "deepseek_v32", tools=[tool("f", schema)])[2]
        assert json.loads(arguments) == {"x": value}
    assert allows(language, grammar, call("y", "true", "b"))
    for wrong in (("y", "true", "c"), ("x", "false", "five"), ("y", "false", '"b"')):
        assert not allows(language, grammar, call(*wrong))


BOUNDED = {
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=x>\n%s\n</parameter>\n</function>\n"
    "</tool_call>",
    "glm": "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>",
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
    '<｜DSML｜parameter name="x" string="true">%s</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "gemma4": '<|tool_call>call:f{x:<|"|>%s<|"|>}<tool_call|>',
}


@pytest.mark.parametrize("name", BOUNDED)
def test_texts_without_quotes_keep_small_lengths(language: Language, name: str) -> None:
    text = {"type": "string", "minLength": 2, "maxLength": 5}
    schema = {"type": "object", "properties": {"x": text, "y": text}, "required": ["x"]}
    grammar = tool_grammar(name, [tool("f", schema, strict=True)], None, parallel=False)
    for value, is_allowed in (("a", 0), ("ab", 1), ("a<b>c", 1), ("abcdef", 0), ("日本", 1)):
        assert allows(language, grammar, BOUNDED[name] % value) == bool(is_allowed)


def test_values_of_python_calls_become_json() -> None:
    text = (
        "<|tool_call_start|>[get_weather(a='it\\'s', b=[1, 2.5, None], c={'x': (True, False)}, "
        'd="say \\"hi\\"", e=-3, f=true, g="a\nb")]<|tool_call_end|>'
    )
    _, content, calls = read(text, "lfm2")
    assert content == ""
    assert json.loads(calls[0][1]) == {
        "a": "it's",
        "b": [1, 2.5, None],
        "c": {"x": [True, False]},
        "d": 'say "hi"',
        "e": -3,
        "f": True,
        "g": "a\nb",
    }


@pytest.mark.parametrize(
    "value", ["f()", "x", "1 +", "b'a'", "{1, 2}", "1e999", "(", "[" * 200, "lambda: 1"]
)
def test_python_that_is_no_literal_is_no_call(value: str) -> None:
    text = f"<|tool_call_start|>[get_weather(city={value})]<|tool_call_end|>"
    _, _, calls = read(text, "lfm2")
    assert [json.loads(arguments or "{}") for _, arguments in calls if arguments != "{"] == []


def test_values_of_gemma_calls_become_json() -> None:
    text = (
        '<|tool_call>call:get_weather{a:<|"|>say "hi"\n<|"|>,b:[1,<|"|>x<|"|>,[]],'
        "c:{d:null,e:-2.5},f:word}<tool_call|>"
    )
    whole = read([text], "gemma4")
    assert json.loads(whole[2][0][1]) == {
        "a": 'say "hi"\n',
        "b": [1, "x", []],
        "c": {"d": None, "e": -2.5},
        "f": "word",
    }
    assert read(text, "gemma4") == whole


def test_gemma_grammar_names_members_of_nested_objects(language: Language) -> None:
    inner = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    schema = {"type": "object", "properties": {"p": inner,
              "q": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}}}  # fmt: skip
    grammar = tool_grammar("gemma4", [tool("f", schema)], None, parallel=False)
    call = "<|tool_call>call:f{%s}<tool_call|>"
    assert allows(language, grammar, call % 'p:{x:1},q:[<|"|>a<|"|>,<|"|>b<|"|>]')
    for wrong in ("p:{y:1}", "p:{}", 'q:[<|"|>c<|"|>]', "q:[1]"):
        assert not allows(language, grammar, call % wrong)


def test_harmony_separates_reasoning_content_and_calls_at_every_cut() -> None:
    text = (
        f"{THOUGHT}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
        f"{HARMONY_CALL}<|call|>"
        "<|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>{}<|call|>"
    )
    calls = [("get_weather", JSON), ("get_time", "{}")]
    assert read([text], "harmony", "harmony") == ("Hm, <b>.", "I look.", calls)
    for cut in range(1, len(text)):
        assert read([text[:cut], text[cut:]], "harmony", "harmony")[1:] == ("I look.", calls)
    assert read(text, "harmony", "harmony") == ("Hm, <b>.", "I look.", calls)


def test_harmony_answer_without_tools_is_its_final_message() -> None:
    text = f"{THOUGHT}<|channel|>final<|message|>4 < 5"
    assert read(text, "", "harmony", tools=[]) == ("Hm, <b>.", "4 < 5", [])
    assert read(["No <i>channel</i>."], "", "harmony", tools=[]) == ("", "No <i>channel</i>.", [])


def test_harmony_header_without_a_message_is_dropped() -> None:
    assert read("<|channel|>final", "harmony", "harmony") == ("", "", [])
    assert read("<|channel|>commentary to=functions.get_ti", "harmony", "harmony") == ("", "", [])


def test_harmony_grammar_ends_with_a_call_or_the_final_message(language: Language) -> None:
    final = "<|channel|>final<|message|>"
    free = auto_grammar("harmony", TOOLS, parallel=True)
    must = tool_grammar("harmony", TOOLS, None, parallel=True)
    for grammar in (free, must):
        assert allows(language, grammar, HARMONY_CALL)
        assert allows(language, grammar, THOUGHT + HARMONY_CALL)
        assert not allows(language, grammar, HARMONY_CALL.replace('"Paris"', "5"))
        assert not allows(language, grammar, HARMONY_CALL.replace("get_weather", "get_moon"))
    assert allows(language, free, f"{THOUGHT}{final}Hello")
    assert not allows(language, must, f"{THOUGHT}{final}Hello")
    formed = reason_first("harmony", Grammar("regex", "yes|no"))
    assert allows(language, formed, f"{THOUGHT}{final}yes")
    assert not allows(language, formed, f"{THOUGHT}{final}perhaps")


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<seed:think>{{ thought }}</seed:think>", "seed_oss"),
        ("<|channel>thought\n<channel|>", "gemma4"),
        ("<|START_THINKING|>{{ plan }}<|END_THINKING|>", "command"),
        ("<think>\n</think>\n<answer>\n", "hunyuan"),
        ("{{ '[unused9]' + role + content + '[unused10]' }}", "pangu"),
        ("<think>\n</think>\n<response>\n", "ernie"),
        ("<think></think><response>{% if add_generation_prompt %}<think>{% endif %}", "ernie_open"),
        ("<|channel|>analysis<|message|>", "harmony"),
    ],
)
def test_reasoning_is_recognized_by_its_markers(template: str, name: str) -> None:
    assert find_reasoning_format(template) == name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("seed_oss", "<seed:think>Hm.</seed:think>Yes."),
        ("pangu", "[unused16]Hm.[unused17]Yes."),
        ("gemma4", "<|channel>thought\nHm.<channel|>Yes."),
        ("command", "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>"),
        ("hunyuan", "<think>\nHm.\n</think>\n<answer>\nYes.\n</answer>"),
        ("ernie", "<think>\nHm.\n</think>\n\n<response>\nYes.\n</response>\n"),
        ("ernie_open", "Hm.\n</think>\n\n<response>\nYes.\n</response>\n"),
    ],
)
def test_reasoning_and_markers_of_the_answer_are_taken_off(name: str, text: str) -> None:
    assert [part.strip() for part in read([text], "", name, tools=[])[:2]] == ["Hm.", "Yes."]
    for cut in range(1, len(text)):
        reasoning, content, _ = read([text[:cut], text[cut:]], "", name, tools=[])
        assert (reasoning.strip(), content.strip()) == ("Hm.", "Yes.")


@pytest.mark.parametrize("name", ["command", "hunyuan", "ernie", "ernie_open"])
def test_form_of_an_answer_may_stand_between_its_markers(language: Language, name: str) -> None:
    grammar = reason_first(name, Grammar("regex", "yes|no"))
    thought = {"command": "<|START_THINKING|>hm<|END_THINKING|>", "ernie_open": "hm</think>"}.get(
        name, "<think>hm</think>"
    )
    begin, end = {
        "command": ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        "hunyuan": ("<answer>", "</answer>"),
    }.get(name, ("<response>", "</response>"))
    assert allows(language, grammar, f"{thought}{begin}yes{end}")
    assert allows(language, grammar, f"{thought}yes")
    assert not allows(language, grammar, f"{thought}{begin}perhaps{end}")


def test_objects_of_a_section_may_stand_without_a_list() -> None:
    text = (
        f'<tool_calls>\n{{"name": "get_weather", "arguments": {JSON}}}\n'
        '{"name": "get_time", "arguments": {}}\n</tool_calls>'
    )
    assert read(text, "hunyuan") == ("", "", [("get_weather", JSON), ("get_time", "{}")])


PHI_4_MINI = (
    "{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and "
    "message['tools'] is not none %}{{ '<|system|>' + message['content'] + '<|tool|>' + "
    "message['tools'] + '<|/tool|><|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' + "
    "message['content'] + '<|end|>' }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Be kind."}]])
def test_template_that_reads_tools_of_the_system_message_gets_them(system: list[Message]) -> None:
    template = ChatTemplate(PHI_4_MINI)
    assert find_tool_format(template.source) == "phi4_mini"
    messages = [*system, {"role": "user", "content": "Hi"}]
    text = template.render(list(with_system_tools(messages, TOOLS, template.source)))
    head, _, rest = text.partition("<|tool|>")
    shown, _, rest = rest.partition("<|/tool|>")
    assert head == f"<|system|>{'Be kind.' if system else ''}"
    assert [one["name"] for one in json.loads(shown)] == ["get_weather", "get_time"]
    assert rest == "<|end|><|user|>Hi<|end|>"
    assert with_system_tools(messages, [], template.source) is messages
