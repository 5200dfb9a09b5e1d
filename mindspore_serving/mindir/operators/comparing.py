"""What Python code decided by sizes: membership, identity, equality of tuples, and, or, not."""

from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.types import common
from mindspore_serving.mindir.tensors import Operator, Unsupported, cast, known, rank, tensor
from mindspore_serving.mindir.values import Value, is_number, read


def _equal(first: Value, second: Value) -> Any:
    """Of numbers, texts, None and tuples of them; a tensor where it depends on the data."""
    first, second = read(first), read(second)
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and _all(map(_equal, first, second))
    if _is_plain(first) and _is_plain(second):
        return first == second
    if not (_is_scalar(first) and _is_scalar(second)):
        return False
    arrays = known(first), known(second)
    if arrays[0] is not None and arrays[1] is not None:
        return bool(arrays[0] == arrays[1])
    return op.equal(*common(first, second)).output(0)


def _is_plain(value: Value) -> bool:
    return value is None or isinstance(value, str) or is_number(value)


def _is_scalar(value: Value) -> bool:
    """Whether `value` is one number.  Raises Unsupported for a tensor of more."""
    if is_number(value):
        return True
    if _is_plain(value) or isinstance(value, tuple):
        return False
    if rank(tensor(value)):
        raise Unsupported("a tensor in place of a number")
    return True


def _all(parts: Any) -> Any:
    """Whether all of them hold; each is a bool or a tensor."""
    found: Any = True
    for part in parts:
        found = _and(found, part)
    return found


def _and(x: Value, y: Value) -> Any:
    if isinstance(x, bool) or isinstance(y, bool):
        first, second = (x, y) if isinstance(x, bool) else (y, x)
        return second if first else False
    return op.logical_and(_boolean(x), _boolean(y)).output(0)


def _or(x: Value, y: Value) -> Any:
    return _not(_and(_not(x), _not(y)))


def _not(x: Value) -> Any:
    return not x if is_number(x) else op.logical_not(_boolean(x)).output(0)


def _boolean(x: Value) -> Any:
    return cast(tensor(x), ov.Type.boolean)


def _in(element: Value, sequence: Value) -> Any:
    found: Any = False
    for part in read(sequence):
        found = _or(found, _equal(element, part))
    return found


def _is(x: Value, y: Value) -> Any:
    """Numbers are the same where they are equal, and of one type of Python."""
    if _is_scalar(x) and _is_scalar(y) and _is_boolean(x) != _is_boolean(y):
        return False
    return _equal(x, y)


def _is_boolean(x: Value) -> bool:
    return bool(tensor(x).get_element_type() == ov.Type.boolean)


OPERATORS: dict[str, Operator] = {
    **dict.fromkeys(("list_equal", "string_eq", "tuple_equal"), _equal),
    **dict.fromkeys(("BoolNot", "bool_not"), _not),
    "BoolAnd": _and,
    "BoolOr": _or,
    "InSequence": _in,
    "ScalarNe": lambda x, y: _not(_equal(x, y)),
    "is_": _is,
    "is_not": lambda x, y: _not(_is(x, y)),
}
