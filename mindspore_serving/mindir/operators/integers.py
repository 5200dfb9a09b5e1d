"""Arithmetic of integers that wraps, as processors compute it, and is exact in 32 bits.

On a CPU OpenVINO saturates integers of 8 bits, and compares, divides and reduces those of 32 bits
as float32, which has 24.  It computes those of 64 bits in 32.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.tensors import absolute, cast, dims, ints_of, like, rank

_T = ov.Type
SMALL = (_T.i8, _T.u8, _T.i16, _T.u16)
_UNSIGNED = (_T.u32, _T.u64)
_BITS = 6  # of exponents: a higher power of what is not -1, 0 or 1 is beyond 64 bits

Build = Callable[..., Any]


def is_integer(value: Any) -> bool:
    """Return whether `value` has integers (booleans are none)."""
    kind = value.get_element_type()
    return not kind.is_real() and kind != _T.boolean


def is_wide(value: Any) -> bool:
    """Return whether `value` has integers that float32 cannot hold."""
    return is_integer(value) and value.get_element_type() not in SMALL


def _working(kind: Any) -> Any:
    """Return the signed type in which the CPU computes with integers of type `kind`."""
    return _T.i32 if kind in SMALL else _T.i64 if kind in _UNSIGNED else kind


def wrapping(build: Build, *values: Any) -> Any:
    """Apply `build` to values of a common type; results that are too large are wrapped."""
    values = tuple(_output(value) for value in values)
    kind = values[0].get_element_type()
    if not is_integer(values[0]):
        return _output(build(*values))
    return cast(_output(build(*(cast(value, _working(kind)) for value in values))), kind)


def _output(value: Any) -> Any:
    return value.output(0) if isinstance(value, ov.Node) else value


def negative(x: Any) -> Any:
    """Compute -x; the lowest integer stays."""
    return wrapping(op.negative, x)


def positive(x: Any) -> Any:
    """Return max(x, 0)."""
    return op.maximum(x, like(0, x)) if is_integer(x) else op.relu(x)


def less(first: Any, second: Any) -> Any:
    """Compare by the sign of the difference for equal signs, else by the sign of `first`."""
    if not is_wide(first):
        return op.less(first, second)
    kind = _working(first.get_element_type())
    first, second = cast(first, kind), cast(second, kind)
    none = like(0, first)
    differs = op.less(op.bitwise_xor(first, second), none)
    return op.less(op.select(differs, first, op.subtract(first, second)), none)


def greater(first: Any, second: Any) -> Any:
    """Compare first > second exactly."""
    return less(second, first)


def less_equal(first: Any, second: Any) -> Any:
    """Compare first <= second exactly."""
    return op.logical_not(less(second, first))


def greater_equal(first: Any, second: Any) -> Any:
    """Compare first >= second exactly."""
    return op.logical_not(less(first, second))


def equal(first: Any, second: Any) -> Any:
    """Compare first == second exactly."""
    if not is_wide(first):
        return op.equal(first, second)
    return op.equal(op.subtract(first, second), like(0, first))


def not_equal(first: Any, second: Any) -> Any:
    """Compare first != second exactly."""
    return op.logical_not(equal(first, second)) if is_wide(first) else op.not_equal(first, second)


def _quotient(first: Any, second: Any) -> tuple[Any, Any]:
    """Divide signed integers; return the quotient rounded down and the rest (sign of `second`).

    Division in float32 gives 24 bits of the quotient.  Dividing the rest again gives the other
    bits, up to an error of one, which is corrected last.
    """
    quotient, rest = like(0, first), first
    for _ in range(2):
        ratio = op.divide(cast(rest, _T.f32), cast(second, _T.f32))
        step = cast(op.floor(ratio).output(0), first.get_element_type())
        quotient = op.add(quotient, step)
        rest = op.subtract(rest, op.multiply(step, second)).output(0)
    sign = op.sign(second)
    size, part = op.multiply(second, sign), op.multiply(rest, sign)
    zero, unit = like(0, first), like(1, first)
    too_high = cast(op.less(part, zero).output(0), first.get_element_type())
    part = op.add(part, op.multiply(size, too_high))
    is_low = op.greater_equal(op.subtract(part, size), zero)
    too_low = op.multiply(cast(is_low.output(0), first.get_element_type()), unit)
    part = op.subtract(part, op.multiply(size, too_low))
    return op.add(op.subtract(quotient, too_high), too_low), op.multiply(part, sign)


def _floor_div(first: Any, second: Any) -> Any:
    return _quotient(first, second)[0]


def _floor_mod(first: Any, second: Any) -> Any:
    return _quotient(first, second)[1]


def _rounds_up(first: Any, second: Any, rest: Any) -> Any:
    """Return 1 where the quotient is negative with a rest, so that truncation is above; else 0."""
    differs = op.less(op.bitwise_xor(first, second), like(0, first))
    is_over = op.logical_and(differs, op.not_equal(rest, like(0, first)))
    return cast(is_over.output(0), first.get_element_type())


def _trunc_div(first: Any, second: Any) -> Any:
    quotient, rest = _quotient(first, second)
    return op.add(quotient, _rounds_up(first, second, rest))


def _trunc_mod(first: Any, second: Any) -> Any:
    _, rest = _quotient(first, second)
    return op.subtract(rest, op.multiply(second, _rounds_up(first, second, rest)))


def floor_div(first: Any, second: Any) -> Any:
    """Divide and round down."""
    if is_integer(first):
        return wrapping(_floor_div, first, second)
    return op.floor(op.divide(first, second))


def trunc_div(first: Any, second: Any) -> Any:
    """Divide and round to zero."""
    if is_integer(first):
        return wrapping(_trunc_div, first, second)
    quotient = op.divide(first, second)
    return op.multiply(op.sign(quotient), op.floor(absolute(quotient)))


def floor_mod(first: Any, second: Any) -> Any:
    """Return the rest of a division, with the sign of `second`."""
    return wrapping(_floor_mod, first, second) if is_integer(first) else op.floor_mod(first, second)


def trunc_mod(first: Any, second: Any) -> Any:
    """Return the rest of a division, with the sign of `first`."""
    return wrapping(_trunc_mod, first, second) if is_integer(first) else op.mod(first, second)


def power(first: Any, second: Any) -> Any:
    """Compute first ** second; integers wrap."""
    return wrapping(_power, first, second) if is_integer(first) else op.power(first, second)


def _power(base: Any, exponent: Any) -> Any:
    """Compute a power by squaring; with a negative exponent 0, unless `base` is 1 or -1."""
    zero, unit = like(0, base), like(1, base)
    is_negative = op.less(exponent, zero)
    count = op.select(is_negative, op.subtract(zero, exponent), exponent)
    result, square = unit, base
    for bit in range(_BITS):
        is_set = op.not_equal(op.bitwise_and(count, like(1 << bit, base)), zero)
        result = op.select(is_set, op.multiply(result, square), result)
        square = op.multiply(square, square)
    is_unit = op.equal(absolute(base), unit)
    return op.select(op.logical_and(is_negative, op.logical_not(is_unit)), zero, result)


def reduce_sum(x: Any, axes: Any, keep: bool) -> Any:
    """Sum over known `axes`; integers wrap."""
    x = _output(x)
    if not is_integer(x):
        return op.reduce_sum(x, axes, keep).output(0)
    return _axis_by_axis(_sum_of_axis, x, axes, keep)


def _sum_of_axis(x: Any, axis: int) -> Any:
    """Return the last cumulative sum of an axis: op.reduce_sum is not exact for integers."""
    kind = x.get_element_type()
    x = cast(x, _working(kind))
    if dims(x)[axis] <= 0:
        behind = [int(number == axis % rank(x)) for number in range(rank(x))]
        x = op.pad(x, ints_of([0] * rank(x)), ints_of(behind), "constant", like(0, x)).output(0)
    sums = op.cumsum(x, op.constant(axis))
    return cast(op.gather(sums, ints_of([-1]), op.constant(axis)).output(0), kind)


def _extreme_of_axis(mode: str, x: Any, axis: int) -> Any:
    node = op.topk(x, op.constant(1), axis % rank(x), mode, "value", "i32")
    return node.output(0)


def _reduce_extreme(build: Build, mode: str, x: Any, axes: Any, keep: bool) -> Any:
    if not is_wide(x):
        return build(x, axes, keep)
    return _axis_by_axis(partial(_extreme_of_axis, mode), x, axes, keep)


def _axis_by_axis(reduce: Callable[[Any, int], Any], x: Any, axes: Any, keep: bool) -> Any:
    """Apply `reduce`, which keeps an axis of one element, to each of the known `axes`."""
    for axis in axes.get_node().get_data().tolist():
        x = reduce(x, int(axis))
    return x if keep or not rank(x) else op.squeeze(x, axes).output(0)


reduce_max = partial(_reduce_extreme, op.reduce_max, "max")
reduce_min = partial(_reduce_extreme, op.reduce_min, "min")


def reduce_prod(x: Any, axes: Any, keep: bool) -> Any:
    """Multiply over known `axes`; integers wrap."""
    return wrapping(lambda value: op.reduce_prod(value, axes, keep), x)


def matmul(x: Any, y: Any, turns_x: bool, turns_y: bool) -> Any:
    """Multiply matrices; integers are multiplied apart, as OpenVINO rounds or saturates them."""
    if not is_integer(x):
        return op.matmul(x, y, turns_x, turns_y).output(0)
    rows, columns = rank(x) == 1, rank(y) == 1
    x = op.unsqueeze(x, ints_of([0])).output(0) if rows else _turned(x, turns_x)
    y = op.unsqueeze(y, ints_of([1])).output(0) if columns else _turned(y, turns_y)
    pairs = wrapping(
        op.multiply,
        op.unsqueeze(x, ints_of([-1])).output(0),
        op.unsqueeze(y, ints_of([-3])).output(0),
    )
    total = reduce_sum(pairs, ints_of([rank(pairs) - 2]), False)
    single = [axis for axis, is_single in ((-2, rows), (-1, columns)) if is_single]
    return op.squeeze(total, ints_of(single)).output(0) if single else total


def _turned(x: Any, turns: bool) -> Any:
    order = list(range(rank(x)))
    order[-2:] = order[-2:][::-1]
    return op.transpose(x, ints_of(order)).output(0) if turns else x
