"""Conversion of one JSON value of a classic RESTful body to a Value, and back.

Numbers get the dtype that the model expects, if that is known and they fit, else int32 and float32
as in earlier versions.  Any dtype can be sent as an object with its bytes in base64.  It knows
neither instances, methods nor URLs.
"""

import base64
import binascii
import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from mindspore_serving import log
from mindspore_serving.core import casting
from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.dtype import DType
from mindspore_serving.core.value import BoxedBytes, BoxedStr, Value
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.wire import tensor

_INT32: "np.dtype[Any]" = np.dtype("<i4")
_FLOAT32: "np.dtype[Any]" = np.dtype("<f4")
_BOOL: "np.dtype[Any]" = np.dtype("?")
_NUMBERS = {int, float}
_WIDEST = {int: np.dtype("<i8"), float: np.dtype("<f8")}

_TYPES = {row.name: row for row in dtypes.TABLE} | {
    f"fp{bits}": dtypes.BY_NAME[f"float{bits}"] for bits in (16, 32, 64)
}
_KEYS = ("b64", "type", "shape")
_MAX_LOGGED = 16  # outputs
_logged: set[str] = set()  # outputs that were not finite
_BASE64 = "expected A-Z, a-z, 0-9, + and /, with = up to a multiple of 4"


def to_value(value: Any, dtype: "np.dtype[Any] | None" = None) -> Value:
    """Convert a decoded JSON value to an array, str or bytes.

    Scalars have shape ().  Numbers that do not fit `dtype`, which the model expects, keep their
    usual dtype: the model refuses them, so that only their instance fails.  Raises InvalidInputs
    for values that are not in the RESTful reference.
    """
    if type(value) is list:
        return _from_list(value, dtype)
    if type(value) is str:
        return value
    if type(value) is dict:
        row, shape, data = _parse_object(value)
        return _from_bytes(row, shape, data)
    if value is None:
        if dtype is None or dtype.kind != "f":
            raise InvalidInputs(f"json value is null, it is not supported{_of_floats(dtype)}")
        value = math.nan
    kind = type(value)
    if dtype is not None and kind is not bool:
        return _typed([value], {kind}, (), dtype)
    return _numbers([value], kind, ())


def to_plain(value: Value) -> Any:
    """Convert a value to plain JSON: nested lists, a str, or {"b64": ...}; boxed ones in a list."""
    if isinstance(value, np.ndarray):
        if value.dtype not in dtypes.BY_NUMPY:
            tensor.dtype_of(value)  # raises
        return value.tolist()
    if isinstance(value, str):
        return [str(value)] if isinstance(value, BoxedStr) else str(value)  # drops the subclass
    item = {"b64": base64.b64encode(value).decode("ascii")}
    return [item] if isinstance(value, BoxedBytes) else item


def warn_of_null(outputs: Mapping[str, Value]) -> None:
    """Log once which outputs have NaN or infinities, for which null stands in JSON."""
    if len(_logged) >= _MAX_LOGGED:
        return
    for name, value in outputs.items():
        is_float = isinstance(value, np.ndarray) and value.dtype.kind == "f"
        if is_float and name not in _logged and not np.isfinite(value).all():
            _logged.add(name)
            log.warning("output '%s' has NaN or infinities: JSON clients get null", name)


# --------------------------------------------------------------------- lists


def _from_list(value: list[Any], dtype: "np.dtype[Any] | None") -> Value:
    flat, kinds = value, set(map(type, value))
    shape: tuple[int, ...] = (len(value),)
    if not kinds or list in kinds:
        flat, shape = _flatten(value)
        kinds = set(map(type, flat))
    if dtype is not None and kinds <= _NUMBERS:
        return _typed(flat, kinds, shape, dtype)
    if type(None) in kinds:
        return _with_missing(flat, kinds, shape, dtype)
    if len(kinds) > 1:
        return _refuse_mixture(kinds)
    kind = kinds.pop()
    if kind is str or kind is dict:
        return _from_single(flat, shape)
    if kind is list:
        raise InvalidInputs("json array, data should be number, bool, string or bytes")
    return _numbers(flat, kind, shape)


