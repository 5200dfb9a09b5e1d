"""Products of a row of blocks of 256 weights: integers in each block, floats between blocks.

The layouts are those of ggml's blocks of these types.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from llvmlite import ir

from mindspore_serving.llm.runtimes.native.kernels.codes import codebook
from mindspore_serving.llm.runtimes.native.kernels.emitter import (
    F16,
    F16L,
    F32,
    I8,
    I16,
    I32,
    L16,
    S32,
    U64,
    Emitter,
)
from mindspore_serving.llm.runtimes.native.kernels.formats import KernelFormat
from mindspore_serving.llm.runtimes.native.kernels.row import ProductRow

Value: TypeAlias = Any
BLOCK = 256
V32 = ir.VectorType(I8, 32)
SCALES = ir.VectorType(I16, 16)
PAIRS = ir.VectorType(I32, 8)
FLOATS = ir.VectorType(F32, 8)


@dataclass(frozen=True, slots=True)
class KBlock:
    """Weights of a block: `scale` * (scale of 16 * weight) - `offset` * (minimum of 16)."""

    scale: Value  # float32
    parts: Sequence[Value]  # four times 64 weights, unsigned unless `is_signed`
    scales: Value  # int16 [16], of every 16 weights
    minimums: Value  # int16 [16]
    offset: Value | None  # float32; None: no minimums
    is_signed: bool = False


def row_products(format_: KernelFormat, e: Emitter, row: ProductRow) -> list[Value]:
    """Return the products with each token."""
    sums = [e.variable(e.every(F16L, 0.0)) for _ in row.tokens]
    lows = [e.variable(e.every(FLOATS, 0.0)) for _ in row.tokens]
    with e.loop(e.c(0), e.b.udiv(row.columns, e.c(BLOCK))) as index:
        address = e.b.add(row.address, e.b.mul(index, e.c(format_.bytes)))
        e.prefetch(address, format_.bytes)
        block = _READERS[format_.name](e, address)
        lanes = [
            e.shuffle(block.scales, [4 * part + lane // 8 for lane in range(32)])
            for part in range(4)
        ]
        add = e.add_scaled_signed if block.is_signed else e.add_scaled
        for t, token in enumerate(row.tokens):
            values = e.b.add(token, e.b.mul(index, e.c(BLOCK)))
            total = e.every(L16, 0)
            for part, weights in enumerate(block.parts):
                total = add(total, weights, e.load(values, U64, 64 * part), lanes[part])
            scale = e.load(row.scales[t], F32, e.b.mul(index, e.c(4)))
            by = e.splat(e.b.fmul(scale, block.scale), 16)
            e.b.store(e.fma(e.b.sitofp(total, F16L), by, e.b.load(sums[t])), sums[t])
            if block.offset is not None:
                of_16 = e.load(row.sums[t], SCALES, e.b.mul(index, e.c(BLOCK // 8)))
                low = e.b.sitofp(e.multiply_pairs(block.minimums, of_16), FLOATS)
                by = e.splat(e.b.fneg(e.b.fmul(scale, block.offset)), 8)
                e.b.store(e.fma(low, by, e.b.load(lows[t])), lows[t])
    return [
        e.b.fadd(e.total(e.b.load(high)), e.total(e.b.load(low)))
        for high, low in zip(sums, lows, strict=True)
    ]


def _half(e: Emitter, address: Value, offset: int) -> Value:
    return e.b.fpext(e.load(address, F16, offset), F32)


def _times(e: Emitter, value: Value, number: float) -> Value:
    return e.b.fmul(value, ir.Constant(F32, number))


def _six_bits(e: Emitter, address: Value) -> tuple[Value, Value]:
    """Return eight scales and eight minimums of 6 bits, packed in 12 bytes, int16 [16] each."""
    first, second, third = (e.load(address, I32, 4 * at) for at in range(3))

    def low(word: Value) -> Value:
        return e.b.and_(word, e.c(0x3F3F3F3F, I32))

    def high(nibbles: Value, word: Value) -> Value:
        top = e.b.and_(e.b.lshr(word, e.c(2, I32)), e.c(0x30303030, I32))
        return e.b.or_(e.b.and_(nibbles, e.c(0x0F0F0F0F, I32)), top)

    scales = e.vector([low(first), high(third, first)])
    minimums = e.vector([low(second), high(e.b.lshr(third, e.c(4, I32)), second)])
    both = []
    for words in (scales, minimums):
        values = e.b.zext(e.b.bitcast(words, ir.VectorType(I8, 8)), ir.VectorType(I16, 8))
        both.append(e.shuffle(values, [lane // 2 for lane in range(16)]))
    return both[0], both[1]


def _q4_k(e: Emitter, address: Value) -> KBlock:
    scales, minimums = _six_bits(e, e.b.add(address, e.c(4)))
    parts = [e.bits(e.twice(e.load(address, V32, 16 + 32 * k)), (0, 4), 15) for k in range(4)]
    return KBlock(_half(e, address, 0), parts, scales, minimums, _half(e, address, 2))


def _q5_k(e: Emitter, address: Value) -> KBlock:
    scales, minimums = _six_bits(e, e.b.add(address, e.c(4)))
    top = e.twice(e.load(address, V32, 16))
    parts = []
    for k in range(4):
        nibbles = e.bits(e.twice(e.load(address, V32, 48 + 32 * k)), (0, 4), 15)
        fifth = e.left(e.bits(top, (2 * k, 2 * k + 1), 1), 4)
        parts.append(e.b.or_(nibbles, fifth))
    return KBlock(_half(e, address, 0), parts, scales, minimums, _half(e, address, 2))


def _q6_k(e: Emitter, address: Value) -> KBlock:
    parts = []
    for half in range(2):
        low = e.load(address, U64, 64 * half)
        high = e.twice(e.load(address, V32, 128 + 32 * half))
        for nibble in range(2):
            four = e.bits(low, (4 * nibble, 4 * nibble), 15)
            two = e.bits(high, (4 * nibble, 4 * nibble + 2), 3)
            parts.append(e.b.or_(four, e.left(two, 4)))
    scales = e.b.sext(e.load(address, ir.VectorType(I8, 16), 192), SCALES)
    scale = _half(e, address, 208)
    return KBlock(scale, parts, scales, scales, _times(e, scale, 32))


def _q2_k(e: Emitter, address: Value) -> KBlock:
    both = e.load(address, ir.VectorType(I8, 16))
    both = e.b.zext(both, SCALES)
    scales = e.b.and_(both, e.every(SCALES, 15))
    minimums = e.b.lshr(both, e.every(SCALES, 4))
    parts = [
        e.bits(e.twice(e.load(address, V32, 16 + 32 * half)), shifts, 3)
        for half in range(2)
        for shifts in ((0, 2), (4, 6))
    ]
    return KBlock(_half(e, address, 80), parts, scales, minimums, _half(e, address, 82))


def _q3_k(e: Emitter, address: Value) -> KBlock:
    top = e.twice(e.load(address, V32))
    parts = []
    for half in range(2):
        low = e.twice(e.load(address, V32, 32 + 32 * half))
        for pair in range(2):
            two = e.bits(low, (4 * pair, 4 * pair + 2), 3)
            bit = 4 * half + 2 * pair
            parts.append(e.b.or_(two, e.left(e.bits(top, (bit, bit + 1), 1), 2)))
    first, second, third = (e.load(address, I32, 96 + 4 * at) for at in range(3))
    words = []
    for at, word in enumerate((first, second, first, second)):
        low = e.b.and_(e.b.lshr(word, e.c(4 * (at // 2), I32)), e.c(0x0F0F0F0F, I32))
        high = e.b.and_(e.b.lshr(third, e.c(2 * at, I32)), e.c(0x03030303, I32))
        words.append(e.b.or_(low, e.b.shl(high, e.c(4, I32))))
    six = e.b.zext(e.b.bitcast(e.vector(words), ir.VectorType(I8, 16)), SCALES)
    scales = e.b.sub(six, e.every(SCALES, 32))
    scale = _half(e, address, 108)
    return KBlock(scale, parts, scales, scales, _times(e, scale, 4))


def _iq4_xs(e: Emitter, address: Value) -> KBlock:
    parts = []
    for part in range(4):
        pair = e.load(address, V32, 8 + 32 * part)
        # 16 bytes hold 32 weights: low nibbles first.
        order = [*range(16), *range(16), *range(16, 32), *range(16, 32)]
        words = e.b.bitcast(e.shuffle(pair, order), S32)
        shifts = e.const(I16, ([0] * 8 + [4] * 8) * 2)
        nibbles = e.b.and_(e.b.bitcast(e.b.lshr(words, shifts), U64), e.every(U64, 15))
        parts.append(codebook(e, nibbles, "IQ4_NL"))
    low = e.b.zext(e.load(address, ir.VectorType(I8, 4), 4), ir.VectorType(I16, 4))
    low = e.shuffle(low, [lane // 4 for lane in range(16)])
    low = e.b.and_(e.b.lshr(low, e.const(I16, [4 * (lane // 2 % 2) for lane in range(16)])),
                   e.every(SCALES, 15))  # fmt: skip
    high = e.splat(e.load(address, I16, 2), 16)
    high = e.b.lshr(high, e.const(I16, [2 * (lane // 2) for lane in range(16)]))
    high = e.b.shl(e.b.and_(high, e.every(SCALES, 3)), e.every(SCALES, 4))
    scales = e.b.sub(e.b.or_(low, high), e.every(SCALES, 32))
    scale, offset = _half(e, address, 0), e.signed_offset
    low_scale = _times(e, scale, offset) if offset else None
    return KBlock(scale, parts, scales, scales, low_scale, is_signed=True)


_READERS: dict[str, Callable[[Emitter, Value], KBlock]] = {
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_XS": _iq4_xs,
}
