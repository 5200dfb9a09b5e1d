"""YAML of operators: whatever it says, the fault is told in one line."""

from itertools import product

import pytest

from mindspore_serving.core.yaml_text import load
from mindspore_serving.errors import InvalidInputs

TAGS = ("int", "float", "bool", "null", "str", "binary", "timestamp", "omap", "pairs", "set")
TAGS += ("seq", "map", "merge", "value", "python/object:os.system", "python/tuple", "foo")
VALUES = ("x", "''", "[a]", "{a: b}", "{[a]: b}", "0x", "-", "1e9999", "9" * 5000, "2001-99-99")
VALUES += ("2001-01-01T00:00:00+99:99", "1:" * 3000 + "1", "{=: 1}", "{<<: [1]}", "&a [*a]", "~")
FORMS = ("!!{0} {1}", "a: !!{0} {1}", "? !!{0} {1}\n: 1", "!{0} {1}")


@pytest.mark.parametrize("form", FORMS)
def test_every_value_behind_every_tag_of_yaml_is_a_value_or_a_fault(form: str) -> None:
    faults = []
    for tag, value in product(TAGS, VALUES):
        try:
            load(form.format(tag, value), "the file")
        except InvalidInputs as error:
            faults.append(str(error))
    assert len(faults) > 100
    assert all(fault.startswith("the file") and len(fault) < 400 for fault in faults)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("!!float " + "1:" * 3000 + "1", "OverflowError"),
        ("!!timestamp {=: 1}", "TypeError"),
        (str(2**64), "an integer of over 64 bits"),
        ("&a [*a]", "it is a part of itself"),
        ("&a {b: [{c: *a}]}", "it is a part of itself"),
    ],
)
def test_values_that_yaml_cannot_hold_are_named(text: str, fault: str) -> None:
    with pytest.raises(InvalidInputs, match=fault):
        load(text, "the file")


def test_duplicate_keys_in_yaml_are_refused() -> None:
    assert load("a: &x [1]\nb: *x\nc: [*x, *x]", "f") == {"a": [1], "b": [1], "c": [[1], [1]]}
    assert load(f"[{2**64 - 1}, -1]", "f") == [2**64 - 1, -1]


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


def test_equal_keys_of_different_or_merged_mappings_are_accepted():
    text = "base: &base {a: 1, b: 2}\nother:\n  <<: *base\n  a: 3\n'1': x\n1: y"
    assert load(text, "file") == {
        "base": {"a": 1, "b": 2},
        "other": {"a": 3, "b": 2},
        "1": "x",
        1: "y",
    }
