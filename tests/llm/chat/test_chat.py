"""Chat templates: the text that transformers renders, and what is refused."""

import json
import re
from datetime import datetime

import pytest

from mindspore_serving.errors import InvalidField, InvalidInputs, StartError, TooLarge
from mindspore_serving.llm.chat.template import ChatTemplate, RenderLimits
from tests.llm.chat_templates import LLAMA_3, MISTRAL, QWEN
from tests.llm.tokenizers_trained import trained

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

CHAT = [
    {"role": "system", "content": "  Be brief. <&> "},
    {"role": "user", "content": "Wie heißt du? 你好 😀"},
    {"role": "assistant", "content": "<think>hm</think>\nIch heiße {{ name }}."},
    {"role": "user", "content": "{% raw %} & </s>\n"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "größe",
            "description": "<b>A & B</b> 'x'",
            "parameters": {"type": "object", "properties": {"z": {"type": "string"}, "a": {}}},
        },
    }
]
CALL = [
    {"role": "user", "content": "How big?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "größe", "arguments": {"z": "é", "n": None}}}],
    },
    {"role": "tool", "content": "42"},
    {"role": "tool", "content": "43"},
]


def render(template, messages=CHAT, **options):
    return ChatTemplate(template, SPECIAL).render(messages, **options)


def by_transformers(template, messages, options):
    pytest.importorskip("torch")
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained("byte_level"), **SPECIAL)
    options = dict(options)
    options |= options.pop("options", {})
    options.setdefault("add_generation_prompt", True)
    return tokenizer.apply_chat_template(
        messages, chat_template=template, tokenize=False, **options
    )


@pytest.mark.torch
@pytest.mark.parametrize("template", [LLAMA_3, QWEN, MISTRAL], ids=["llama3", "qwen", "mistral"])
@pytest.mark.parametrize(
    ("messages", "options"),
    [
        (CHAT, {}),
        (CHAT[1:], {}),
        (CHAT[:3], {"add_generation_prompt": False}),
        (CHAT, {"tools": TOOLS}),
        (CHAT, {"options": {"enable_thinking": False, "date_string": "1 Jan 2026"}}),
    ],
)
def test_a_chat_becomes_the_text_that_transformers_renders(template, messages, options):
    assert render(template, messages, **options) == by_transformers(template, messages, options)


@pytest.mark.torch
@pytest.mark.parametrize("template", [LLAMA_3, QWEN], ids=["llama3", "qwen"])
def test_calls_of_tools_become_the_text_that_transformers_renders(template):
    expected = by_transformers(template, CALL, {"tools": TOOLS})
    assert render(template, CALL, tools=TOOLS) == expected


def test_a_small_chat_by_hand():
    found = render(QWEN, [{"role": "user", "content": "Hi"}])
    assert found == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_content_of_messages_is_never_a_template():
    assert render("{{ messages[0].content }}", [{"role": "user", "content": "{{ 1 + 1 }}"}]) == (
        "{{ 1 + 1 }}"
    )


def test_the_date_of_today_can_be_asked_for():
    year = render("{{ strftime_now('%Y') }}")
    assert int(year) in (datetime.now().year, datetime.now().year - 1)


def test_variables_of_a_generation_block_stay_inside():
    template = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    assert render(template) == "21"


def test_messages_that_the_template_refuses_are_the_callers_fault():
    with pytest.raises(InvalidInputs, match="refuses the messages: Conversation roles must alter"):
        render(MISTRAL, [{"role": "assistant", "content": "Hi"}, CHAT[1]])


def test_a_failing_template_names_the_cause():
    with pytest.raises(InvalidInputs, match="failed on these messages: .*no attribute 'nothing'"):
        render("{{ messages[0].nothing.at_all }}")


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], "messages is empty, expected at least one message"),
        (["hi"], "messages[0] is of type str, expected an object"),
        ([{"content": "hi"}], "messages[0] has role None, expected a name"),
        ([CHAT[1], {"role": 5}], "messages[1] has role 5, expected a name"),
    ],
)
def test_messages_without_a_role_are_refused(messages, text):
    with pytest.raises(InvalidInputs, match=f"^{re.escape(text)}"):
        render(QWEN, messages)


