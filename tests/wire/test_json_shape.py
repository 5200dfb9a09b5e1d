"""Counting the values of JSON without reading it, against what reading it gives."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.wire import json_shape
from mindspore_serving.wire.json_shape import Shape, find_shape, has_more_items

ALL = Shape(10**9, 10**9)
TEXTS = st.text(st.sampled_from('ab,[]{}"\\: é\n'), max_size=9)
VALUES = st.recursive(
    st.none() | st.integers(0, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def count(value):
    """Values and objects, with one value more for a list or object that is empty."""
    if not isinstance(value, list | dict):
        return 1, 0
    inner = [count(one) for one in (value.values() if isinstance(value, dict) else value)]
    values = 1 + max(1, sum(one for one, _ in inner))
    return values, isinstance(value, dict) + sum(objects for _, objects in inner)


@given(VALUES, st.booleans(), st.integers(1, 64))
def test_the_counts_of_a_text_are_those_of_the_decoded_values(value, is_ascii, chunk):
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    whole = json_shape._CHUNK
    json_shape._CHUNK = chunk
    try:
        found = find_shape(text, ALL)
    finally:
        json_shape._CHUNK = whole
    assert (found.num_values, found.num_objects) == count(value)


def items_at(value, depth):
    """Items but for the first, of the lists and objects in `depth` others."""
    if not isinstance(value, list | dict):
        return 0
    if depth == 0:
        return max(0, len(value) - 1)
    inner = value if isinstance(value, list) else value.values()
    return sum(items_at(one, depth - 1) for one in inner)


@given(VALUES, st.integers(0, 3), st.integers(0, 6), st.integers(1, 64))
def test_items_are_counted_where_they_lie(value, depth, most, chunk):
    text = json.dumps(value).encode()
    whole = json_shape._CHUNK
    json_shape._CHUNK = chunk
    try:
        assert has_more_items(text, most, depth) == (items_at(value, depth) > most)
    finally:
        json_shape._CHUNK = whole


def test_marks_in_texts_are_no_values():
    text = json.dumps(",[{" * 300_000 + '\\"' * 300_000).encode()
    assert find_shape(text, ALL) == Shape(1, 0)


@pytest.mark.parametrize("most", [Shape(1000, 10**9), Shape(10**9, 1000)])
def test_counting_ends_where_a_limit_is_reached(most):
    text = b"[" + b"{}," * 1_000_000 + b"{}]"
    assert find_shape(text, most).num_values < 300_000
