"""Products of a row of floats with float32 activations."""

from typing import Any, TypeAlias

from llvmlite import ir

from mindspore_serving.llm.runtimes.native.kernels.emitter import (
    F16,
    F16L,
    F32,
    I16,
    I32,
    L16,
    Emitter,
)
from mindspore_serving.llm.runtimes.native.kernels.formats import KernelFormat
from mindspore_serving.llm.runtimes.native.kernels.row import ProductRow, ProductTokens

Value: TypeAlias = Any
STEP = 64  # columns of a pass
LANES = 16


def products(
    format_: KernelFormat, e: Emitter, row: ProductRow, tokens: ProductTokens
) -> list[Value]:
    """Return the products of each token with the row."""
    zero = e.every(F16L, 0.0)
    sums = [[e.variable(zero) for _ in range(STEP // LANES)] for _ in tokens.addresses]
    with e.loop(e.c(0), tokens.columns, STEP) as column:
        for part in range(STEP // LANES):
            index = e.b.add(column, e.c(part * LANES))
            weights = _floats(format_, e, row.address, index, LANES)
            for token, variables in zip(tokens.addresses, sums, strict=True):
                x = e.load(token, F16L, e.b.mul(index, e.c(4)))
                e.b.store(e.fma(weights, x, e.b.load(variables[part])), variables[part])
    rest = [e.variable(ir.Constant(F32, 0.0)) for _ in tokens.addresses]
    whole = e.b.mul(e.b.udiv(tokens.columns, e.c(STEP)), e.c(STEP))
    with e.loop(whole, tokens.columns) as column:
        weight = _floats(format_, e, row.address, column, 1)
        for token, variable in zip(tokens.addresses, rest, strict=True):
            x = e.load(token, F32, e.b.mul(column, e.c(4)))
            e.b.store(e.fma(weight, x, e.b.load(variable)), variable)
    totals = []
    for variables, variable in zip(sums, rest, strict=True):
        first, second, third, fourth = (e.b.load(v) for v in variables)
        vector = e.b.fadd(e.b.fadd(first, second), e.b.fadd(third, fourth))
        totals.append(e.b.fadd(e.total(vector), e.b.load(variable)))
    return totals


def _floats(format_: KernelFormat, e: Emitter, address: Value, index: Value, count: int) -> Value:
    """Return `count` weights as float32: a vector, or a number for 1."""

    def kind(element: Any) -> Any:
        return element if count == 1 else ir.VectorType(element, count)

    offset = e.b.mul(index, e.c(format_.bytes))
    if format_.name == "F32":
        return e.load(address, kind(F32), offset)
    if format_.name == "F16":
        return e.b.fpext(e.load(address, kind(F16), offset), kind(F32))
    bits = e.b.zext(e.load(address, kind(I16), offset), kind(I32))
    sixteen = ir.Constant(I32, 16) if count == 1 else e.every(L16, 16)
    return e.b.bitcast(e.b.shl(bits, sixteen), kind(F32))
