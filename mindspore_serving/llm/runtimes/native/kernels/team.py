"""LLVM code of threads that compute a plan together, handing out chunks by an atomic number.

A plan is a list of records of int64 numbers: the address of a kernel, its number of chunks, the
address of its arguments; then the next record.  A kernel that is 0 ends the plan.

`TICKET` holds the number of the current record, counted since the threads began, and how many of
its chunks nobody has taken.  A thread takes one by compare-and-swap; who computes the last chunk of
a record publishes the next.  So nobody waits for a thread that only waits, and a thread that was
descheduled for long takes nothing of a record that has passed: the number of the record differs.

Who finds nothing to take looks at `TICKET` for a while and then sleeps on it (futex), at most
`SLEEP` nanoseconds, so a wake-up that was missed costs no more than that.
"""

from enum import IntEnum
from typing import Any, TypeAlias

from llvmlite import ir

from mindspore_serving.llm.runtimes.native.kernels.emitter import I32, I64, Emitter

Value: TypeAlias = Any
CHUNK_BITS = 24
MAX_CHUNKS = 2**CHUNK_BITS - 1
RECORD_BYTES = 24
SLEEP = 100_000_000
LINE = 64  # bytes of a cache line
_SYS_FUTEX = 202  # of x86-64 Linux
_WAIT, _WAKE = 128, 129  # of this process alone


class Shared(IntEnum):
    """Offsets of the numbers that the threads share, those written often in lines of their own."""

    TICKET = 0 * LINE
    DONE = 1 * LINE  # chunks of the current record that are computed
    RECORD = 2 * LINE  # address of the current record
    FINISHED = 3 * LINE  # plans that are computed
    SLEEPERS = 4 * LINE
    STALLS = 5 * LINE  # times that thread 0 slept, which waits for a chunk then
    SPINS = 6 * LINE  # looks at TICKET before a thread sleeps
    STOPPED = 6 * LINE + 8
    THREADS = 6 * LINE + 16  # that may take chunks
    TIMEOUT = 7 * LINE  # a timespec


SHARED_BYTES = 8 * LINE


class MemberArgument(IntEnum):
    """Indices of the arguments of `member_body` and `run_body`."""

    SHARED = 0  # address
    INDEX = 1  # of the thread; 0 is that which runs plans
    PLAN = 2  # address of the first record, of `run_body`


def member_body(e: Emitter, arguments: Value, _: Value) -> None:
    """Write the code of a thread that computes chunks until the team is stopped."""
    _compute(e, arguments, e.c(2**62))


def run_body(e: Emitter, arguments: Value, _: Value) -> None:
    """Write the code that computes a plan together with the other threads."""
    shared = e.load(arguments, I64, 8 * MemberArgument.SHARED)
    target = e.b.add(_atomic(e, shared, Shared.FINISHED), e.c(1))
    _publish(e, shared, e.load(arguments, I64, 8 * MemberArgument.PLAN))
    _compute(e, arguments, target)


