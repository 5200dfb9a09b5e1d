"""Forms of reasoning, each read at every cut and allowed before an answer that a grammar holds."""

import pytest

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.llm.chat.reasoning_formats import REASONING_FORMATS, reason_first
from tests.llm.chat.languages import Language, allows, make_language
from tests.llm.chat.test_model_formats import read

# Harmony's channels are read by themselves: `test_model_formats`.
MARKED = [name for name, row in REASONING_FORMATS.items() if name != "harmony"]


def answer(name: str, text: str) -> str:
    """A thought and an answer in the marks of a form."""
    row = REASONING_FORMATS[name]
    begin = "" if row.is_open else row.begin
    return f"{begin}Hm, <b>.\n{row.end}\n\n{row.answer[0]}{text}{row.answer[1]}"


@pytest.mark.parametrize("name", MARKED)
def test_reasoning_is_read_the_same_at_every_cut(name: str) -> None:
    text = answer(name, "Yes.")
    for pieces in ([text], list(text), *[[text[:i], text[i:]] for i in range(1, len(text))]):
        reasoning, content, _ = read(pieces, "", name, tools=[])
        assert (reasoning, content) == ("Hm, <b>.", "Yes.")


@pytest.fixture(scope="module")
def language() -> Language:
    return make_language(has_markers=False)


@pytest.mark.parametrize("name", MARKED)
def test_answer_that_is_held_may_reason_first(language: Language, name: str) -> None:
    grammar = reason_first(name, Grammar("regex", "yes|no"))
    assert allows(language, grammar, answer(name, "yes"))
    assert not allows(language, grammar, answer(name, "perhaps"))
    assert allows(language, grammar, "yes") != REASONING_FORMATS[name].is_open