SHOWN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool", "observation", "ipython"])
def test_a_known_role_is_shown_by_the_template(role):
    assert render(SHOWN, [{"role": role, "content": "hot"}]) == f"<{role}>hot"


def test_a_role_that_the_template_names_is_known():
    source = "{% if messages[0].role == 'narrator' %}Then {{ messages[0].content }}{% endif %}"
    assert render(source, [{"role": "narrator", "content": "it rained"}]) == "Then it rained"


@pytest.mark.parametrize("role", ["usr", "User", "human", "bot"])
def test_an_unknown_role_is_refused_with_the_roles(role):
    messages = [{"role": "user", "content": "a"}, {"role": role, "content": "b"}]
    text = f'messages[1].role is "{role}", expected one of system, user, assistant, tool'
    with pytest.raises(InvalidField, match=f"^{re.escape(text)}$"):
        render(SHOWN, messages)


def test_fields_that_are_null_are_not_there():
    message = {"role": "assistant", "content": "Hi", "tool_calls": None, "name": None}
    assert render(LLAMA_3, [message]) == render(LLAMA_3, [{"role": "assistant", "content": "Hi"}])


def test_a_content_that_is_null_is_no_word():
    message = {"role": "assistant", "content": None}
    assert render("[{{ messages[0].content }}]", [message]) == "[]"
    assert render("[{{ messages[0].content }}]", [{"role": "assistant"}]) == "[]"


DEEPSEEK_R1 = """
{%- for message in messages %}
{%- if message['role'] == 'assistant' and message['content'] is none %}
{%- for tool in message['tool_calls'] %}{{ '<call>' + tool['type'] + '<sep>'
+ tool['function']['name'] + '\\n```json\\n'
+ tool['function']['arguments'] + '\\n```' }}{% endfor %}
{%- elif message['role'] == 'assistant' %}{{ '<assistant>' + message['content'] }}
{%- else %}{{ '<user>' + message['content'] }}{% endif %}{% endfor %}"""


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_calls_are_shown_by_templates_that_ask_whether_there_is_a_content(content):
    call = {"id": "1", "function": {"name": "f", "arguments": {"a": "é"}}}
    messages = [{"role": "assistant", **content, "tool_calls": [call]}]
    assert render(DEEPSEEK_R1, messages) == '<call>function<sep>f\n```json\n{"a": "é"}\n```'