def _flatten(value: list[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """Return the leaves in order, and the shape, which the first elements define.

    Raises InvalidInputs if other elements have another shape.
    """
    if not value:
        raise InvalidInputs(
            'json array, shape is empty; {"b64": "", "type": TYPE, "shape": [0]} has no elements'
        )
    shape = [len(value)]
    flat = value
    while type(flat[0]) is list:
        size = len(flat[0])
        if size == 0:
            raise InvalidInputs("json array, data type is unknown")
        if len(shape) == tensor.MAX_RANK:
            raise InvalidInputs(f"json array, more than {tensor.MAX_RANK} dimensions")
        for row in flat:
            if type(row) is not list:
                raise InvalidInputs("invalid json array: json type is not array")
            if len(row) != size:
                raise InvalidInputs(
                    f"invalid json array: json size is {len(row)}, the dim {len(shape)} expected "
                    f"to be {size}; all rows of an array have one length"
                )
        flat = list(chain.from_iterable(flat))
        shape.append(size)
    return flat, tuple(shape)


def _with_missing(
    flat: list[Any], kinds: set[type], shape: tuple[int, ...], dtype: "np.dtype[Any] | None"
) -> Value:
    """Convert floats of which some are null: null is NaN if floats are expected or beside it."""
    present = kinds - {type(None)}
    is_float = present == {float} if dtype is None else dtype.kind == "f" and present <= _NUMBERS
    if not is_float:
        raise InvalidInputs(
            "json array, data should be number, bool, string or bytes, and an element is null"
            f"{_of_floats(dtype)}"
        )
    flat = [math.nan if item is None else item for item in flat]
    return _typed(flat, present | {float}, shape, _FLOAT32 if dtype is None else dtype)


def _of_floats(dtype: "np.dtype[Any] | None") -> str:
    """Return the meaning of null, for the error of an input that does not support it."""
    text = "; null is a missing value of floats"
    return f"{text}, the input is {dtype}" if dtype is not None else text


def _refuse_mixture(kinds: set[type]) -> Value:
    if list in kinds:
        raise InvalidInputs("json array, data should be number, bool, string or bytes")
    names = {int: "integer", float: "float", bool: "bool", str: "string", dict: "object"}
    kind_names = sorted(names[kind] for kind in kinds)
    hint = "; write 1.0, not 1, beside floats" if kinds == {int, float} else ""
    raise InvalidInputs(f"json array, elements type is not equal: {', '.join(kind_names)}{hint}")


def _typed(
    flat: list[Any], kinds: set[type], shape: tuple[int, ...], dtype: "np.dtype[Any]"
) -> Value:
    array = casting.from_plain(flat, kinds, dtype)
    if array is None:
        kind = float if float in kinds else int
        try:
            return _numbers(flat, kind, shape)
        except InvalidInputs:  # out of the range of the usual dtype
            array = casting.from_plain(flat, kinds, _WIDEST[kind])
            if array is None:
                raise
    return array if len(shape) == 1 else array.reshape(shape)


def _numbers(flat: list[Any], kind: type, shape: tuple[int, ...]) -> Value:
    if kind is float:
        floats = casting.from_plain(flat, {float}, _FLOAT32)
        if floats is None:
            raise InvalidInputs("json value, number is out of the range of float32")
        return floats if len(shape) == 1 else floats.reshape(shape)
    if kind is int:
        if max(flat) > 2**31 - 1 or min(flat) < -(2**31):
            raise InvalidInputs(
                "json value, integer is out of the range of int32; send other types as "
                '{"b64": ..., "type": "int64", "shape": [...]}'
            )
        dtype = _INT32
    else:
        dtype = _BOOL
    array = np.array(flat, dtype)
    return array if len(shape) == 1 else array.reshape(shape)


def _from_single(flat: list[Any], shape: tuple[int, ...]) -> Value:
    """Convert a string, or an object that holds one, in nested lists of `shape`."""
    if len(flat) != 1:
        raise InvalidInputs(
            f"json array, string or bytes type only support one item, but {len(flat)} are given: "
            "send each text in an instance of its own"
        )
    item = flat[0]
    if type(item) is str:
        if len(shape) > 1:
            tensor.to_text(b"", dtypes.STR, shape)  # raises, as no text can have this shape
        return BoxedStr(item)
    row, _, data = _parse_object(item)
    if row.numpy is not None:
        raise InvalidInputs(
            "json array, item is object type, object only support string or bytes type"
        )
    return tensor.to_text(data, row, shape)


# --------------------------------------------------------------------- objects


def _parse_object(item: dict[str, Any]) -> tuple[DType, tuple[int, ...], bytes]:
    _check_keys(item)
    name = item.get("type", "bytes")
    if type(name) is not str:
        raise InvalidInputs("json object, key is 'type', value should be string type")
    row = _TYPES.get(name)
    if row is None:
        raise InvalidInputs(
            f"json object, specified type:'{name[:64]}' is illegal, accepted are "
            f"{', '.join(_TYPES)}"
        )
    shape = _to_shape(item.get("shape", []))
    if row.numpy is None and tensor.count_elements(shape) != 1:
        raise InvalidInputs(
            "json object, only support scalar when data type is string or bytes, please check "
            "'type' or 'shape'"
        )
    return row, shape, _decode_base64(item["b64"])


def _check_keys(item: dict[str, Any]) -> None:
    if "b64" not in item:
        raise InvalidInputs(
            "json object, 'b64' should be specified only one time; a value is a number, a text, "
            'an array of numbers, or {"b64": BASE64, "type": TYPE, "shape": SHAPE}'
        )
    if len(item) > 3:
        raise InvalidInputs(
            f"json object, items size is more than 3, only support specified {list(_KEYS)}"
        )
    for key in item:
        if key not in _KEYS:
            raise InvalidInputs(f"json object, key is not {list(_KEYS)}, fail key:{key[:64]}")


def _to_shape(shape: Any) -> tuple[int, ...]:
    if type(shape) is not list:
        raise InvalidInputs("json object, key is 'shape', value should be array type")
    if any(type(dim) is not int or dim < 0 for dim in shape):
        raise InvalidInputs("json object, key is 'shape', array value should be unsigned integer")
    if tensor.count_elements(shape) is None:
        raise InvalidInputs(
            f"json object, key is 'shape', invalid shape value {shape[: tensor.MAX_RANK]}; at "
            f"most {tensor.MAX_RANK} dimensions, none after a 0"
        )
    return tuple(shape)


def _decode_base64(text: Any) -> bytes:
    if type(text) is not str:
        raise InvalidInputs("get scalar data failed, type is string, but json is not string type")
    try:
        if len(text) % 4 == 0:
            return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):  # ValueError if it is not ASCII
        pass
    shown = text if len(text) <= 64 else f"{text[:64]}..."
    raise InvalidInputs(f"'{shown}' is illegal b64 encode string; {_BASE64}")


def _from_bytes(row: DType, shape: tuple[int, ...], data: bytes) -> Value:
    if row.numpy is None:
        return tensor.to_text(data, row, shape)
    count = tensor.count_elements(shape)
    if count is None or len(data) != count * row.size:
        raise InvalidInputs(
            f"size is not matched, decode base64 size:{len(data)}; Given info: type:{row.name}; "
            f"type size:{row.size}; element nums:{count}"
        )
    return tensor.to_array(data, row, shape)
