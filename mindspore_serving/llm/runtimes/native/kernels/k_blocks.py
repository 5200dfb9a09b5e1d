"""Weights of GGUF's blocks of 256, in the layouts of ggml, as groups."""

from collections.abc import Sequence
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
    U64,
    Emitter,
)
from mindspore_serving.llm.runtimes.native.kernels.groups import (
    DOUBLED,
    PARTS,
    GroupReader,
    GroupSource,
    WeightGroup,
)

Value: TypeAlias = Any
V16, V32, QUADS = ir.VectorType(I8, 16), ir.VectorType(I8, 32), ir.VectorType(I32, 4)
EVEN, ODD = (tuple(lane // 2 * 2 + side for lane in range(16)) for side in range(2))
# High nibbles are left where they are, so that sums of them are 16 times too large.
NIBBLES = tuple(1 / 16 if lane // 2 % 2 else 1.0 for lane in range(16))


def _numbers(e: Emitter, integers: Value, scale: Value) -> Value:
    """Return 16 integers times one number, or 16, as float32."""
    return e.b.fmul(e.b.sitofp(integers, F16L), scale)


def _half(e: Emitter, address: Value, offset: int) -> Value:
    """Return a float16 as a vector of float32."""
    return e.splat(e.b.fpext(e.load(address, F16, offset), F32), 16)


def _halves_of(e: Emitter, numbers: Value) -> list[Value]:
    """Return the numbers of the first 16 and of the last 16 columns of each block."""
    return [e.shuffle(numbers, lanes) for lanes in (EVEN, ODD)]


def _scales_and_minimums(e: Emitter, address: Value) -> tuple[Value, Value]:
    """Return eight scales and eight minimums, of 6 bits in 12 bytes after two float16."""
    raw = e.load(address, QUADS)
    low = e.b.lshr(e.shuffle(raw, (1, 3, 2, 3)), e.const(I32, (0, 0, 0, 4)))
    low = e.b.and_(low, e.const(I32, (0x3F3F3F3F, 0x0F0F0F0F) * 2))
    high = e.b.lshr(e.shuffle(raw, (0, 1, 0, 2)), e.const(I32, (2,) * 4))
    high = e.b.and_(high, e.const(I32, (0, 0x30303030) * 2))
    integers = e.b.zext(e.b.bitcast(e.b.or_(low, high), V16), L16)
    pair = e.b.fpext(e.load(address, ir.VectorType(F16, 2)), ir.VectorType(F32, 2))
    numbers = _numbers(e, integers, e.shuffle(pair, (0,) * 8 + (1,) * 8))
    return e.shuffle(numbers, DOUBLED), e.shuffle(numbers, [8 + block for block in DOUBLED])


def _nibble_pairs(e: Emitter, address: Value, offset: int) -> list[Value]:
    """Return nibbles of 128 bytes: of each 32, the low ones are a block, the high ones the next."""
    first, second = (e.load(address, U64, offset + 64 * at) for at in range(2))
    parts = []
    for k in range(PARTS):
        order = [k + 4 * (block // 2) for block in range(8)]
        parts.append(e.words(first, order, second))
    return parts


def _q4_k(e: Emitter, source: GroupSource) -> WeightGroup:
    scales, minimums = _scales_and_minimums(e, source.address)
    parts = _nibble_pairs(e, source.address, 16)
    if not e.takes_bytes:
        parts = [e.masked(e.right(part, (0, 4) * 4), 15) for part in parts]
        return WeightGroup(parts, [scales], [minimums])
    mask = e.const(I8, ([15] * 8 + [-16] * 8) * 4)
    return WeightGroup([e.b.and_(part, mask) for part in parts], [scales], [minimums], NIBBLES)


def _bits(e: Emitter, address: Value, offset: int, number: int) -> list[Value]:
    """Return `number` for each bit that is set: bit n of 32 bytes is of block n."""
    bytes_ = e.load(address, V32, offset)
    parts = []
    for k in range(PARTS):
        part = e.shuffle(bytes_, [8 * k + lane % 8 for lane in range(64)])
        bit = e.const(I8, [(1, 2, 4, 8, 16, 32, 64, -128)[lane // 8] for lane in range(64)])
        is_set = e.b.icmp_unsigned("!=", e.b.and_(part, bit), e.every(U64, 0))
        parts.append(e.b.select(is_set, e.every(U64, number), e.every(U64, 0)))
    return parts


def _q5_k(e: Emitter, source: GroupSource) -> WeightGroup:
    scales, minimums = _scales_and_minimums(e, source.address)
    parts = []
    for low, fifth in zip(
        _nibble_pairs(e, source.address, 48), _bits(e, source.address, 16, 16), strict=True
    ):
        parts.append(e.b.or_(e.masked(e.right(low, (0, 4) * 4), 15), fifth))
    return WeightGroup(parts, [scales], [minimums])


def _pairs_of_bits(e: Emitter, address: Value, offset: int) -> list[Value]:
    """Return 64 bytes, the first 32 for four blocks and the last 32 for four more."""
    bytes_ = e.load(address, U64, offset)
    return [e.words(bytes_, [k] * 4 + [4 + k] * 4) for k in range(PARTS)]


def _q6_k(e: Emitter, source: GroupSource) -> WeightGroup:
    first, second = (e.load(source.address, U64, 64 * at) for at in range(2))
    parts = []
    for k, pairs in enumerate(_pairs_of_bits(e, source.address, 128)):
        order = [k, k + 4, k, k + 4]
        nibbles = e.words(first, order + [8 + at for at in order], second)
        low = e.masked(e.right(nibbles, (0, 0, 4, 4) * 2), 15)
        high = e.left(e.masked(e.right(pairs, (0, 2, 4, 6) * 2), 3), (4,) * 8)
        parts.append(e.b.or_(low, high))
    scales = e.b.sext(e.load(source.address, V16, 192), L16)
    return WeightGroup(parts, _halves_of(e, _numbers(e, scales, _half(e, source.address, 208))))


def _q2_k(e: Emitter, source: GroupSource) -> WeightGroup:
    both = e.b.zext(e.load(source.address, V16), L16)
    scales = e.b.and_(both, e.every(L16, 15))
    minimums = e.b.lshr(both, e.every(L16, 4))
    parts = [
        e.masked(e.right(pairs, (0, 2, 4, 6) * 2), 3)
        for pairs in _pairs_of_bits(e, source.address, 16)
    ]
    high, low = (
        _halves_of(e, _numbers(e, integers, _half(e, source.address, offset)))
        for integers, offset in ((scales, 80), (minimums, 82))
    )
    return WeightGroup(parts, high, low)


def _q3_k(e: Emitter, source: GroupSource) -> WeightGroup:
    parts = []
    for pairs, third in zip(
        _pairs_of_bits(e, source.address, 32), _bits(e, source.address, 0, 4), strict=True
    ):
        parts.append(e.b.or_(e.masked(e.right(pairs, (0, 2, 4, 6) * 2), 3), third))
    words = e.load(source.address, ir.VectorType(I32, 3), 96)
    low = e.b.lshr(e.shuffle(words, (0, 1, 0, 1)), e.const(I32, (0, 0, 4, 4)))
    low = e.b.and_(low, e.const(I32, (0x0F0F0F0F,) * 4))
    high = e.b.lshr(e.shuffle(words, (2,) * 4), e.const(I32, (0, 2, 4, 6)))
    high = e.b.shl(e.b.and_(high, e.const(I32, (0x03030303,) * 4)), e.const(I32, (4,) * 4))
    six = e.b.zext(e.b.bitcast(e.b.or_(low, high), V16), L16)
    numbers = _numbers(e, e.b.sub(six, e.every(L16, 32)), _half(e, source.address, 108))
    return WeightGroup(parts, _halves_of(e, numbers))


def nibbles(e: Emitter, halves: Sequence[Value]) -> list[Value]:
    """Return the low nibbles of the first and last 8 bytes of each block, then the high ones."""
    return [e.masked(e.right(half, (at,) * 8), 15) for at in (0, 4) for half in halves]


def _iq4_xs(e: Emitter, source: GroupSource) -> WeightGroup:
    first, second = (e.load(source.address, U64, 8 + 64 * at) for at in range(2))
    halves = [e.words(first, range(side, 16, 2), second) for side in range(2)]
    parts = [codebook(e, part, "IQ4_NL") for part in nibbles(e, halves)]
    low = e.shuffle(e.load(source.address, ir.VectorType(I8, 4), 4), [b // 2 for b in DOUBLED])
    low = e.b.lshr(e.b.zext(low, L16), e.const(I32, [4 * (block % 2) for block in DOUBLED]))
    high = e.splat(e.b.zext(e.load(source.address, I16, 2), I32), 16)
    high = e.b.lshr(high, e.const(I32, [2 * block for block in DOUBLED]))
    high = e.b.shl(e.b.and_(high, e.every(L16, 3)), e.every(L16, 4))
    scales = e.b.or_(e.b.and_(low, e.every(L16, 15)), high)
    scales = e.b.sub(scales, e.every(L16, 32))
    return WeightGroup(parts, [_numbers(e, scales, _half(e, source.address, 0))])


READERS = {
    "Q2_K": GroupReader(_q2_k),
    "Q3_K": GroupReader(_q3_k, offset=4),
    "Q4_K": GroupReader(_q4_k),
    "Q5_K": GroupReader(_q5_k),
    "Q6_K": GroupReader(_q6_k, offset=32),
    "IQ4_XS": GroupReader(_iq4_xs, is_signed=True),
}