def test_arguments_are_json_wherever_a_template_wants_text():
    template = "{% set a = messages[0].tool_calls[0].arguments %}{{ a }} {{ a ~ '!' }} {{ a.x }}"
    call = {"name": "f", "arguments": {"x": True}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    assert render(template, messages) == '{"x": true} {"x": true}! True'


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("given", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_has_the_name_that_the_template_knows(name, given):
    message = {"role": "assistant", "content": "", given: "hm"}
    assert render("{{ messages[0]." + name + " }}", [message]) == "hm"


def test_documents_reach_the_template():
    shown = "{% for d in documents %}{{ d.text }}{% endfor %}"
    assert render(shown, options={"documents": [{"text": "One"}, {"text": "Two"}]}) == "OneTwo"
    assert render("{{ documents is none }}") == "True"


@pytest.mark.torch
@pytest.mark.parametrize("template", [LLAMA_3, QWEN, MISTRAL], ids=["llama3", "qwen", "mistral"])
@pytest.mark.parametrize("text", ["Sure: ", "Sure", " Sure,\n"])
def test_an_answer_goes_on_with_the_last_message_as_with_transformers(template, text):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]
    options = {"continue_final_message": True}
    expected = by_transformers(template, messages, {**options, "add_generation_prompt": False})
    assert render(template, messages, **options) == expected


def test_a_message_that_the_template_does_not_show_cannot_be_gone_on_with():
    with pytest.raises(InvalidInputs, match="does not render the last message"):
        render("nothing", continue_final_message=True)


def test_a_template_that_is_no_jinja_names_its_line():
    with pytest.raises(StartError, match="line 2 of the chat template"):
        ChatTemplate("\n{% if %}")


def test_a_text_over_the_limit_is_refused():
    template = ChatTemplate("{{ messages[0].content }}", limits=RenderLimits(max_chars=10))
    assert len(template.render([{"role": "user", "content": "x" * 10}])) == 10
    with pytest.raises(TooLarge, match="over 10 characters"):
        template.render([{"role": "user", "content": "x" * 11}])


@pytest.mark.parametrize(
    "template",
    [
        "{% macro nap() %}{% for i in range(99999) %}{% endfor %}{% endmacro %}{{ nap() }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60)}}",
        "{% set _deadline = 9e99 %}{% for i in range(99999) %}{% endfor %}",  # its own end put off
    ],
    ids=["loop", "macro", "deadline"],
)
def test_a_template_that_takes_too_long_is_stopped(template):
    now = iter(range(10**6))
    limits = RenderLimits(max_seconds=1000.0)
    with pytest.raises(TooLarge, match="too long"):
        ChatTemplate(template, limits=limits, clock=lambda: next(now)).render(CHAT)
    assert next(now) == 1002


@pytest.mark.parametrize(
    "expression",
    [
        "'x' * 10**9",
        "[0] * 9999999",
        "2 ** 99",
        "9999999 * 'x'",
        "'x'.ljust(1000000000)",
        "'x'.zfill(1000000000)",
        "'x' | center(1000000000)",
        "'x' | indent(1000000000, true)",
        "[1] | tojson(indent=1000000000)",
        "[1] | batch(1000000000, 'x') | list",
        "'%1000000000d' % 5",
        "'%*d' % (1000000000, 5)",
        "'{:>1000000000}'.format('x')",
        "'{:>{}}'.format('x', 1000000000)",
        "'{0.real:1000000000}'.format(1)",
        "('x' * 1000000).replace('x', 'y' * 1000)",
        "('x' * 1000000) | replace('x', 'y' * 1000)",
        "('y' * 10000).join(range(100000) | map('string') | list)",
        "range(100000) | join('y' * 10000)",
    ],
)
def test_a_template_cannot_make_something_huge(expression):
    with pytest.raises(TooLarge):
        render("{{ (" + expression + ") | length }}")


FORTY = "{% for i in range(40) %}"


@pytest.mark.parametrize(
    "template",
    [
        "{% set n = namespace(x='x') %}" + FORTY + "{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='x') %}" + FORTY + "{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}" + FORTY + "{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}"
        + FORTY
        + "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x=[1]) %}"
        + FORTY
        + "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
        "{% set n = namespace(x='x') %}"
        + FORTY
        + "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}{% endfor %}",
        "{% set n = namespace(x=9) %}" + FORTY + "{% set n.x = n.x * n.x %}{% endfor %}",
        "{% set y %}{% for i in range(99999) %}" + "x" * 10000 + "{% endfor %}{% endset %}",
    ],
)
def test_a_template_cannot_grow_something_huge(template):
    with pytest.raises(TooLarge):
        ChatTemplate(template, limits=RenderLimits(max_chars=100_000)).render(CHAT)


@pytest.mark.parametrize("name", ["lipsum(9)", "'x'.translate({120: 'y'})", "(1).to_bytes(9)"])
def test_functions_that_create_large_values_are_missing(name):
    with pytest.raises(InvalidInputs):
        render("{{ " + name + " }}")


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("'a,b'.split(',') | join('-')", "a-b"),
        ("messages | join('|', attribute='role')", "system|user|assistant|user"),
        ("'%s is %5.1f' % ('x', 2)", "x is   2.0"),
        ("'{:>4}|{}'.format('x', 20250101)", "   x|20250101"),
        ("'x' | center(5)", "  x  "),
        ("'a\\nb' | indent(2)", "a\n  b"),
        ("'aXa'.replace('X', 'Y') | replace('a', 'b')", "bYb"),
        ("[1, 2, 3] | batch(2) | list", "[[1, 2], [3]]"),
        ("{'a': [1]} | tojson(indent=2)", '{\n  "a": [\n    1\n  ]\n}'),
        ("'<' | e", "&lt;"),
        ("'x'.rjust(3) ~ 1 ~ none", "  x1None"),
    ],
)
def test_features_that_templates_use_work(expression, text):
    assert render("{{ " + expression + " }}") == text


