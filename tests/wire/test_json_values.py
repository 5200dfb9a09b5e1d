"""Every row of the table of JSON values; expected arrays and texts are written by hand."""

import base64

import numpy as np
import pytest

from mindspore_serving.core.value import BoxedBytes, BoxedStr
from mindspore_serving.errors import InvalidInputs, StageFailed
from mindspore_serving.wire.json_values import to_plain, to_value


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def nested(value, depth):
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (1, np.int32, ()),
        (-(2**31), np.int32, ()),
        (2**31 - 1, np.int32, ()),
        (1.5, np.float32, ()),
        (3.4028235e38, np.float32, ()),
        (True, np.bool_, ()),
        (False, np.bool_, ()),
        ([1, 2, 3], np.int32, (3,)),
        ([1.0, 2.5], np.float32, (2,)),
        ([True, False], np.bool_, (2,)),
        ([[1, 2], [3, 4], [5, 6]], np.int32, (3, 2)),
        ([[[1.0], [2.0]], [[3.0], [4.0]]], np.float32, (2, 2, 1)),
        (nested([7], 31), np.int32, (1,) * 32),
    ],
)
def test_numbers_become_int32_float32_and_bool(value, dtype, shape):
    array = to_value(value)
    np.testing.assert_array_equal(array, np.array(value, dtype).reshape(shape), strict=True)
    assert array.flags.writeable


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (1, "f4"),
        (5.0, "i4"),
        ([1, 2.5], "f4"),
        ([[1], [2]], "f2"),
        ([[1.0, 2], [3, 4]], "i8"),
        ([0, 255], "u1"),
        ([2**63 - 1], "i8"),
        ([2**64 - 1], "u8"),
        ([0.1, 1e300], "f8"),
        ([65504], "f2"),
        ([True], "?"),
    ],
)
def test_numbers_become_the_type_that_the_model_wants(value, wanted):
    array = to_value(value, np.dtype(wanted))
    np.testing.assert_array_equal(array, np.array(value, wanted), strict=True)
    assert array.flags.writeable


@pytest.mark.parametrize(
    ("value", "wanted", "left"),
    [
        (5.5, "i4", "f4"),
        ([1, 5.5], "i4", "f4"),
        (300, "u1", "i4"),
        (2**40, "i4", "i8"),
        ([-(2**40)], "u8", "i8"),
        (1e39, "f4", "f8"),
        ([1, 1e39], "i4", "f8"),
        (70000, "f2", "i4"),
        ([True, False], "f4", "?"),
        (True, "i4", "?"),
        ([1], "?", "i4"),
    ],
)
def test_numbers_that_do_not_fit_keep_a_dtype_that_the_model_refuses(value, wanted, left):
    np.testing.assert_array_equal(
        to_value(value, np.dtype(wanted)), np.array(value, left), strict=True
    )


def test_a_number_that_fits_no_type_is_refused():
    with pytest.raises(InvalidInputs, match="integer is out of the range of int32"):
        to_value([2**70], np.dtype("u1"))


def test_an_object_keeps_its_own_type():
    given = {"b64": "AQI=", "type": "int8", "shape": [2]}
    assert to_value(given, np.dtype("f4")).dtype == np.int8


@pytest.mark.parametrize(
    ("value", "expected", "kind"),
    [
        ("hi", "hi", str),
        ("", "", str),
        (["hi"], "hi", BoxedStr),
        ({"b64": "AQI="}, b"\1\2", bytes),
        ({"b64": ""}, b"", bytes),
        ({"b64": "AQI=", "type": "bytes", "shape": [1]}, b"\1\2", BoxedBytes),
        ({"b64": "aGk=", "type": "str"}, "hi", str),
        ({"b64": "aGk=", "type": "str", "shape": []}, "hi", str),
        ({"b64": "aGk=", "type": "str", "shape": [1]}, "hi", BoxedStr),
        ([{"b64": "AQI="}], b"\1\2", BoxedBytes),
        ([{"b64": "aGk=", "type": "str"}], "hi", BoxedStr),
    ],
)
def test_texts_and_bytes(value, expected, kind):
    result = to_value(value)
    assert result == expected
    assert type(result) is kind


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("int8", "i1"),
        ("int16", "<i2"),
        ("int32", "<i4"),
        ("int64", "<i8"),
        ("uint8", "u1"),
        ("uint16", "<u2"),
        ("uint32", "<u4"),
        ("uint64", "<u8"),
        ("fp16", "<f2"),
        ("fp32", "<f4"),
        ("fp64", "<f8"),
        ("float16", "<f2"),
        ("float32", "<f4"),
        ("float64", "<f8"),
        ("bool", "?"),
    ],
)
def test_any_number_type_travels_in_base64(name, dtype):
    array = np.array([[1, 0, 1]]).astype(dtype)
    result = to_value({"b64": b64(array.tobytes()), "type": name, "shape": [1, 3]})
    np.testing.assert_array_equal(result, array, strict=True)
    scalar = to_value({"b64": b64(array[0, 0].tobytes()), "type": name})
    np.testing.assert_array_equal(scalar, array[0, 0].reshape(()), strict=True)
    assert result.flags.writeable


def test_an_empty_tensor_travels_in_base64():
    assert to_value({"b64": "", "type": "int32", "shape": [2, 0]}).shape == (2, 0)


