"""Products of a row of blocks of 32 weights: integers in each block, floats between blocks.

The layouts are those of ggml's blocks of these types, and of int4 and int8 of `llm.quantize`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from llvmlite import ir

from mindspore_serving.llm.runtimes.native.kernels.codes import codebook
from mindspore_serving.llm.runtimes.native.kernels.emitter import (
    F16,
    F16L,
    F32,
    I1,
    I8,
    I16,
    I32,
    I64,
    S32,
    U64,
    Emitter,
)
from mindspore_serving.llm.runtimes.native.kernels.formats import KernelFormat
from mindspore_serving.llm.runtimes.native.kernels.row import ProductRow

Value: TypeAlias = Any
BLOCK = 32
TOGETHER = 4  # blocks of a pass
V16, V32, QUADS = ir.VectorType(I8, 16), ir.VectorType(I8, 32), ir.VectorType(F32, TOGETHER)


@dataclass(frozen=True, slots=True)
class BlockReader:
    """Weights of blocks: (integer - `offset`) * scale, or integer * scale + minimum.

    `read` returns the 64 integers of two blocks, by their addresses and the offset of the integers.
    """

    read: Callable[[Emitter, Value, Value, int], Value]
    values: int  # offset of the integers in a block
    offset: int = 0
    minimum: int | None = None  # offset of a float16 in a block
    is_signed: bool = False

    def weights(self, e: Emitter, first: Value, second: Value) -> Value:
        return self.read(e, first, second, self.values)


def row_products(format_: KernelFormat, e: Emitter, row: ProductRow) -> list[Value]:
    """Return the products with each token."""
    sums = [e.variable(e.every(F16L, 0.0)) for _ in row.tokens]
    lows = [e.variable(e.every(QUADS, 0.0)) for _ in row.tokens]
    blocks = e.b.udiv(row.columns, e.c(BLOCK))
    whole = e.b.mul(e.b.udiv(blocks, e.c(TOGETHER)), e.c(TOGETHER))
    with e.loop(e.c(0), whole, TOGETHER) as index:
        address = e.b.add(row.address, e.b.mul(index, e.c(format_.bytes)))
        e.prefetch(address, TOGETHER * format_.bytes)
        _add(format_, e, row, (index, TOGETHER), (sums, lows))
    with e.loop(whole, blocks) as index:
        _add(format_, e, row, (index, 1), (sums, lows))
    totals = [
        e.b.fadd(e.total(e.b.load(high)), e.total(e.b.load(low)))
        for high, low in zip(sums, lows, strict=True)
    ]
    if format_.scale_group >= 0:
        return totals
    scale = e.b.fpext(e.load(row.weight_scales, F16, e.b.mul(row.index, e.c(2))), F32)
    return [e.b.fmul(total, scale) for total in totals]


def _add(
    format_: KernelFormat,
    e: Emitter,
    row: ProductRow,
    blocks: tuple[Value, int],
    variables: tuple[list[Value], list[Value]],
) -> None:
    """Add the products of some blocks, the first and their number, to each token's variables."""
    reader, (index, count) = _READERS[format_.name], blocks
    at = [
        e.b.add(row.address, e.b.mul(e.b.add(index, e.c(k)), e.c(format_.bytes)))
        for k in range(count)
    ]
    scales = _quad(e, _scales(format_, e, row, index, at))
    lows = _lows(format_, e, row, (index, at), scales)
    pairs = [(at[k], at[min(k + 1, count - 1)]) for k in range(0, count, 2)]
    weights = [reader.weights(e, *pair) for pair in pairs]
    for t, token in enumerate(row.tokens):
        of_4 = e.b.mul(index, e.c(4))
        token_scales = _part(e, row.scales[t], of_4, count)
        by = e.b.fmul(scales, token_scales) if scales is not None else token_scales
        for k, vector in enumerate(weights):
            values = e.b.add(token, e.b.mul(index, e.c(BLOCK)))
            x = _activations(e, values, 2 * BLOCK * k, count)
            total = (e.dot_signed if reader.is_signed else e.dot)(vector, x)
            lanes = e.shuffle(by, [2 * k + lane // 8 for lane in range(16)])
            variable = variables[0][t]
            e.b.store(e.fma(e.b.sitofp(total, F16L), lanes, e.b.load(variable)), variable)
        if lows is not None:
            variable = variables[1][t]
            sums = _part(e, row.sums[t], of_4, count)
            e.b.store(e.fma(lows, sums, e.b.load(variable)), variable)


def _activations(e: Emitter, address: Value, offset: int, count: int) -> Value:
    """Return 64 activations; of a single block, 32 and zeros."""
    if count > 1:
        return e.load(address, U64, offset)
    return e.join(e.load(address, V32, offset), e.every(V32, 0))


def _part(e: Emitter, address: Value, offset: Value, count: int) -> Value:
    """Return four floats, or one and zeros."""
    if count > 1:
        return e.load(address, QUADS, offset)
    return e.b.insert_element(e.every(QUADS, 0.0), e.load(address, F32, offset), e.c(0, I32))


def _quad(e: Emitter, values: list[Value] | None) -> Value | None:
    """Return floats of four blocks as a vector; the missing ones are 0."""
    if values is None:
        return None
    zero = ir.Constant(values[0].type, 0)
    vector = e.vector(values + [zero] * (TOGETHER - len(values)))
    if values[0].type == F16:
        return e.b.fpext(vector, QUADS)
    return e.b.bitcast(vector, QUADS) if values[0].type == I32 else vector


def _scales(
    format_: KernelFormat, e: Emitter, row: ProductRow, index: Value, at: list[Value]
) -> list[Value] | None:
    """Return the scale of each block: float16, or float32 as bits; None: the row has one."""
    if format_.scale_group < 0:
        return None
    if format_.name == "MXFP4":  # 2 ** (byte - 128): `CODES` are twice the numbers
        return [_power_of_two(e, e.load(address, I8)) for address in at]
    if not format_.scale_group:
        return [e.load(address, F16) for address in at]
    groups = _group_indices(format_, e, row, index, len(at))
    return [e.load(row.weight_scales, F16, e.b.mul(group, e.c(2))) for group in groups]


def _group_indices(
    format_: KernelFormat, e: Emitter, row: ProductRow, index: Value, count: int
) -> list[Value]:
    group = e.c(format_.scale_group // BLOCK)
    first = e.b.mul(row.index, e.b.udiv(row.columns, e.c(format_.scale_group)))
    return [e.b.add(first, e.b.udiv(e.b.add(index, e.c(k)), group)) for k in range(count)]


def _power_of_two(e: Emitter, byte: Value) -> Value:
    """Return the bits of 2 ** (byte - 128) as float32; the two smallest are no normal numbers."""
    exponent = e.b.zext(byte, I32)
    normal = e.b.shl(e.b.sub(exponent, e.c(1, I32)), e.c(23, I32))
    small = e.b.shl(e.c(0x00200000, I32), exponent)
    return e.b.select(e.b.icmp_unsigned("<", exponent, e.c(2, I32)), small, normal)


def _lows(
    format_: KernelFormat,
    e: Emitter,
    row: ProductRow,
    blocks: tuple[Value, list[Value]],
    scales: Value,
) -> Value | None:
    """Return what is added per sum of a block's activations, float32 [4]; None for nothing."""
    reader, (index, at) = _READERS[format_.name], blocks
    if reader.minimum is not None:
        return _quad(e, [e.load(address, F16, reader.minimum) for address in at])
    if format_.has_zeros:
        groups = _group_indices(format_, e, row, index, len(at))
        zeros = [e.b.uitofp(e.load(row.weight_zeros, I8, group), F32) for group in groups]
        return e.b.fneg(e.b.fmul(scales, _quad(e, zeros)))
    offset = e.signed_offset if reader.is_signed else reader.offset
    if not offset:
        return None
    constant = e.every(QUADS, -float(offset))
    return constant if scales is None else e.b.fmul(scales, constant)


def _nibbles(e: Emitter, first: Value, second: Value, offset: int) -> Value:
    """Return two blocks of 32 nibbles: the low ones of 16 bytes, then the high ones."""
    both = e.join(e.load(first, V16, offset), e.load(second, V16, offset))
    order = [*range(16), *range(16), *range(16, 32), *range(16, 32)]
    words = e.b.bitcast(e.shuffle(both, order), S32)
    shifted = e.b.lshr(words, e.const(I16, ([0] * 8 + [4] * 8) * 2))
    return e.b.and_(e.b.bitcast(shifted, U64), e.every(U64, 15))


def _five_bits(e: Emitter, first: Value, second: Value, offset: int) -> Value:
    """Return two blocks of nibbles with a fifth bit, from 4 bytes before the nibbles."""
    low, high = (e.b.zext(e.load(address, I32, offset), I64) for address in (first, second))
    bits = e.b.bitcast(e.b.or_(low, e.b.shl(high, e.c(32))), ir.VectorType(I1, 64))
    fifth = e.b.select(bits, e.every(U64, 16), e.every(U64, 0))
    return e.b.or_(_nibbles(e, first, second, offset + 4), fifth)


def _bytes(e: Emitter, first: Value, second: Value, offset: int) -> Value:
    return e.join(e.load(first, V32, offset), e.load(second, V32, offset))


def _neighbours(e: Emitter, first: Value, second: Value, _: int) -> Value:
    """Return two blocks of nibbles, the two of a byte beside each other."""
    words = e.b.zext(e.join(e.load(first, V16), e.load(second, V16)), S32)
    spread = e.b.or_(words, e.b.shl(words, e.every(S32, 4)))
    return e.b.and_(e.b.bitcast(spread, U64), e.every(U64, 15))


def _signed_neighbours(e: Emitter, first: Value, second: Value, _: int) -> Value:
    """Return as `_neighbours`, with 8 added to signed nibbles."""
    return e.b.xor(_neighbours(e, first, second, 0), e.every(U64, 8))


def _codes(name: str) -> Callable[[Emitter, Value, Value, int], Value]:
    return lambda e, first, second, at: codebook(e, _nibbles(e, first, second, at), name)


_READERS = {
    "Q4_0": BlockReader(_nibbles, 2, offset=8),
    "Q4_1": BlockReader(_nibbles, 4, minimum=2),
    "Q5_0": BlockReader(_five_bits, 2, offset=16),
    "Q5_1": BlockReader(_five_bits, 4, minimum=2),
    "Q8_0": BlockReader(_bytes, 2, is_signed=True),
    "IQ4_NL": BlockReader(_codes("IQ4_NL"), 2, is_signed=True),
    "MXFP4": BlockReader(_codes("MXFP4"), 1, offset=12),
    "INT8": BlockReader(_bytes, 0, is_signed=True),
    **{f"INT4_{group}": BlockReader(_signed_neighbours, 0, offset=8) for group in (32, 64, 128)},
    **{f"INT4_{group}_ZEROS": BlockReader(_neighbours, 0) for group in (32, 64, 128)},
}
