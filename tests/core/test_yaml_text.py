"""YAML of an operator's files: keys that are there twice."""

import pytest

from mindspore_serving.core.yaml_text import load
from mindspore_serving.errors import InvalidInputs


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: 'a' is there twice"),
        ("a:\n  b: 1\n  b: 1", "line 3: 'b' is there twice"),
        ("- {b: 1, 'b': 2}", "line 1: 'b' is there twice"),
        ("1: x\n1: y", "line 2: '1' is there twice"),
    ],
)
def test_a_key_of_any_mapping_that_is_there_twice_is_refused_with_its_line(text, error):
    with pytest.raises(InvalidInputs, match=f"^file, {error}"):
        load(text, "file")


def test_equal_keys_of_different_mappings_and_a_merged_one_are_not_twice():
    text = "base: &base {a: 1, b: 2}\nother:\n  <<: *base\n  a: 3\n'1': x\n1: y"
    assert load(text, "file") == {
        "base": {"a": 1, "b": 2},
        "other": {"a": 3, "b": 2},
        "1": "x",
        1: "y",
    }
