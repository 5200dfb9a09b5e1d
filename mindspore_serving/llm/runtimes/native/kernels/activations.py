"""Rounding of activations to int8, one scale per block, and the sums that products need."""

from enum import IntEnum
from typing import Any, TypeAlias

from llvmlite import ir

from mindspore_serving.llm.runtimes.native.kernels.emitter import (
    F16L,
    F32,
    I8,
    I16,
    I64,
    L16,
    Emitter,
)
from mindspore_serving.llm.runtimes.native.kernels.formats import Activations

Value: TypeAlias = Any
LANES = 16


class QuantiseArgument(IntEnum):
    """Indices of the arguments: addresses, and sizes and offsets in bytes."""

    X = 0  # float32 rows
    X_STRIDE = 1
    OUT = 2  # rows of `ActivationLayout`
    OUT_STRIDE = 3
    SCALES = 4
    SUMS = 5
    COLUMNS = 6  # count


def quantise_body(kind: Activations, e: Emitter, arguments: Value, chunk: Value) -> None:
    """Write the code that rounds one row; a chunk is a row."""
    a = {name: e.load(arguments, I64, 8 * name) for name in QuantiseArgument}
    x = e.b.add(a[QuantiseArgument.X], e.b.mul(chunk, a[QuantiseArgument.X_STRIDE]))
    out = e.b.add(a[QuantiseArgument.OUT], e.b.mul(chunk, a[QuantiseArgument.OUT_STRIDE]))
    scales = e.b.add(out, a[QuantiseArgument.SCALES])
    sums = e.b.add(out, a[QuantiseArgument.SUMS])
    with e.loop(e.c(0), e.b.udiv(a[QuantiseArgument.COLUMNS], e.c(kind))) as block:
        source = e.b.add(x, e.b.mul(block, e.c(4 * kind)))
        target = e.b.add(out, e.b.mul(block, e.c(kind)))
        vectors = [e.load(source, F16L, 4 * at) for at in range(0, kind, LANES)]
        scale, inverse = _scale(e, vectors)
        e.store(scale, scales, e.b.mul(block, e.c(4)))
        rounded = [_rounded(e, vector, inverse) for vector in vectors]
        for at, values in enumerate(rounded):
            e.store(e.b.trunc(values, ir.VectorType(I8, LANES)), target, LANES * at)
        if kind == Activations.BLOCKS_OF_256:
            for at, values in enumerate(rounded):
                address = e.b.add(sums, e.b.mul(block, e.c(kind // 8)))
                e.store(e.b.trunc(e.total(values), I16), address, 2 * at)
        else:
            total = e.b.sitofp(e.total(e.b.add(*rounded)), F32)
            e.store(e.b.fmul(total, scale), sums, e.b.mul(block, e.c(4)))


def _scale(e: Emitter, vectors: list[Value]) -> tuple[Value, Value]:
    """Return the scale of a block and its inverse, 0 of zeros; NaN stays NaN."""
    largest = None
    for vector in vectors:
        absolute = e.call("llvm.fabs.v16f32", F16L, vector)
        largest = (
            absolute if largest is None else e.call("llvm.maximum.v16f32", F16L, largest, absolute)
        )
    maximum = e.call("llvm.vector.reduce.fmaximum.v16f32", F32, largest)
    zero = ir.Constant(F32, 0.0)
    inverse = e.b.fdiv(ir.Constant(F32, 127.0), maximum)
    # The inverse of a denormal maximum is infinite, and products with it are NaN.
    is_small = e.b.fcmp_ordered("<", maximum, ir.Constant(F32, 1e-30))
    scale = e.b.fdiv(maximum, ir.Constant(F32, 127.0))
    return e.b.select(is_small, zero, scale), e.b.select(is_small, zero, inverse)


def _rounded(e: Emitter, vector: Value, inverse: Value) -> Value:
    scaled = e.b.fmul(vector, e.splat(inverse, LANES))
    nearest = e.call("llvm.rint.v16f32", F16L, scaled)
    return e.call("llvm.fptosi.sat.v16i32.v16f32", L16, nearest)
