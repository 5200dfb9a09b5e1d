"""Arithmetic of integers: operators, operands, and what numpy computes in the same type."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

KINDS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class Row:
    """A call: operands by their names below, arguments behind them, and numpy's for it."""

    operands: tuple[str, ...]
    reference: Callable[..., Any]
    more: tuple[Any, ...] = ()
    init: dict[str, Any] = field(default_factory=dict)
    kinds: tuple[str, ...] = KINDS


def operands(kind):
    """Arrays of type `kind`, of which OpenVINO holds all values in 32 bits on a CPU.

    Results beyond 32 bits are wrapped in 8, 16 and 32 bits, and do not occur in 64.
    """
    limits, random = np.iinfo(kind), np.random.default_rng(0)
    is_wide = limits.bits == 64
    low, high = max(limits.min, -INT32.max - 1), min(limits.max, INT32.max)
    ends = [low, high, low + 1, high - 1, high // 2 + 1, high // 3]
    if is_wide:
        ends = [max(low, -46000), 46000, 2**15, 2**15 - 1, 12345, 1]
    near = np.array([1, 7, 100, 2, 13, 5]) * (1 if limits.min == 0 else -1)
    small = random.integers(max(limits.min, -9), 10, 12)
    x = np.concatenate([ends, near, small]).astype(kind)
    y = np.roll(x, 5)
    divisors = np.where(y == 0, 3, y).astype(kind)
    exact = np.array([2**24 + 1, 2**24, 2**30, 2**24 - 1]) % (high + 1)
    return {
        "x": x,
        "y": y,
        "divisors": divisors,
        "shifts": (np.arange(x.size) % 7).astype(kind),
        "exponents": (np.arange(x.size) % 4).astype(kind),
        "bases": (np.arange(x.size) % 11).astype(kind),
        "large": exact.astype(kind),
        "close": (exact - 1).astype(kind),
        "rows": np.stack([x[:6], y[:6]]),
        "factors": np.array([[7, 5, 3, 2, 11, 1], [7, 7, 7, 3, 1, 2]]).astype(kind),
        "matrix": np.stack([x[:6], y[:6]])
        if not is_wide
        else np.arange(12).reshape(2, 6).astype(kind),
        "one": np.ones(1, kind),
        "index": np.array([[1]]),
    }


def _wrapped(function):
    def call(*arrays):
        with np.errstate(all="ignore"):
            return function(*arrays)

    return call


def _trunc(x, y):
    quotient = np.abs(x.astype(object)) // np.abs(y.astype(object))
    return (quotient * np.where((x < 0) != (y < 0), -1, 1)).astype(x.dtype)


def _same(function):
    """With the type of the first operand as result."""
    return lambda x, *more: function(x, *more).astype(x.dtype)


def _sum_kind(x):
    """MindSpore's: unsigned integers over 8 bits stay as they are."""
    return x.dtype if x.dtype in ("uint16", "uint32", "uint64") else np.int64


def _binary(function, first="x", second="y", **fields):
    return Row((first, second), _wrapped(function), **fields)


def _unary(function, operand="x", **fields):
    return Row((operand,), _wrapped(function), **fields)


SIGNED = ("int8", "int16", "int32", "int64")
ROWS = {
    "Add": _binary(np.add),
    "AddV2": _binary(np.add),
    "AddExt": _binary(lambda x, y, alpha: x + y * x.dtype.type(alpha), more=(2,)),
    "AddScalar": _unary(lambda x, y, alpha: x + x.dtype.type(y * alpha), more=(3, 2)),
    "Sub": _binary(np.subtract),
    "SubExt": _binary(lambda x, y, alpha: x - y * x.dtype.type(alpha), more=(2,)),
    "SubScalar": _unary(lambda x, y, alpha: x - x.dtype.type(y * alpha), more=(3, 2)),
    "Mul": _binary(np.multiply),
    "Muls": _unary(lambda x, y: x * x.dtype.type(y), more=(3,)),
    "SquaredDifference": _binary(lambda x, y: (x - y) * (x - y)),
    "Maximum": _binary(np.maximum),
    "Minimum": _binary(np.minimum),
    "FloorDiv": _binary(np.floor_divide, second="divisors"),
    "FloorMod": _binary(np.mod, second="divisors"),
    "TruncateDiv": _binary(_trunc, second="divisors"),
    "TruncateMod": _binary(np.fmod, second="divisors"),
    "Mod": _binary(np.fmod, second="divisors"),
    "FmodTensor": _binary(np.fmod, second="divisors"),
    "RemainderTensorTensor": _binary(np.mod, second="divisors"),
    "Pow": _binary(_same(np.power), "bases", "exponents"),
    "Equal": _binary(np.equal, "large", "close"),
    "NotEqual": _binary(np.not_equal, "large", "close"),
    "Greater": _binary(np.greater, "large", "close"),
    "GreaterEqual": _binary(np.greater_equal, "close", "large"),
    "Less": _binary(np.less, "close", "large"),
    "LessEqual": _binary(np.less_equal, "large", "close"),
    "BitwiseAnd": _binary(np.bitwise_and),
    "BitwiseOr": _binary(np.bitwise_or),
    "BitwiseXor": _binary(np.bitwise_xor),
    "LeftShift": _binary(np.left_shift, second="shifts"),
    "RightShift": _binary(np.right_shift, second="shifts"),
    "BitwiseNot": _unary(np.bitwise_not),
    "Neg": _unary(np.negative),
    "Abs": _unary(np.abs),
    "Sign": _unary(np.sign),
    "Square": _unary(np.square),
    "ReLU": _unary(lambda x: np.maximum(x, 0)),
    "ReduceSum": _unary(lambda x, axis: np.sum(x, axis, x.dtype), "rows", more=((1,),)),
    "ReduceProd": _unary(lambda x, axis: np.prod(x, axis, x.dtype), "factors", more=((1,),)),
    "ReduceMax": _unary(np.max, "rows", more=((1,),)),
    "ReduceMin": _unary(np.min, "rows", more=((0,),)),
    "Max": _unary(np.max, "large"),
    "Min": _unary(np.min, "large"),
    "SumExt": _unary(lambda x, axis: np.sum(x, axis, _sum_kind(x)), "bases", more=((0,),)),
    "CumSum": _unary(lambda x, axis: np.cumsum(x, axis, x.dtype), "rows", more=(1,)),
    "AddN": Row((("x", "y", "x"),), _wrapped(lambda parts: parts[0] + parts[1] + parts[2])),
    "Addcmul": Row(("x", "y", "shifts", "one"), _wrapped(lambda x, y, z, _: x + y * z)),
    "MatMul": Row(("matrix", "matrix"), _wrapped(lambda x, y: x @ y.T), init={"transpose_b": True}),
    "Dot": _binary(lambda x, y: np.sum(x * y, dtype=x.dtype), "bases", "exponents"),
    "TensorScatterAdd": Row(
        ("x", "index", "one"),
        _wrapped(lambda x, index, one: x + np.eye(1, x.size, 1, dtype=x.dtype)[0] * one[0]),
    ),
}
