"""NaN and infinities in JSON: as Python, Triton's clients and browsers write them."""

import json
import math
import re

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.core.graph import Method
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.wire import json_literals, ms_json
from mindspore_serving.wire.v2 import json_body
from tests.wire.v2.making import refuse_region, whole

NAN, INF = math.nan, math.inf
METHOD = Method("m", ("x",), ("y",), (), (0,))
FLOATS = ("float16", "float32", "float64")


def typed(dtype):
    return Method("m", ("x",), ("y",), (), (0,), dtypes={"x": np.dtype(dtype)})


def classic(method, body):
    return ms_json.decode(body, method, "s")


def in_parts(method, body):
    return ms_json.decode_items(ms_json.split(body), method, "s")


both = pytest.mark.parametrize("decode", [classic, in_parts])


def v2(datatype, data):
    """One instance of two elements."""
    head = b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"%b","data":' % datatype.encode()
    return whole(json_body.parse(head + data + b"}]}", None, refuse_region).body)


def equal(found, expected, kind="float32"):
    np.testing.assert_array_equal(found, np.array(expected, kind), strict=True)


@both
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize(
    "item", ["NaN", "[NaN]", "[1, NaN, -Infinity]", "[[2.5, NaN], [Infinity, 0]]"]
)
def test_literals_of_python_reach_float_inputs(decode, kind, item):
    (instance,) = decode(typed(kind), b'{"instances": [{"x": %b}]}' % item.encode())
    equal(instance["x"], json.loads(item), kind)


@both
def test_literals_without_a_known_type_are_float32(decode):
    first, second = decode(METHOD, b'{"instances": [{"x": NaN}, {"x": [1.5, -Infinity]}]}')
    equal(first["x"], NAN)
    equal(second["x"], [1.5, -INF])


@both
@pytest.mark.parametrize("kind", FLOATS)
def test_null_is_nan_of_float_inputs(decode, kind):
    items = decode(typed(kind), b'{"instances": [{"x": null}, {"x": [[1, null]]}, {"x": [null]}]}')
    for item, expected in zip(items, (NAN, [[1, NAN]], [NAN]), strict=True):
        equal(item["x"], expected, kind)


def test_null_beside_floats_is_nan_where_no_type_is_known():
    (item,) = classic(METHOD, b'{"instances": {"x": [[null, 1.5]]}}')
    equal(item["x"], [[NAN, 1.5]])


@pytest.mark.parametrize("kind", ["int32", "uint8", "bool", "str", None])
@pytest.mark.parametrize(
    "item", [b"null", b"[null]", b"[1, null]", b"[true, null]", b'["a", null]']
)
def test_null_is_refused_for_an_input_of_another_dtype_than_float(kind, item):
    method = METHOD if kind is None else typed(kind)
    with pytest.raises(InvalidInputs, match="null is a missing value of floats.*input x"):
        classic(method, b'{"instances": {"x": %b}}' % item)


@pytest.mark.parametrize("kind", ["int32", "uint8"])
def test_nan_for_integers_is_left_for_the_model_to_refuse(kind):
    (item,) = classic(typed(kind), b'{"instances": {"x": [1, NaN]}}')
    equal(item["x"], [1, NAN])


@pytest.mark.parametrize(("kind", "number"), [("float16", "7e4"), ("float32", "-1e300")])
@pytest.mark.parametrize("size", [3, 100])
def test_numbers_out_of_range_beside_nan_are_still_seen(kind, number, size):
    text = ", ".join(["NaN", number, *["NaN"] * (size - 2)])
    method = typed(kind)
    (item,) = classic(method, b'{"instances": {"x": [%b]}}' % text.encode())
    assert item["x"].dtype != method.dtypes["x"]  # left for the model to refuse
    with pytest.raises(InvalidInputs, match="out of the range of FP"):
        v2(f"FP{kind.removeprefix('float')}", b"[NaN, %b]" % number.encode())


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "BF16"])
@pytest.mark.parametrize("data", [b"[NaN, -Infinity]", b"[null, 1]", b"[[null, Infinity]]"])
def test_both_forms_reach_floats_of_protocol_v2(datatype, data):
    (item,) = v2(datatype, data)
    equal(item["x"].astype(float).ravel(), np.array(json.loads(data), float).ravel(), "f8")


def test_literals_in_parameters_are_not_taken_for_numbers():
    text = b'{"inputs":[],"parameters":{"temperature":NaN}}'
    with pytest.raises(InvalidInputs, match="invalid character"):
        json_body.parse(text, None, refuse_region)


TEXTS = ["NaN", "x, NaN", '\\"NaN\\"', "\\\\", "-Infinity", "[Infinity", "I N", "\\u004eaN"]


@both
@pytest.mark.parametrize("text", TEXTS)
def test_words_in_texts_stay_as_they_are(decode, text):
    method = Method("m", ("x", "NaN", "y"), ("z",), (), (0,), dtypes={"x": np.dtype("f4")})
    body = b'{"instances": [{"x": [NaN, 1], "NaN": "%b", "y": -Infinity}]}' % text.encode()
    (item,) = decode(method, body)
    assert item["NaN"] == json.loads(f'"{text}"')
    equal(item["x"], [NAN, 1])
    equal(item["y"], -INF)


NEARLY = """1NaN|NaN1|-NaN|NaN.5|NaNaN|1.NaN|+Infinity|1Infinity|Infinity0|--Infinity|nan|inf
1e400|1e400, NaN|NaN, }|NaN, \x01|NaN Infinity|NaN, 9E999999"""


@both
@pytest.mark.parametrize("item", re.split("[|\n]", NEARLY))
def test_texts_similar_to_literals_are_invalid_json(decode, item):
    with pytest.raises(InvalidInputs, match="Illegal JSON format"):
        decode(typed("f4"), b'{"instances": [{"x": [%b]}]}' % item.encode())


def test_numbers_that_stand_for_literals_are_chosen_anew():
    nan, *others = json_literals.Decoder().decode(b"[NaN, 9E0, 9E1, 1E9, 3.5]")
    assert math.isnan(nan)
    assert others == [9.0, 90.0, 1e9, 3.5]


def test_the_place_in_an_error_is_that_of_the_text():
    with pytest.raises(msgspec.DecodeError, match="byte 16"):
        json_literals.Decoder().decode(b"[NaN, Infinity, ?]")


def test_the_error_of_a_too_long_text_with_literals_has_a_hint():
    text = b"[NaN" + b" " * json_literals.MAX_SIZE + b"]"
    with pytest.raises(msgspec.DecodeError, match="at most 8388608 bytes: write null for NaN"):
        json_literals.Decoder().decode(text)
    with pytest.raises(InvalidInputs, match="at most 8388608 bytes: write null for NaN"):
        json_body.parse(b'{"inputs":' + text + b"}", None, refuse_region)


ANY = st.recursive(
    st.floats() | st.integers(-(2**60), 2**60) | st.text() | st.booleans() | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(ANY)
def test_json_written_by_python_is_decoded_as_by_python(value):
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        found = json_literals.Decoder().decode(text.encode())
        assert json.dumps(found) == json.dumps(json.loads(text))
