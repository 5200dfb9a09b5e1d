"""Weights of blocks of 32 as groups: GGUF's types, in the layouts of ggml, and int4 and int8."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from llvmlite import ir

from mindspore_serving.llm.runtimes.native.kernels.codes import codebook
from mindspore_serving.llm.runtimes.native.kernels.emitter import (
    F16,
    F16L,
    I8,
    I16,
    I32,
    I64,
    L16,
    U64,
    Emitter,
)
from mindspore_serving.llm.runtimes.native.kernels.formats import (
    BLOCK,
    FORMATS,
    TOGETHER,
    KernelFormat,
)
from mindspore_serving.llm.runtimes.native.kernels.groups import (
    DOUBLED,
    PARTS,
    GroupReader,
    GroupSource,
    WeightGroup,
)
from mindspore_serving.llm.runtimes.native.kernels.k_blocks import EVEN, ODD, nibbles

Value: TypeAlias = Any
V16, V32, HALVES = ir.VectorType(I8, 16), ir.VectorType(I8, 32), ir.VectorType(F16, 16)
S32 = ir.VectorType(I16, 32)


def _heads(e: Emitter, source: GroupSource, stride: int, element: Any) -> Value:
    """Return the first bytes of eight blocks, a number of type `element` of each."""
    kind, size = ir.VectorType(element, TOGETHER), element.width // 8
    heads = None
    for k in range(TOGETHER):
        # The number is lane k of a vector that begins at or after the first block.
        loaded = e.load(source.address, kind, (stride - size) * k)
        lanes = [TOGETHER + lane if lane == k else lane for lane in range(TOGETHER)]
        heads = loaded if heads is None else e.shuffle(heads, lanes, loaded)
    return heads


def _scales(e: Emitter, heads: Value) -> tuple[Value, Value]:
    """Return the first and the second float16 of each block, as float32 [16]."""
    halves = e.b.bitcast(
        heads, ir.VectorType(F16, heads.type.count * heads.type.element.width // 16)
    )
    if halves.type.count > 16:
        halves = e.shuffle(halves, [4 * (lane // 2) + lane % 2 for lane in range(16)])
    numbers = e.b.fpext(halves, F16L)
    return e.shuffle(numbers, EVEN), e.shuffle(numbers, ODD)


def _nibble_parts(e: Emitter, source: GroupSource, stride: int, offset: int) -> list[Value]:
    """Return the nibbles of blocks: the low ones of 16 bytes, then the high ones."""
    blocks = [e.load(source.address, V16, stride * k + offset) for k in range(TOGETHER)]
    even, odd = (
        e.join(e.join(*blocks[side:4:2]), e.join(*blocks[4 + side :: 2])) for side in range(2)
    )
    order = [0, 8, 2, 10, 4, 12, 6, 14]
    return nibbles(e, [e.words(even, [at + side for at in order], odd) for side in range(2)])


def _q4_0(e: Emitter, source: GroupSource) -> WeightGroup:
    scales, _ = _scales(e, _heads(e, source, 18, I32))
    return WeightGroup(_nibble_parts(e, source, 18, 2), [scales])


def _q4_1(e: Emitter, source: GroupSource) -> WeightGroup:
    scales, minimums = _scales(e, _heads(e, source, 20, I32))
    return WeightGroup(_nibble_parts(e, source, 20, 4), [scales], [e.b.fneg(minimums)])


def _fifth_bits(e: Emitter, heads: Value, offset: int, parts: Sequence[Value]) -> list[Value]:
    """Return `parts` with a fifth bit, from four bytes at `offset` of the blocks' heads."""
    joined, bytes_ = [], e.b.bitcast(heads, U64)
    bit = e.const(I8, (1, 2, 4, 8, 16, 32, 64, -128) * 8)
    for k, part in enumerate(parts):
        eight = e.shuffle(bytes_, [lane // 8 * 8 + offset + k for lane in range(64)])
        is_set = e.b.icmp_unsigned("!=", e.b.and_(eight, bit), e.every(U64, 0))
        fifth = e.b.select(is_set, e.every(U64, 16), e.every(U64, 0))
        joined.append(e.b.or_(part, fifth))
    return joined


def _q5_0(e: Emitter, source: GroupSource) -> WeightGroup:
    heads = _heads(e, source, 22, I64)
    parts = _fifth_bits(e, heads, 2, _nibble_parts(e, source, 22, 6))
    return WeightGroup(parts, _scales(e, heads)[:1])


def _q5_1(e: Emitter, source: GroupSource) -> WeightGroup:
    heads = _heads(e, source, 24, I64)
    parts = _fifth_bits(e, heads, 4, _nibble_parts(e, source, 24, 8))
    scales, minimums = _scales(e, heads)
    return WeightGroup(parts, [scales], [e.b.fneg(minimums)])


def _bytes(e: Emitter, source: GroupSource, stride: int, offset: int) -> list[Value]:
    """Return signed bytes of blocks, + `signed_offset`."""
    blocks = [e.load(source.address, V32, stride * k + offset) for k in range(TOGETHER)]
    if e.signed_offset:
        blocks = [e.b.xor(block, e.every(V32, -128)) for block in blocks]
    pairs = [e.join(*blocks[at : at + 2]) for at in range(0, TOGETHER, 2)]
    # Parts 0 and 1 of four blocks, then parts 2 and 3.
    mixed = [
        [e.words(pairs[at], [k + 4 * block for k in parts for block in range(4)], pairs[at + 1])
         for parts in ((0, 1), (2, 3))]
        for at in (0, 2)
    ]  # fmt: skip
    return [
        e.words(mixed[0][k // 2], [4 * (k % 2) + block for block in (0, 1, 2, 3, 8, 9, 10, 11)],
                mixed[1][k // 2])
        for k in range(PARTS)
    ]  # fmt: skip


def _q8_0(e: Emitter, source: GroupSource) -> WeightGroup:
    scales, _ = _scales(e, _heads(e, source, 34, I32))
    return WeightGroup(_bytes(e, source, 34, 2), [scales])


def _int8(e: Emitter, source: GroupSource) -> WeightGroup:
    return WeightGroup(_bytes(e, source, 32, 0))


def _iq4_nl(e: Emitter, source: GroupSource) -> WeightGroup:
    scales, _ = _scales(e, _heads(e, source, 18, I32))
    parts = [codebook(e, part, "IQ4_NL") for part in _nibble_parts(e, source, 18, 2)]
    return WeightGroup(parts, [scales])


def _mxfp4(e: Emitter, source: GroupSource) -> WeightGroup:
    """Return a group whose scales are 2 ** (byte - 128): `CODES` are twice the numbers."""
    exponents = e.b.and_(e.shuffle(_heads(e, source, 17, I32), DOUBLED), e.every(L16, 0xFF))
    normal = e.b.shl(e.b.sub(exponents, e.every(L16, 1)), e.every(L16, 23))
    small = e.b.shl(e.every(L16, 0x00200000), exponents)  # the two smallest are not normal
    is_small = e.b.icmp_unsigned("<", exponents, e.every(L16, 2))
    scales = e.b.bitcast(e.b.select(is_small, small, normal), F16L)
    parts = [codebook(e, part, "MXFP4") for part in _nibble_parts(e, source, 17, 1)]
    return WeightGroup(parts, [scales])


def _int4(format_: KernelFormat) -> Callable[[Emitter, GroupSource], WeightGroup]:
    """Return a reader of bytes of two neighbours, with scales and zeros in arrays of their own."""

    def read(e: Emitter, source: GroupSource) -> WeightGroup:
        first, second = (e.load(source.address, L16, 64 * at) for at in range(2))
        parts = []
        for k in range(PARTS):
            four = e.shuffle(first, [4 * block + k for block in range(TOGETHER)], second)
            words = e.b.zext(e.b.bitcast(four, V32), S32)
            spread = e.b.or_(words, e.b.shl(words, e.every(S32, 4)))
            part = e.masked(e.b.bitcast(spread, U64), 15)
            # Signed nibbles get 8 more.
            parts.append(part if format_.has_zeros else e.b.xor(part, e.every(U64, 8)))
        groups = _group_numbers(format_, e, source)
        halves = [e.load(source.tokens.weight_scales, F16, e.b.mul(g, e.c(2))) for g in groups]
        spread = [block * BLOCK // format_.scale_group for block in DOUBLED]
        scales = e.b.fpext(e.shuffle(e.vector(halves), spread), F16L)
        if not format_.has_zeros:
            return WeightGroup(parts, [scales])
        zeros = e.vector([e.load(source.tokens.weight_zeros, I8, group) for group in groups])
        numbers = e.b.uitofp(e.shuffle(zeros, spread), F16L)
        return WeightGroup(parts, [scales], [e.b.fmul(scales, numbers)])

    return read


def _group_numbers(format_: KernelFormat, e: Emitter, source: GroupSource) -> list[Value]:
    """Return which numbers of the array of scales are those of a group, in the row's."""
    size = format_.scale_group
    in_row = e.b.udiv(source.tokens.columns, e.c(size))
    last = e.b.sub(in_row, e.c(1))
    first = e.b.udiv(e.b.mul(source.block, e.c(BLOCK)), e.c(size))
    begin, numbers = e.b.mul(source.row.number, in_row), []
    for at in range(TOGETHER * BLOCK // size):
        number = e.b.add(first, e.c(at))
        is_in_row = e.b.icmp_signed("<", number, last)
        numbers.append(e.b.add(begin, e.b.select(is_in_row, number, last)))
    return numbers


READERS = {
    "Q4_0": GroupReader(_q4_0, offset=8),
    "Q4_1": GroupReader(_q4_1),
    "Q5_0": GroupReader(_q5_0, offset=16),
    "Q5_1": GroupReader(_q5_1),
    "Q8_0": GroupReader(_q8_0, is_signed=True),
    "IQ4_NL": GroupReader(_iq4_nl, is_signed=True),
    "MXFP4": GroupReader(_mxfp4, offset=12),
    "INT8": GroupReader(_int8, is_signed=True),
    **{
        name: GroupReader(_int4(FORMATS[name]), offset=0 if FORMATS[name].has_zeros else 8)
        for name in FORMATS
        if name.startswith("INT4")
    },
}
