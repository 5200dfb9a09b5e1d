"""Comparison of replies, encoded as workers encode them."""

from typing import Any

import numpy as np
import pytest

from mindspore_serving.wire import worker_codec
from mindspore_serving.wire.comparing import CODECS, are_equal


def encoded(codec: str, outputs: dict[str, Any]) -> list[bytes]:
    data = worker_codec(codec).encode(outputs)
    return [data if isinstance(data, bytes) else data.join()]


def near(codec: str, first: dict[str, Any], second: dict[str, Any], tolerance: float = 0) -> bool:
    return are_equal(codec, encoded(codec, first), encoded(codec, second), tolerance)


VALUES = {"y": np.array([1.0, -2.5, np.inf], np.float32), "n": np.arange(3), "text": "a"}


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_numbers_may_differ_by_the_tolerance(codec: str) -> None:
    close = {**VALUES, "y": np.array([1.0005, -2.5, np.inf], np.float32)}
    assert near(codec, VALUES, dict(VALUES))
    assert not near(codec, VALUES, close)
    assert near(codec, VALUES, close, 1e-3)
    assert not near(codec, VALUES, close, 1e-5)


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize(
    "change",
    [
        {"text": "b"},
        {"y": np.array([1.0, -2.5], np.float32)},
        {"n": np.arange(3) * 100},
        {"extra": np.zeros(1, np.float32)},
    ],
)
def test_other_differences_count_with_any_tolerance(codec: str, change: dict[str, Any]) -> None:
    assert not near(codec, VALUES, {**VALUES, **change}, 0.5)


@pytest.mark.parametrize("codec", ["ms_proto", "v2_raw"])
def test_another_dtype_is_a_difference(codec: str) -> None:
    assert not near(codec, {"y": np.float32([1])}, {"y": np.float64([1])}, 1)


def test_another_number_of_instances_is_a_difference() -> None:
    assert not are_equal("ms_json", [b"{}"], [b"{}", b"{}"])


def test_spaces_and_order_of_json_are_no_difference() -> None:
    assert are_equal("ms_json", [b'{"a":1,"b":2}'], [b'{"b": 2, "a": 1.0}'])
    assert not are_equal("ms_json", [b'{"a":1}'], [b'{"a":true}'])


def test_not_a_number_equals_itself() -> None:
    assert near("v2_raw", {"y": np.float32([np.nan, 1])}, {"y": np.float32([np.nan, 1.1])}, 0.2)


def test_bytes_that_cannot_be_decoded_are_an_error() -> None:
    with pytest.raises(ValueError, match="truncated"):
        are_equal("ms_json", [b"{"], [b"["], 1)
