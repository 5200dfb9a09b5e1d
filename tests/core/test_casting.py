"""Which numbers become which type, and which are refused."""

import numpy as np
import pytest

from mindspore_serving.core.casting import cast, from_plain, with_missing
from mindspore_serving.errors import InvalidInputs

TYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")


def plain(values, wanted):
    return from_plain(values, set(map(type, values)), np.dtype(wanted))


@pytest.mark.parametrize("wanted", TYPES)
@pytest.mark.parametrize("values", [[1, 2], [1.0, 2.0], [1, 2.0]])
def test_plain_whole_numbers_become_any_type(values, wanted):
    np.testing.assert_array_equal(plain(values, wanted), np.array([1, 2], wanted), strict=True)


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("wanted", ["f2", "f4", "f8"])
def test_plain_numbers_are_rounded_to_floats(wanted, count):
    expected = np.array([0.1, 3.0] * count, wanted)
    np.testing.assert_array_equal(plain([0.1, 3] * count, wanted), expected, strict=True)


def test_plain_integers_keep_all_their_bits():
    assert plain([2**63 - 1, -(2**63)], "i8").tolist() == [2**63 - 1, -(2**63)]
    assert plain([2**64 - 1], "u8").tolist() == [2**64 - 1]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([5.5], "i4"),
        ([1, 5.5], "i8"),
        ([256], "u1"),
        ([-1], "u1"),
        ([-1.0], "u8"),
        ([2**31], "i4"),
        ([2.0**31], "i4"),
        ([1e300], "i8"),
        ([2**64], "u8"),
        ([65520.0], "f2"),
        ([-1e39], "f4"),
        ([10**400], "f8"),
        ([1], "?"),
    ],
)
@pytest.mark.parametrize("count", [0, 100])  # others in the list
def test_plain_numbers_that_do_not_fit_are_not_cast(values, wanted, count):
    assert plain(values + [1] * count, wanted) is None


@pytest.mark.parametrize("given", TYPES)
@pytest.mark.parametrize("wanted", TYPES)
def test_arrays_stay_integers_or_floats(given, wanted):
    array, wanted = np.array([[1], [2]], given), np.dtype(wanted)
    is_float = wanted.kind == "f"
    if (array.dtype.kind == "f") != is_float and not (given == "i8" and is_float):
        with pytest.raises(InvalidInputs, match=f"of {array.dtype} is not cast to {wanted}"):
            cast(array, wanted)
    else:
        np.testing.assert_array_equal(
            cast(array, wanted), np.array([[1], [2]], wanted), strict=True
        )


@pytest.mark.parametrize(
    ("array", "wanted", "text"),
    [
        (np.array([1, 256]), "u1", "256 is out of the range of uint8"),
        (np.array([-1]), "u8", "-1 is out of the range of uint64"),
        (np.array([2**64 - 1], "u8"), "i8", "18446744073709551615 is out of the range of int64"),
        (np.array([0.0, -1e39]), "f4", r"-1e\+39 is out of the range of float32"),
        (np.array([65520], "f4"), "f2", "65520.0 is out of the range of float16"),
        (np.array([3, -(2**24) - 1]), "f4", "integer like -16777217 is a float32; send floats"),
        (np.array([-(2**63)]), "f8", "integer like -9223372036854775808 is a float64"),
        (np.array([2049]), "f2", "integer like 2049 is a float16"),
        (np.array([True]), "i4", "an array of bool is not cast to int32"),
        (np.array([1]), "?", "an array of int64 is not cast to bool"),
    ],
)
def test_lossy_casts_are_refused_with_the_reason(array, wanted, text):
    with pytest.raises(InvalidInputs, match=text):
        cast(array, np.dtype(wanted))


def test_nan_and_infinities_are_kept():
    array = cast(np.array([np.nan, np.inf, -np.inf]), np.dtype("f2"))
    np.testing.assert_array_equal(array, np.array([np.nan, np.inf, -np.inf], "f2"), strict=True)


@pytest.mark.parametrize(("given", "wanted"), [("i8", "u1"), ("f8", "f4"), ("i8", "f4")])
def test_empty_arrays_and_scalars_are_cast(given, wanted):
    assert cast(np.empty((0, 3), given), np.dtype(wanted)).shape == (0, 3)
    assert cast(np.array(7, given), np.dtype(wanted)).shape == ()


def test_missing_numbers_become_nan_in_arrays_of_objects():
    result = with_missing(np.array([1, None, 2.5], object))
    np.testing.assert_array_equal(result, np.array([1, np.nan, 2.5]), strict=True)


@pytest.mark.parametrize("values", [[1, 2], ["a", None], [True, None], [10**400, None]])
def test_arrays_without_missing_numbers_are_unchanged(values):
    array = np.array(values, object)
    assert with_missing(array) is array
