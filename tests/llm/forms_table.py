"""The tables of tested forms in docs/openai.md: which tests recognise, stream and hold each form.

`python -m tests.llm.forms_table` writes them anew, in English and Chinese.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspore_serving.llm.chat.reasoning_formats import REASONING_FORMATS
from mindspore_serving.llm.chat.tool_formats import GENERIC, TOOL_FORMATS
from tests.llm.chat import test_chatglm_calls as chatglm
from tests.llm.chat import test_forms as forms
from tests.llm.chat import test_model_formats as models
from tests.llm.chat import test_output_parser as parser
from tests.llm.chat import test_tagged_calls as tagged
from tests.llm.chat import test_tool_formats as formats

ROOT = Path(__file__).resolve().parents[2]
MARK = "<!-- tested forms -->\n"
COLUMNS = ("recognised", "streamed", "held")
# Page -> names of the columns, for calls and for reasoning.
PAGES = {
    "docs/openai.md": (
        ("form of calls", "recognized", "read at every cut", "held by a grammar"),
        ("form of reasoning", "recognized", "read at every cut", "before a held answer"),
    ),
    "docs/zh/openai.md": (
        ("调用的形式", "识别", "在每个截断位置读取", "由语法约束"),
        ("思考的形式", "识别", "在每个截断位置读取", "在受约束的回答之前"),
    ),
}


@dataclass(frozen=True)
class Cases:
    """A test, and the forms that it is about: values of `parameter`, or `names`."""

    column: str
    test: Callable[..., Any]
    parameter: str = ""
    names: tuple[str, ...] = ()

    def forms(self) -> Iterator[str]:
        yield from self.names
        for mark in getattr(self.test, "pytestmark", ()) if self.parameter else ():
            given = mark.args[0] if mark.name == "parametrize" else ""
            listed = given.split(", ") if isinstance(given, str) else list(given)
            if self.parameter in listed:
                for one in mark.args[1]:
                    values = getattr(one, "values", one if isinstance(one, tuple) else (one,))
                    yield str(values[listed.index(self.parameter)])


CHATGLM = (chatglm.FORM,)
HARMONY = ("harmony",)
CALLS: Mapping[str, Cases] = {
    "a": Cases("recognised", formats.test_the_tool_format_is_found_in_a_template, "name"),
    "b": Cases("recognised", models.test_format_is_recognized_by_its_template, "name"),
    "c": Cases(
        "recognised", chatglm.test_built_in_template_shows_tools_calls_and_results, "", CHATGLM
    ),
    "d": Cases("streamed", parser.test_calls_are_read_char_by_char, "tool_format"),
    "e": Cases("streamed", tagged.test_calls_are_json_however_their_text_is_cut, "tool_format"),
    "f": Cases("streamed", models.test_two_calls_are_read_the_same_at_every_cut, "name"),
    "g": Cases("streamed", chatglm.test_call_is_read_the_same_at_every_cut, "", CHATGLM),
    "h": Cases(
        "streamed",
        models.test_harmony_separates_reasoning_content_and_calls_at_every_cut,
        "",
        HARMONY,
    ),
    "i": Cases("held", formats.test_a_grammar_allows_the_calls_of_models, "tool_format"),
    "j": Cases("held", tagged.test_a_grammar_allows_the_calls_of_models, "tool_format"),
    "k": Cases("held", models.test_grammar_holds_calls_to_their_schema, "name"),
    "l": Cases("held", chatglm.test_grammar_holds_the_call, "", CHATGLM),
    "m": Cases(
        "held", models.test_harmony_grammar_ends_with_a_call_or_the_final_message, "", HARMONY
    ),
}
REASONING: Mapping[str, Cases] = {
    "n": Cases("recognised", formats.test_the_reasoning_format_is_found_in_a_template, "name"),
    "o": Cases("recognised", models.test_reasoning_is_recognized_by_its_markers, "name"),
    "p": Cases("streamed", forms.test_reasoning_is_read_the_same_at_every_cut, "name"),
    "h": CALLS["h"],
    "q": Cases("held", forms.test_answer_that_is_held_may_reason_first, "name"),
    "m": CALLS["m"],
}
ROWS = (
    ([name for name in TOOL_FORMATS if name not in ("", GENERIC)], CALLS),
    (list(REASONING_FORMATS), REASONING),
)


def cells(rows: list[str], tests: Mapping[str, Cases]) -> dict[tuple[str, str], str]:
    """The letters of the tests of each form, by form and column."""
    found = {(name, column): "" for name in rows for column in COLUMNS}
    for letter, cases in tests.items():
        for name in dict.fromkeys(cases.forms()):
            if (name, cases.column) in found:
                found[name, cases.column] += letter
    return found


def tables(columns: tuple[tuple[str, ...], ...]) -> str:
    lines: list[str] = []
    for names, (rows, tests) in zip(columns, ROWS, strict=True):
        found = cells(rows, tests)
        lines += [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
        for row in rows:
            shown = [", ".join(found[row, column]) for column in COLUMNS]
            lines.append(f"| {' | '.join([f'`{row}`', *shown])} |")
        lines.append("")
    for letter, cases in sorted({**CALLS, **REASONING}.items()):
        file = cases.test.__module__.replace(".", "/")
        lines.append(f"- {letter}: `{file}.py`, `{cases.test.__name__}`")
    return "\n".join(lines) + "\n"


def written(page: str) -> str:
    """The tables as they stand in a page."""
    return (ROOT / page).read_text().split(MARK)[1]


if __name__ == "__main__":
    for page, columns in PAGES.items():
        before, _, after = (ROOT / page).read_text().split(MARK)
        (ROOT / page).write_text(before + MARK + tables(columns) + MARK + after)
