"""Order of rows by expert, in which the layers of a mixture compute.

Each token has a row for each of its choices; those of an expert follow one another, so its matrices
are read once for all of them.  The argument of these kernels is the address of a row of the plan
whose tensors are addresses, the other the number of rows of its result.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from llvmlite import ir

from mindspore_serving.llm.runtimes.native.codes import Column, OpCode
from mindspore_serving.llm.runtimes.native.kernels.compiler import Compiler, compiler
from mindspore_serving.llm.runtimes.native.kernels.emitter import F16L, F32, I64, Emitter

Value: TypeAlias = Any
Columns: TypeAlias = dict[Column, Value]
LANES = 16  # rows begin at multiples of it, and may be read and written up to the next one
TENSORS = (Column.OUT, Column.A, Column.B, Column.P1, Column.P5)


def choices_address(code: OpCode, using: Compiler | None = None) -> int:
    """Return the address of the kernel of an operation of `BODIES`."""
    return (using or compiler()).address(code.name.lower(), BODIES[code])


def _order(e: Emitter, arguments: Value, rows: Value) -> None:
    """Write the code that sorts choices by expert.

    A are the P4 choices of each token, of WIDTH experts.  The results are the expert of each row,
    and at P1 the row of each choice, P2 numbers from token to token; P5 is scratch memory.
    """
    c = _columns(e, arguments)
    tokens, begins = e.b.sdiv(rows, c[Column.P4]), c[Column.P5]
    with e.loop(e.c(0), c[Column.WIDTH]) as expert:
        e.store(e.c(0, I64), begins, _bytes(e, expert, 8))
    with e.loop(e.c(0), tokens) as token, e.loop(e.c(0), c[Column.P4]) as choice:
        at = _bytes(e, _integer(e, c[Column.A], token, c[Column.A_STRIDE], choice), 8)
        e.store(e.b.add(e.load(begins, I64, at), e.c(1)), begins, at)
    total = e.variable(e.c(0))
    with e.loop(e.c(0), c[Column.WIDTH]) as expert:
        count, before = e.load(begins, I64, _bytes(e, expert, 8)), e.b.load(total)
        e.store(before, begins, _bytes(e, expert, 8))
        e.b.store(e.b.add(before, count), total)
    with e.loop(e.c(0), tokens) as token, e.loop(e.c(0), c[Column.P4]) as choice:
        expert = _integer(e, c[Column.A], token, c[Column.A_STRIDE], choice)
        at = _bytes(e, expert, 8)
        row = e.load(begins, I64, at)
        e.store(e.b.add(row, e.c(1)), begins, at)
        target = e.b.add(e.b.mul(token, c[Column.P2]), choice)
        e.store(e.b.sitofp(row, F32), c[Column.P1], _bytes(e, target, 4))
        number = e.b.mul(row, c[Column.OUT_STRIDE])
        e.store(e.b.sitofp(expert, F32), c[Column.OUT], _bytes(e, number, 4))


def _gather(e: Emitter, arguments: Value, rows: Value) -> None:
    """Write the code that copies the rows A of tokens to those of their P4 choices, numbers B.

    Each is multiplied by the weight of the choice at P1, P2 numbers from token to token; -1: by
    none.
    """
    c = _columns(e, arguments)
    tokens = e.b.sdiv(rows, c[Column.P4])
    with e.loop(e.c(0), tokens) as token, e.loop(e.c(0), c[Column.P4]) as choice:
        row = _integer(e, c[Column.B], token, c[Column.B_STRIDE], choice)
        weight = _weight(e, c, token, choice)
        x, out = _row(e, c, Column.A, token), _row(e, c, Column.OUT, row)
        with _features(e, c) as at:
            e.store(e.b.fmul(e.load(x, F16L, at), weight), out, at)


def _sum(e: Emitter, arguments: Value, rows: Value) -> None:
    """Write the code that adds the rows A of each token's P4 choices, with weights as `_gather`.

    The order is that of choices, whatever other tokens are computed.
    """
    c = _columns(e, arguments)
    with e.loop(e.c(0), rows) as token:
        out = _row(e, c, Column.OUT, token)
        with _features(e, c) as at:
            e.store(e.every(F16L, 0.0), out, at)
        with e.loop(e.c(0), c[Column.P4]) as choice:
            row = _integer(e, c[Column.B], token, c[Column.B_STRIDE], choice)
            weight = _weight(e, c, token, choice)
            x = _row(e, c, Column.A, row)
            with _features(e, c) as at:
                product = e.b.fmul(e.load(x, F16L, at), weight)
                e.store(e.b.fadd(e.load(out, F16L, at), product), out, at)


BODIES: dict[OpCode, Callable[[Emitter, Value, Value], None]] = {
    OpCode.EXPERT_ORDER: _order,
    OpCode.EXPERT_GATHER: _gather,
    OpCode.EXPERT_SUM: _sum,
}


def _columns(e: Emitter, arguments: Value) -> Columns:
    return {column: e.load(arguments, I64, 8 * column) for column in Column}


def _bytes(e: Emitter, number: Value, size: int) -> Value:
    return e.b.mul(number, e.c(size))


def _row(e: Emitter, c: Columns, column: Column, row: Value) -> Value:
    stride = c[Column(column + 1)]
    return e.b.add(c[column], _bytes(e, e.b.mul(row, stride), 4))


def _integer(e: Emitter, address: Value, row: Value, stride: Value, index: Value) -> Value:
    """Return a number of a row that is an integer stored as float32."""
    at = e.b.add(e.b.mul(row, stride), index)
    return e.b.fptosi(e.load(address, F32, _bytes(e, at, 4)), I64)


def _weight(e: Emitter, c: Columns, token: Value, choice: Value) -> Value:
    """Return the weight of a choice in all lanes, or units."""
    weight = e.variable(ir.Constant(F32, 1.0))
    with e.b.if_then(e.b.icmp_signed(">=", c[Column.P1], e.c(0))):
        at = e.b.add(e.b.mul(token, c[Column.P2]), choice)
        e.b.store(e.load(c[Column.P1], F32, _bytes(e, at, 4)), weight)
    return e.splat(e.b.load(weight), LANES)


def _features(e: Emitter, c: Columns) -> Any:
    """Repeat a block for the offset of each `LANES` features."""
    end = e.b.add(_bytes(e, c[Column.WIDTH], 4), e.c(4 * LANES - 1))
    return e.loop(e.c(0), end, 4 * LANES)
