"""Structural tags: free text until a trigger, then JSON of a tag's schema."""

import json

import pytest

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.grammar.structural_tags import to_lark
from tests.llm.grammar.test_grammar import compiler_of

TAGS = {
    "structures": [
        {"begin": "<f=get>", "schema": {"type": "integer"}, "end": "</f>"},
        {"begin": "<f=put>", "schema": {"type": "boolean"}, "end": "</f>"},
        {"begin": "$", "schema": {"enum": ["a b"]}, "end": ""},
    ],
    "triggers": ["<f=", "$"],
}
COMPILED = compiler_of()[1].compile(Grammar("lark", to_lark(json.dumps(TAGS))))


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("any text < f", True),
        ("x<f=get>12</f> y<f=put>true</f>", True),
        ('<f=get>1</f>$"a b" and more', True),
        ("x<f=get>true</f>", False),
        ("x<f=other>", False),
        ("x<f=get>1", False),
        ('$"b"', False),
    ],
)
def test_tag_once_begun_holds_its_schema(text: str, is_right: bool) -> None:
    state = COMPILED.begin()
    ids = compiler_of()[0].encode(text, add_special=False)
    for token_id in ids:
        if state.is_finished or not state.matcher.validate_tokens([token_id]):
            assert not is_right
            return
        state.advance(token_id)
    assert state.matcher.is_accepting() == is_right


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("[", "cannot be read"),
        ('{"structures": [{}], "triggers": []}', "expected structures"),
        ('{"structures": [{"begin": "a", "schema": {}, "end": ""}], "triggers": ["b"]}', "trigger"),
        ("[" * 50_000, "cannot be read"),
    ],
)
def test_tags_in_another_form_are_refused(source: str, problem: str) -> None:
    with pytest.raises(InvalidInputs, match=problem):
        to_lark(source)
