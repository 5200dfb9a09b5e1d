"""ChatGLM3's calls: shown by its built-in template, read at every cut, held by the grammar."""

import json

import pytest

from mindspore_serving.errors import InvalidField
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.chat.tool_formats import find_tool_format
from mindspore_serving.llm.chat.tool_grammars import auto_grammar, tool_grammar
from mindspore_serving.llm.checkpoint.chatglm import CHATGLM3
from tests.llm.chat.languages import Language, allows, make_language, tool
from tests.llm.chat.test_model_formats import PLACE, TOOLS, WEATHER, read

FORM = "chatglm3"
CALL = 'get_weather\n ```python\ntool_call(city="Paris", days=2, metric=True)\n```'


@pytest.fixture(scope="module")
def language() -> Language:
    return make_language(has_markers=False)


def test_built_in_template_shows_tools_calls_and_results() -> None:
    assert find_tool_format(CHATGLM3) == FORM
    name, arguments = WEATHER
    messages = [
        {"role": "user", "content": "Paris?"},
        {"role": "assistant", "content": None,
         "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}]},
        {"role": "tool", "content": "22"},
    ]  # fmt: skip
    text = ChatTemplate(CHATGLM3).render(messages, tools=TOOLS[:1])
    system, _, rest = text.partition("<|user|>")
    assert rest == f"\n Paris?<|assistant|>{CALL}<|observation|>\n 22<|assistant|>"
    shown = system[system.index("[\n") :]
    assert json.loads(shown) == [TOOLS[0]["function"]]
    asked = [{"role": "system", "content": "Use tools:"}, messages[0]]
    text = ChatTemplate(CHATGLM3).render(asked, tools=TOOLS[:1])
    assert text.startswith('[gMASK]sop<|system|>\n Use tools:\n[\n    {\n        "name"')
    assert text.count("<|system|>") == 1
    assert (
        ChatTemplate(CHATGLM3).render(asked).startswith("[gMASK]sop<|system|>\n Use tools:<|user|>")
    )


@pytest.mark.parametrize("before", ["", "\n I look.<|assistant|>"])
def test_call_is_read_the_same_at_every_cut(before: str) -> None:
    text = before + CALL
    whole = read([text], FORM)
    assert whole[1].strip() == before.removesuffix("<|assistant|>").strip()
    ((name, arguments),) = whole[2]
    assert (name, json.loads(arguments)) == WEATHER
    assert read(text, FORM) == whole
    for cut in range(1, len(text)):
        assert read([text[:cut], text[cut:]], FORM) == whole


@pytest.mark.parametrize(
    "text", ["\n Hello", "Hello", "get_weather", "get_moon\n ```python\ntool_call()\n```"]
)
def test_text_that_is_no_call_stays_text(text: str) -> None:
    assert read(text, FORM) == ("", text, [])


def test_grammar_holds_the_call(language: Language) -> None:
    forced = tool_grammar(FORM, TOOLS, None, parallel=True)
    free = auto_grammar(FORM, TOOLS, parallel=True)
    for grammar in (forced, free):
        assert allows(language, grammar, CALL)
        assert allows(language, grammar, "get_time\n ```python\ntool_call()\n```")
        for wrong in (("get_weather", "get_moon"), ("days", "nights"), ("True", "true")):
            assert allows(language, grammar, CALL.replace(*wrong)) == (
                grammar is free and wrong[0] == "get_weather"  # text of another line
            )
    assert allows(language, free, "\n I look.<|assistant|>" + CALL)
    assert not allows(language, forced, "\n I look.")


def test_names_that_python_cannot_write_are_refused() -> None:
    with pytest.raises(InvalidField, match="cannot be written"):
        tool_grammar(FORM, [tool("say it", PLACE)], None, parallel=False)