KEYS = "['b64', 'type', 'shape']"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "json value is null, it is not supported"),
        (2**31, "integer is out of the range of int32"),
        (-(2**31) - 1, "integer is out of the range of int32"),
        ([1, 2**31], "integer is out of the range of int32"),
        (2**70, "integer is out of the range of int32"),
        (1e60, "number is out of the range of float32"),
        ([1.0, -1e60], "number is out of the range of float32"),
        (3.40282357e38, "number is out of the range of float32"),
        ([], "json array, shape is empty"),
        ([[]], "json array, data type is unknown"),
        ([[], [1]], "json array, data type is unknown"),
        ([1, 2.0], "json array, elements type is not equal: float, integer"),
        ([1.0, 2], "write 1.0, not 1, beside floats"),
        ([1, True], "json array, elements type is not equal: bool, integer"),
        ([1, "a"], "json array, elements type is not equal: integer, string"),
        ([None], "json array, data should be number, bool, string or bytes"),
        ([1, None], "json array, data should be number, bool, string or bytes"),
        ([1, [2]], "json array, data should be number, bool, string or bytes"),
        ([[1], 2], "invalid json array: json type is not array"),
        ([[1, 2], [3]], "invalid json array: json size is 1, the dim 1 expected to be 2"),
        ([[[1], [2]], [[3], [4, 5]]], "json size is 2, the dim 2 expected to be 1"),
        (nested([7], 32), "more than 32 dimensions"),
        (["a", "b"], "json array, string or bytes type only support one item"),
        ([{"b64": ""}, {"b64": ""}], "json array, string or bytes type only support one item"),
        (
            [{"b64": "AQ==", "type": "int8"}],
            "json array, item is object type, object only support string or bytes type",
        ),
        ([["a"]], "shape can only be (1,) or empty, but given shape is [1, 1]"),
        ([[{"b64": ""}]], "shape can only be (1,) or empty, but given shape is [1, 1]"),
        ({}, "json object, 'b64' should be specified only one time"),
        ({"type": "int8"}, "json object, 'b64' should be specified only one time"),
        (
            {"b64": "", "type": "str", "shape": [], "x": 1},
            f"json object, items size is more than 3, only support specified {KEYS}",
        ),
        ({"b64": "", "x": 1}, f"json object, key is not {KEYS}, fail key:x"),
        ({"b64": "", "type": 1}, "json object, key is 'type', value should be string type"),
        ({"b64": "", "type": "int"}, "json object, specified type:'int' is illegal"),
        ({"b64": "", "shape": 1}, "json object, key is 'shape', value should be array type"),
        ({"b64": "", "shape": [-1]}, "array value should be unsigned integer"),
        ({"b64": "", "shape": [1.0]}, "array value should be unsigned integer"),
        ({"b64": "", "shape": [True]}, "array value should be unsigned integer"),
        ({"b64": "", "type": "int8", "shape": [0, 1]}, "invalid shape value [0, 1]"),
        ({"b64": "", "type": "int8", "shape": [2**70]}, "invalid shape value"),
        ({"b64": "", "type": "int8", "shape": [1] * 33}, "at most 32 dimensions"),
        ({"b64": "AQ==", "shape": [2]}, "json object, only support scalar when data type is str"),
        ({"b64": "AQ==", "type": "str", "shape": [0]}, "json object, only support scalar when"),
        ({"b64": "AQ==", "shape": [1, 1]}, "but given shape is [1, 1]"),
        ({"b64": "AQI"}, "'AQI' is illegal b64 encode string"),
        ({"b64": "AQ=I"}, "'AQ=I' is illegal b64 encode string"),
        ({"b64": "A_-="}, "'A_-=' is illegal b64 encode string"),
        ({"b64": "AQ\n="}, "is illegal b64 encode string"),
        ({"b64": "\u00e9\u00e9\u00e9\u00e9"}, "is illegal b64 encode string"),
        ({"b64": "*" * 1000}, f"'{'*' * 64}...' is illegal b64 encode string"),
        ({"b64": 1}, "get scalar data failed, type is string, but json is not string type"),
        ({"b64": b64(b"\xff"), "type": "str"}, "string is not UTF-8"),
        (
            {"b64": "AQI=", "type": "fp32", "shape": [2]},
            "size is not matched, decode base64 size:2; Given info: type:float32; type size:4; "
            "element nums:2",
        ),
    ],
)
def test_values_outside_of_the_table_are_refused(value, text):
    with pytest.raises(InvalidInputs) as raised:
        to_value(value)
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.array(1, np.int64), 1),
        (np.array([[1, 2]], np.uint64), [[1, 2]]),
        (np.array(0.1, np.float32), 0.10000000149011612),
        (np.array([0.1], np.float16), [0.0999755859375]),
        (np.array([0.1]), [0.1]),
        (np.array([True]), [True]),
        (np.zeros((0,), np.float32), []),
        (np.zeros((2, 0), np.float32), [[], []]),
        ("hi", "hi"),
        (BoxedStr("hi"), ["hi"]),
        (b"\1\2", {"b64": "AQI="}),
        (BoxedBytes(b"\1\2"), [{"b64": "AQI="}]),
    ],
)
def test_values_become_plain_json(value, plain):
    assert to_plain(value) == plain


def test_an_array_that_cannot_be_sent_is_an_error_of_the_stage():
    with pytest.raises(StageFailed, match="complex128 cannot be sent"):
        to_plain(np.array([1j]))