def _compute(e: Emitter, arguments: Value, target: Value) -> None:
    """Compute chunks until `target` plans are computed, or the team is stopped."""
    shared = e.load(arguments, I64, 8 * MemberArgument.SHARED)
    index = e.load(arguments, I64, 8 * MemberArgument.INDEX)
    spins = e.variable(e.c(0))
    names = ("look", "test", "may", "take", "run", "last", "wait", "spin", "sleep", "end")
    look, test, may, take, run, last, wait, spin, sleep, end = (
        e.b.append_basic_block(name) for name in names
    )
    e.b.branch(look)
    e.b.position_at_end(look)
    ticket = _atomic(e, shared, Shared.TICKET)
    left = e.b.and_(ticket, e.c(MAX_CHUNKS))
    is_done = e.b.icmp_signed(">=", _atomic(e, shared, Shared.FINISHED), target)
    is_over = e.b.or_(is_done, e.b.icmp_signed("!=", _atomic(e, shared, Shared.STOPPED), e.c(0)))
    e.b.cbranch(is_over, end, test)
    e.b.position_at_end(test)
    e.b.cbranch(e.b.icmp_signed(">", left, e.c(0)), may, wait)
    e.b.position_at_end(may)
    is_allowed = e.b.icmp_signed("<", index, _atomic(e, shared, Shared.THREADS))
    e.b.cbranch(is_allowed, take, wait)
    e.b.position_at_end(take)
    address = e.address(shared, I64, Shared.TICKET)
    swapped = e.b.cmpxchg(address, ticket, e.b.sub(ticket, e.c(1)), "seq_cst", "seq_cst")
    e.b.cbranch(e.b.extract_value(swapped, 1), run, look)
    e.b.position_at_end(run)
    e.b.store(e.c(0), spins)
    record = _atomic(e, shared, Shared.RECORD)
    chunks = _run(e, record, left)
    done = e.b.atomic_rmw("add", e.address(shared, I64, Shared.DONE), e.c(1), "seq_cst")
    e.b.cbranch(e.b.icmp_signed("==", done, e.b.sub(chunks, e.c(1))), last, look)
    e.b.position_at_end(last)
    _publish(e, shared, e.b.add(record, e.c(RECORD_BYTES)))
    e.b.branch(look)
    e.b.position_at_end(wait)
    seen = e.b.load(spins)
    e.b.store(e.b.add(seen, e.c(1)), spins)
    e.b.cbranch(e.b.icmp_signed("<", seen, _atomic(e, shared, Shared.SPINS)), spin, sleep)
    e.b.position_at_end(spin)
    e.call("llvm.x86.sse2.pause", ir.VoidType())
    e.b.branch(look)
    e.b.position_at_end(sleep)
    with e.b.if_then(e.b.icmp_signed("==", index, e.c(0))):
        e.b.atomic_rmw("add", e.address(shared, I64, Shared.STALLS), e.c(1), "seq_cst")
    _sleep(e, shared, ticket)
    e.b.branch(look)
    e.b.position_at_end(end)


def _run(e: Emitter, record: Value, left: Value) -> Value:
    """Compute a chunk of the record; return how many it has."""
    kernel, chunks, arguments = (e.load(record, I64, 8 * at) for at in range(3))
    kind = ir.FunctionType(ir.VoidType(), [I64, I64])
    e.b.call(e.b.inttoptr(kernel, kind.as_pointer()), [arguments, e.b.sub(chunks, left)])
    return chunks


def _publish(e: Emitter, shared: Value, record: Value) -> None:
    """Make a record the current one; at the end of a plan, count the plan, when TICKET is free."""
    is_end = e.b.icmp_signed("==", e.load(record, I64), e.c(0))
    chunks = e.variable(e.c(0))
    with e.b.if_then(e.b.not_(is_end)):
        e.b.store(e.load(record, I64, 8), chunks)
    for value, name in ((record, Shared.RECORD), (e.c(0), Shared.DONE)):
        e.b.store_atomic(value, e.address(shared, I64, name), "seq_cst", 8)
    number = e.b.lshr(_atomic(e, shared, Shared.TICKET), e.c(CHUNK_BITS))
    ticket = e.b.or_(e.b.shl(e.b.add(number, e.c(1)), e.c(CHUNK_BITS)), e.b.load(chunks))
    e.b.store_atomic(ticket, e.address(shared, I64, Shared.TICKET), "seq_cst", 8)
    with e.b.if_then(is_end):
        e.b.atomic_rmw("add", e.address(shared, I64, Shared.FINISHED), e.c(1), "seq_cst")
    is_slept_on = e.b.icmp_signed(">", _atomic(e, shared, Shared.SLEEPERS), e.c(0))
    with e.b.if_then(is_slept_on):
        _futex(e, shared, _WAKE, e.c(2**31 - 1), e.c(0))


def _sleep(e: Emitter, shared: Value, ticket: Value) -> None:
    """Sleep while the low half of TICKET is that of `ticket`."""
    sleepers = e.address(shared, I64, Shared.SLEEPERS)
    e.b.atomic_rmw("add", sleepers, e.c(1), "seq_cst")
    _futex(e, shared, _WAIT, ticket, e.b.add(shared, e.c(Shared.TIMEOUT)))
    e.b.atomic_rmw("sub", sleepers, e.c(1), "seq_cst")


def _futex(e: Emitter, shared: Value, operation: int, value: Value, timeout: Value) -> None:
    """Call futex(2) on the low half of TICKET."""
    word = e.b.add(shared, e.c(Shared.TICKET))
    low = e.b.zext(e.b.trunc(value, I32), I64)
    arguments = [e.c(_SYS_FUTEX), word, e.c(operation), low, timeout, e.c(0), e.c(0)]
    e.call("syscall", I64, *arguments)


def _atomic(e: Emitter, shared: Value, name: Shared) -> Value:
    return e.b.load_atomic(e.address(shared, I64, name), "seq_cst", 8)