def test_a_template_of_too_many_levels_is_refused():
    with pytest.raises(StartError, match="nested too deeply"):
        ChatTemplate("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")


@pytest.mark.parametrize(
    "expression",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ dict.mro() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ namespace(__class__=1) }}",
        "{% set n = namespace() %}{% set n.__init__ = 1 %}",
    ],
)
def test_a_template_reaches_nothing_outside_and_changes_nothing(expression):
    with pytest.raises(InvalidInputs):
        render(expression)


def test_a_macro_that_calls_itself_forever_is_stopped():
    with pytest.raises(InvalidInputs, match="recursion is too deep"):
        render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}")


def test_loops_know_their_length_and_neighbours():
    template = (
        "{% for m in messages if m.role == 'user' recursive %}{{ loop.length }}{{ loop.index }}"
        "{{ loop.last }}{{ loop.nextitem is defined }}{% endfor %}"
    )
    assert render(template) == "21FalseTrue22TrueFalse"


def write(directory, name, found):
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(found if isinstance(found, str) else json.dumps(found))


def test_the_template_of_the_tokenizers_configuration_is_found(tmp_path):
    assert ChatTemplate.open(tmp_path) is None
    write(tmp_path, "tokenizer_config.json", {"chat_template": "config {{ eos_token }}"})
    assert ChatTemplate.open(tmp_path, SPECIAL).render(CHAT) == "config </s>"


def test_a_template_file_goes_before_the_configuration(tmp_path):
    write(tmp_path, "tokenizer_config.json", {"chat_template": "config"})
    write(tmp_path, "chat_template.json", {"chat_template": "of the processor"})
    assert ChatTemplate.open(tmp_path).render(CHAT) == "of the processor"
    write(tmp_path, "chat_template.jinja", "file")
    assert ChatTemplate.open(tmp_path).render(CHAT) == "file"


def test_another_template_serves_chats_with_tools(tmp_path):
    templates = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "tools"},
    ]
    write(tmp_path, "tokenizer_config.json", {"chat_template": templates})
    assert ChatTemplate.open(tmp_path).render(CHAT) == "plain"
    assert ChatTemplate.open(tmp_path).render(CHAT, tools=TOOLS) == "tools"
    write(tmp_path, "additional_chat_templates/tool_use.jinja", "file")
    assert ChatTemplate.open(tmp_path).render(CHAT, tools=TOOLS) == "file"


@pytest.mark.parametrize("found", [5, [{"name": "default"}], ["x"]])
def test_a_configuration_that_holds_no_template_is_refused(tmp_path, found):
    write(tmp_path, "tokenizer_config.json", {"chat_template": found})
    with pytest.raises(StartError, match="chat_template is neither a string nor a list"):
        ChatTemplate.open(tmp_path)


def test_a_template_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(StartError, match=r"chat_template\.jinja cannot be read"):
        ChatTemplate.open(tmp_path)


def test_a_template_too_large_is_refused():
    with pytest.raises(StartError, match="has 2000000 characters, expected at most 1048576"):
        ChatTemplate("x" * 2_000_000)
