"""Values of functions that `translation` compiles, as LLVM has them, and their arithmetic.

A value is an int64, a float32, an array of them, a tuple of values, or a constant of Python, which
is computed with at once and becomes a number of LLVM where it meets one.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir

Value: TypeAlias = Any
I1, I32, I64, F32 = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.FloatType()
TYPES = {np.dtype(np.int64): I64, np.dtype(np.float32): F32}
_FAST = ("contract", "reassoc", "nsz")  # flags that keep NaN and infinite numbers
_FLOATS = {"Add": "fadd", "Sub": "fsub", "Mult": "fmul", "Div": "fdiv"}
_INTEGERS = {"Add": "add", "Sub": "sub", "Mult": "mul"}
_BITS = {"BitAnd": "and_", "BitOr": "or_", "BitXor": "xor", "LShift": "shl", "RShift": "ashr"}
_COMPARED = {"Eq": "==", "NotEq": "!=", "Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">="}
_PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mult": operator.mul, "Div": operator.truediv,
    "FloorDiv": operator.floordiv, "Mod": operator.mod, "BitAnd": operator.and_,
    "BitOr": operator.or_, "BitXor": operator.xor, "LShift": operator.lshift,
    "RShift": operator.rshift, "Eq": operator.eq, "NotEq": operator.ne, "Lt": operator.lt,
    "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge,
}  # fmt: skip


class NotTranslated(Exception):
    """An expression or a statement that is not translated."""


@dataclass(frozen=True, slots=True)
class ArrayValue:
    """Contiguous numbers: their type, their address, and the numbers of the shape."""

    element: Any
    data: Value
    shape: tuple[Value, ...]

    @property
    def ctypes(self) -> "ArrayValue":
        """The array, whose `data` is the address, as numpy's."""
        return self


def is_number(value: Value) -> bool:
    """Return whether the value is a number of LLVM."""
    return isinstance(value, ir.Value)


def is_constant(value: Value) -> bool:
    """Return whether the value is known to Python."""
    if isinstance(value, tuple):
        return all(map(is_constant, value))
    return not isinstance(value, ir.Value | ArrayValue)


def flatten(value: Value) -> Iterator[Value]:
    """Iterate over the numbers of a value."""
    if isinstance(value, ArrayValue):
        yield from (value.data, *value.shape)
    elif isinstance(value, tuple):
        for part in value:
            yield from flatten(part)
    elif is_number(value):
        yield value
    elif isinstance(value, np.float32):
        yield ir.Constant(F32, float(value))
    elif isinstance(value, int):
        yield ir.Constant(I64, int(value))
    else:
        raise NotTranslated(f"a value of {type(value).__name__}")


def rebuild(like: Value, numbers: Iterator[Value]) -> Value:
    """Return a value of the structure of `like` with these numbers."""
    if isinstance(like, ArrayValue):
        return ArrayValue(like.element, next(numbers), tuple(next(numbers) for _ in like.shape))
    if isinstance(like, tuple):
        parts = [rebuild(part, numbers) for part in like]
        return type(like)._make(parts) if hasattr(like, "_make") else tuple(parts)
    return next(numbers)


def describe(value: Value) -> str:
    """Return a text that is equal for values of the same types."""
    if isinstance(value, ArrayValue):
        return f"{value.element}[{len(value.shape)}]"
    if isinstance(value, tuple):
        return f"{type(value).__name__}({', '.join(map(describe, value))})"
    return str(next(flatten(value)).type)


