"""Comparison of encoded replies: exact, or with a tolerance for numbers."""

from collections.abc import Callable, Sequence
from math import isclose, isnan
from typing import Any

import msgspec
import numpy as np

from mindspore_serving.proto import ms_service_pb2 as pb
from mindspore_serving.wire.ms_instance import to_value
from mindspore_serving.wire.v2 import datatypes, outputs


def are_equal(
    codec: str, first: Sequence[bytes], second: Sequence[bytes], tolerance: float = 0.0
) -> bool:
    """Return whether replies encoded for `codec` have the same instances.

    Numbers may differ by `tolerance`, absolute or relative; names, types, shapes and texts may not.
    Raises ValueError for instances that cannot be decoded.
    """
    if len(first) != len(second):
        return False
    if list(first) == list(second):
        return True
    if not tolerance and codec not in ("ms_json", "ms_json_items"):
        return False  # equal values have equal bytes
    decode = _DECODERS[codec]
    pairs = zip(map(decode, first), map(decode, second), strict=True)
    return all(_are_near(value, other, tolerance) for value, other in pairs)


def _are_near(value: Any, other: Any, tolerance: float) -> bool:
    if isinstance(value, np.ndarray) and isinstance(other, np.ndarray):
        if value.dtype != other.dtype or value.shape != other.shape:
            return False
        if value.dtype.kind not in "iuf":
            return bool(np.array_equal(value, other))
        wide = value.astype(np.float64), other.astype(np.float64)
        return bool(np.allclose(*wide, rtol=tolerance, atol=tolerance, equal_nan=True))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(
            _are_near(value[name], other[name], tolerance) for name in value
        )
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(
            _are_near(*pair, tolerance) for pair in zip(value, other, strict=True)
        )
    if _is_number(value) and _is_number(other):
        is_nan = isnan(value) and isnan(other)
        return is_nan or isclose(value, other, rel_tol=tolerance, abs_tol=tolerance)
    return type(value) is type(other) and bool(value == other)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _from_proto(instance: bytes) -> Any:
    items = pb.Instance.FromString(instance).items
    return {name: to_value(item) for name, item in items.items()}


def _from_v2(instance: bytes) -> Any:
    decoded: dict[str, Any] = {}
    for tensor in outputs.join([instance], is_batched=False):
        row = datatypes.datatype_of(tensor.datatype)
        value: Any = msgspec.json.decode(tensor.json_data) if tensor.json else None
        if tensor.raw:
            raw = b"".join(tensor.raw)
            value = raw if row.numpy is None else np.frombuffer(raw, row.numpy)
        decoded[tensor.name] = (tensor.datatype, list(tensor.shape), value)
    return decoded


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "ms_json": msgspec.json.decode,
    "ms_json_items": msgspec.json.decode,
    "ms_proto": _from_proto,
    **dict.fromkeys(("v2_raw", "v2_json", "v2_both"), _from_v2),
}
CODECS = frozenset(_DECODERS)
