"""Products of a row of weights in blocks with int8 activations, a group of 256 columns at a time.

Sums are integers within a group, and floats between groups; the sums of a token do not depend on
which others are computed with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from llvmlite import ir

from mindspore_serving.llm.runtimes.native.kernels.activations import LANES, first_block
from mindspore_serving.llm.runtimes.native.kernels.emitter import (
    F16,
    F16L,
    F32,
    I8,
    L16,
    U64,
    Emitter,
)
from mindspore_serving.llm.runtimes.native.kernels.formats import (
    BLOCK,
    GROUP,
    LANES_BYTES,
    SUMS,
    TOGETHER,
    Activations,
    KernelFormat,
)
from mindspore_serving.llm.runtimes.native.kernels.row import ProductRow, ProductTokens

Value: TypeAlias = Any
PARTS = 4  # vectors of a group
DOUBLED = tuple(lane // 2 for lane in range(LANES))  # a block's number for each of its two sums


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """Weights of 256 columns, in the order of `Activations`: integer * scale - minimum.

    There is a vector of scales, and of minimums if any, for all parts, or two for their halves.
    Of `factors` each sum is multiplied by one in the end.
    """

    parts: Sequence[Value]
    scales: Sequence[Value] = ()  # float32 [16]; none: the row has one scale
    minimums: Sequence[Value] = ()  # float32 [16]
    factors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class GroupSource:
    """Address of a group of weights, that of its first block, and the number of that block."""

    row: ProductRow
    tokens: ProductTokens
    address: Value
    block: Value


@dataclass(frozen=True, slots=True)
class GroupReader:
    """Code that reads groups.

    The weights are what `read` returns - `offset`, or if they are signed, - `signed_offset`.
    """

    read: Callable[[Emitter, GroupSource], WeightGroup]
    offset: int = 0
    is_signed: bool = False


def products(
    format_: KernelFormat,
    reader: GroupReader,
    e: Emitter,
    rows: Sequence[ProductRow],
    tokens: ProductTokens,
) -> list[list[Value]]:
    """Return the products of each token with the rows, which mostly lie one after the other."""
    zero = e.every(F16L, 0.0)
    sums = [[[e.variable(zero) for _ in range(2)] for _ in rows] for _ in tokens.addresses]
    blocks = e.b.udiv(tokens.columns, e.c(BLOCK))
    group_bytes = format_.bytes * GROUP // format_.elements
    addresses = [_whole_group(format_, e, row, tokens.columns) for row in rows]
    # The next rows are fetched in the order of their bytes, whatever the order of use.
    next_rows = e.b.add(rows[0].address, e.b.mul(tokens.row_bytes, e.c(len(rows))))
    factors = None
    with e.loop(e.c(0), e.b.udiv(e.b.add(blocks, e.c(TOGETHER - 1)), e.c(TOGETHER))) as index:
        step = group_bytes * len(rows)
        e.prefetch(e.b.add(next_rows, e.b.mul(index, e.c(step))), step)
        block = first_block(e, index, blocks)
        offset = e.b.udiv(e.b.mul(block, e.c(group_bytes)), e.c(TOGETHER))
        for number, (row, address) in enumerate(zip(rows, addresses, strict=True)):
            group = reader.read(e, GroupSource(row, tokens, e.b.add(address, offset), block))
            factors = group.factors
            for of_token, token in zip(sums, tokens.addresses, strict=True):
                x = e.b.add(token, e.b.mul(index, e.c(format_.activations.group_bytes)))
                _add_products(format_, reader, e, (group, x), of_token[number])
    vectors = [_sums(e, format_, pair, factors) for of_token in sums for pair in of_token]
    totals = iter(e.totals(vectors))
    return [[_scaled(e, format_, row, tokens, next(totals)) for row in rows] for _ in sums]


def _add_products(
    format_: KernelFormat,
    reader: GroupReader,
    e: Emitter,
    factors: tuple[WeightGroup, Value],
    variables: Sequence[Value],
) -> None:
    """Add the products of a group and a token's activations to the token's variables."""
    (group, x), (high, low) = factors, variables
    offset = e.signed_offset if reader.is_signed else reader.offset
    has_integers = format_.activations == Activations.INTEGER_SUMS
    # Scales of both halves are applied to the sum of both, or to each.
    is_shared = len(group.scales) == 1
    total_of_halves = e.every(F16L, 0.0) if is_shared else e.b.load(high)
    for half in range(2):
        start = e.every(L16, 0)
        if offset and has_integers:
            sums = e.load(x, L16, SUMS + LANES_BYTES * half)
            start = e.b.mul(sums, e.every(L16, offset))
        values = [e.load(x, U64, 64 * part) for part in (2 * half, 2 * half + 1)]
        weights = group.parts[2 * half : 2 * half + 2]
        total = e.dot(start, weights, values, signed=reader.is_signed)
        by = e.load(x, F16L, GROUP + LANES_BYTES * half)
        if len(group.scales) == 2:
            by = e.b.fmul(group.scales[half], by)
        total_of_halves = e.fma(e.b.sitofp(total, F16L), by, total_of_halves)
    if is_shared:
        total_of_halves = e.fma(group.scales[0], total_of_halves, e.b.load(high))
    e.b.store(total_of_halves, high)
    for at, minimum in enumerate(group.minimums):
        sums = e.load(x, F16L, SUMS + LANES_BYTES * at)
        e.b.store(e.fma(e.b.fneg(minimum), sums, e.b.load(low)), low)


def _sums(
    e: Emitter, format_: KernelFormat, pair: Sequence[Value], factors: tuple[float, ...] | None
) -> Value:
    high, low = (e.b.load(variable) for variable in pair)
    if factors:
        high = e.b.fmul(high, e.const(F32, factors))
    return high if format_.activations == Activations.INTEGER_SUMS else e.b.fadd(high, low)


def _scaled(
    e: Emitter, format_: KernelFormat, row: ProductRow, tokens: ProductTokens, total: Value
) -> Value:
    if format_.scale_group >= 0:
        return total
    scale = e.load(tokens.weight_scales, F16, e.b.mul(row.number, e.c(2)))
    return e.b.fmul(total, e.b.fpext(scale, F32))


def _whole_group(format_: KernelFormat, e: Emitter, row: ProductRow, columns: Value) -> Value:
    """Return the address of the row, or of a copy with zeros after it if it is less than a group.

    So groups are read whole and never beyond a row.
    """
    if format_.elements == GROUP:
        return row.address
    size = TOGETHER * format_.bytes
    address = e.variable(row.address)
    with e.b.goto_entry_block():
        copy = e.b.alloca(ir.ArrayType(I8, size))
    start = e.b.ptrtoint(copy, row.address.type)
    with e.b.if_then(e.b.icmp_signed("<", columns, e.c(GROUP)), likely=False):
        for at in range(0, size, 8):
            e.store(e.c(0), start, at)
        with e.loop(e.c(0), e.b.mul(e.b.udiv(columns, e.c(BLOCK)), e.c(format_.bytes))) as at:
            e.store(e.load(row.address, I8, at), start, at)
        e.b.store(start, address)
    return e.b.load(address)