class Arithmetic:
    """Arithmetic of values, written by `builder`."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def number(self, value: Value, kind: Any = None) -> Value:
        """Return a number of LLVM, of type `kind` if there is one."""
        (number,) = flatten(value)
        if kind is None or number.type == kind:
            return number
        if isinstance(number.type, ir.IntType) and isinstance(kind, ir.IntType):
            extend = self.builder.zext if number.type == I1 else self.builder.sext
            return extend(number, kind)
        raise NotTranslated(f"{number.type} as {kind}")

    def widened(self, value: Value) -> Value:
        """Return a value whose truths, if it is one, are int64."""
        if isinstance(value, bool) or (is_number(value) and isinstance(value.type, ir.IntType)):
            return self.number(int(value) if isinstance(value, bool) else value, I64)
        return value

    def binary(self, name: str, a: Value, b: Value) -> Value:
        """Return the result of an operator, by the name that `ast` has for it."""
        if is_constant(a) and is_constant(b):
            return _PYTHON[name](a, b)
        a, b = self._alike(a, b)
        if a.type == F32:
            if name not in _FLOATS:
                raise NotTranslated(f"{name} of floats")
            return getattr(self.builder, _FLOATS[name])(a, b, flags=_FAST)
        if name in _INTEGERS:
            return getattr(self.builder, _INTEGERS[name])(a, b, flags=("nsw",))
        if name in _BITS:
            return getattr(self.builder, _BITS[name])(a, b)
        if name in ("FloorDiv", "Mod"):
            return self._floor(name, a, b)
        raise NotTranslated(f"{name} of integers")

    def compare(self, name: str, a: Value, b: Value) -> Value:
        """Return the result of a comparison, by the name that `ast` has for it."""
        if name in ("In", "NotIn"):
            equal = [self.compare("Eq", a, each) for each in b]
            result = equal[0]
            for each in equal[1:]:
                result = self.binary("BitOr", result, each)
            return self.negate(result) if name == "NotIn" else result
        if is_constant(a) and is_constant(b):
            return _PYTHON[name](a, b)
        a, b = self._alike(a, b)
        if a.type != F32:
            return self.builder.icmp_signed(_COMPARED[name], a, b)
        function = self.builder.fcmp_unordered if name == "NotEq" else self.builder.fcmp_ordered
        return function(_COMPARED[name], a, b)

    def truth(self, value: Value) -> Value:
        """Return whether a value is not zero."""
        if is_constant(value):
            return bool(value)
        value = self.number(value)
        if value.type == I1:
            return value
        return self.compare("NotEq", value, np.float32(0) if value.type == F32 else 0)

    def negate(self, value: Value) -> Value:
        """Return 1 for a value that is zero."""
        truth = self.truth(value)
        return self.builder.not_(truth) if is_number(truth) else not truth

    def minus(self, value: Value) -> Value:
        """Return the negative of a value."""
        if is_constant(value):
            return -value
        if value.type == F32:
            return self.builder.fneg(value, flags=_FAST)
        return self.binary("Sub", 0, value)

    def least(self, values: Sequence[Value], *, greatest: bool = False) -> Value:
        """Return the least, or greatest, of values, as Python's functions."""
        result = values[0]
        for value in values[1:]:
            is_better = self.compare("Gt" if greatest else "Lt", value, result)
            if is_constant(is_better):
                result = value if is_better else result
            else:
                result = self.builder.select(is_better, *self._alike(value, result))
        return result

    def to_integer(self, value: Value) -> Value:
        """Return a value as int64: of a float without its fraction, at most the largest."""
        if is_constant(value):
            return int(value)
        if value.type != F32:
            return self.number(value, I64)
        kind = ir.FunctionType(I64, [F32])
        return self.builder.call(self._declared("llvm.fptosi.sat.i64.f32", kind), [value])

    def to_float(self, value: Value) -> Value:
        """Return a value as float32."""
        if is_constant(value):
            return np.float32(value)
        return value if value.type == F32 else self.builder.sitofp(self.number(value, I64), F32)

    def call_float(self, name: str, value: Value) -> Value:
        """Call a function of libm, or an intrinsic of LLVM, of a float32."""
        function = self._declared(name, ir.FunctionType(F32, [F32]))
        return self.builder.call(function, [self.number(value, F32)])

    def element(self, array: ArrayValue, indices: Sequence[Value]) -> Value:
        """Return the pointer to an element, or an array without its first dimensions."""
        at: Value = 0
        for dimension, size in enumerate(array.shape):
            at = self.binary("Mult", at, size)
            if dimension < len(indices):
                at = self.binary("Add", at, self.number(indices[dimension], I64))
        if len(indices) == len(array.shape):
            pointer = self.builder.inttoptr(array.data, array.element.as_pointer())
            return self.builder.gep(pointer, [self.number(at, I64)])
        size = 4 if array.element == F32 else 8
        address = self.binary("Add", array.data, self.binary("Mult", at, size))
        return ArrayValue(array.element, address, array.shape[len(indices) :])

    def _alike(self, a: Value, b: Value) -> tuple[Value, Value]:
        a, b = self.number(a), self.number(b)
        if a.type == b.type:
            return a, b
        return self.number(a, I64), self.number(b, I64)

    def _floor(self, name: str, a: Value, b: Value) -> Value:
        """Divide as Python does; by zero, as by one."""
        b = self.builder.select(self.compare("Eq", b, 0), ir.Constant(I64, 1), b)
        rest = self.builder.srem(a, b)
        has_rest = self.compare("NotEq", rest, 0)
        differ = self.compare("Lt", self.builder.xor(rest, b), 0)
        corrects = self.builder.and_(has_rest, differ)
        if name == "Mod":
            return self.builder.select(corrects, self.binary("Add", rest, b), rest)
        whole = self.builder.sdiv(a, b)
        return self.builder.select(corrects, self.binary("Sub", whole, 1), whole)

    def _declared(self, name: str, kind: Any) -> Any:
        module = self.builder.module
        return module.globals.get(name) or ir.Function(module, kind, name)
