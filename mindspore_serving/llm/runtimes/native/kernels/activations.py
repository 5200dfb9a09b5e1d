"""Rounding of activations to int8, one scale for 16, and the sums that products need."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, TypeAlias

from llvmlite import ir

from mindspore_serving.llm.runtimes.native.kernels.emitter import (
    F16L,
    F32,
    I8,
    I32,
    I64,
    L16,
    Emitter,
)
from mindspore_serving.llm.runtimes.native.kernels.formats import (
    BLOCK,
    GROUP,
    LANES_BYTES,
    SUMS,
    TOGETHER,
    Activations,
)

Value: TypeAlias = Any
LANES = 16
EIGHT = 8  # columns of a block in one vector
_LOW = (*range(8), *range(16, 24))
_HIGH = tuple(lane + 8 for lane in _LOW)
_SHIFT = 1.5 * 2**23
_PAIR = ir.VectorType(I32, 2)


class QuantiseArgument(IntEnum):
    """Indices of the arguments: addresses, and sizes in bytes."""

    X = 0  # float32 rows
    X_STRIDE = 1
    OUT = 2  # rows of `Activations`
    OUT_STRIDE = 3
    COLUMNS = 4  # count


def quantise_body(kind: Activations, e: Emitter, arguments: Value, chunk: Value) -> None:
    """Write the code that rounds one row; a chunk is a row.

    The last group has the last blocks.  Those that the group before has, too, are zeros in it, as
    are those that a row of less than a group lacks.
    """
    a = {name: e.load(arguments, I64, 8 * name) for name in QuantiseArgument}
    x = e.b.add(a[QuantiseArgument.X], e.b.mul(chunk, a[QuantiseArgument.X_STRIDE]))
    out = e.b.add(a[QuantiseArgument.OUT], e.b.mul(chunk, a[QuantiseArgument.OUT_STRIDE]))
    blocks = e.b.udiv(a[QuantiseArgument.COLUMNS], e.c(BLOCK))
    last = e.b.udiv(e.b.sub(blocks, e.c(1)), e.c(TOGETHER))
    last_out = e.b.add(out, e.b.mul(last, e.c(kind.group_bytes)))
    for offset in range(0, kind.group_bytes, LANES_BYTES):
        e.store(e.every(L16, 0), last_out, offset)
    with e.loop(e.c(0), blocks) as block:
        group = e.b.udiv(block, e.c(TOGETHER))
        slot = e.b.sub(block, first_block(e, group, blocks))
        address = e.b.add(out, e.b.mul(group, e.c(kind.group_bytes)))
        source = e.b.add(x, e.b.mul(block, e.c(4 * BLOCK)))
        _store_block(kind, e, source, e.b.add(address, e.b.mul(slot, e.c(EIGHT))))


def first_block(e: Emitter, group: Value, blocks: Value) -> Value:
    """Return the number of a group's first block in a row of `blocks`."""
    first = e.b.mul(group, e.c(TOGETHER))
    last = e.b.sub(blocks, e.c(TOGETHER))
    last = e.b.select(e.b.icmp_signed("<", last, e.c(0)), e.c(0), last)
    return e.b.select(e.b.icmp_signed("<", first, last), first, last)


def _store_block(kind: Activations, e: Emitter, source: Value, target: Value) -> None:
    """Write a block whose place in the first vector, and among scales and sums, is `target`."""
    vectors = [e.load(source, F16L, 4 * LANES * half) for half in range(2)]
    scales_of_halves, inverses = _scales(e, vectors)
    totals = []
    for half, vector in enumerate(vectors):
        rounded = _rounded(e, vector, e.shuffle(inverses, [half] * LANES))
        parts = [e.shuffle(rounded, range(at, at + EIGHT)) for at in (0, EIGHT)]
        values = e.b.bitcast(e.b.trunc(rounded, ir.VectorType(I8, LANES)), ir.VectorType(I64, 2))
        for at in range(2):
            value = e.b.extract_element(values, e.c(at, I32))
            e.store(value, target, (2 * half + at) * GROUP // 4)
        scales = e.shuffle(scales_of_halves, [half] * 2)
        e.store(scales, target, GROUP + LANES_BYTES * half)
        total = _sums_of_four(e, e.b.add(*parts))
        if kind == Activations.INTEGER_SUMS:
            totals.append(e.b.sub(e.every(_PAIR, 0), total))
        else:
            totals.append(e.b.fmul(e.b.sitofp(total, ir.VectorType(F32, 2)), scales))
    if kind == Activations.FLOAT_SUMS:
        totals = [e.b.fadd(*totals)]
    for at, total in enumerate(totals):
        e.store(total, target, SUMS + LANES_BYTES * at)


def _sums_of_four(e: Emitter, vector: Value) -> Value:
    """Return the sums of the first and of the last four of eight integers."""
    pairs = e.b.add(*(e.shuffle(vector, range(at, EIGHT, 2)) for at in range(2)))
    return e.b.add(*(e.shuffle(pairs, range(at, 4, 2)) for at in range(2)))


def _scales(e: Emitter, vectors: Sequence[Value]) -> tuple[Value, Value]:
    """Return the scales of two vectors and their inverses, 0 of zeros; NaN stays NaN."""
    # Without their signs, floats are ordered as their bits are, and NaN is the largest.
    bits = [e.b.and_(e.b.bitcast(v, L16), e.every(L16, 0x7FFFFFFF)) for v in vectors]
    largest = _larger(e, e.shuffle(bits[0], _LOW, bits[1]), e.shuffle(bits[0], _HIGH, bits[1]))
    for step in (4, 2, 1):
        largest = _larger(e, largest, e.shuffle(largest, [lane ^ step for lane in range(LANES)]))
    maximum = e.shuffle(e.b.bitcast(largest, F16L), (0, EIGHT))
    top, zero = e.every(maximum.type, 127.0), e.every(maximum.type, 0.0)
    # The inverse of a denormal maximum is infinite, and products with it are NaN.
    is_small = e.b.fcmp_ordered("<", maximum, e.every(maximum.type, 1e-30))
    scales, inverses = e.b.fdiv(maximum, top), e.b.fdiv(top, maximum)
    return e.b.select(is_small, zero, scales), e.b.select(is_small, zero, inverses)


def _larger(e: Emitter, x: Value, y: Value) -> Value:
    return e.call("llvm.umax.v16i32", L16, x, y)


def _rounded(e: Emitter, vector: Value, inverse: Value) -> Value:
    """Return integers; their bits are those of the sums with a number that leaves no fractions."""
    scaled = e.b.fmul(vector, inverse)
    shifted = e.b.fadd(scaled, e.every(F16L, _SHIFT))
    return e.b.sub(e.b.bitcast(shifted, L16), e.b.bitcast(e.every(F16L, _SHIFT), L16))
