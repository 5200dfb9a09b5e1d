"""Recurrent states of layers by slot: convolutions, the gated delta rule, the selective scan.

A token reads the state of one slot and writes that of another or the same; each operation has a
table of float32 states of its own, [slots, numbers].
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mindspore_serving.llm.models.state_rules import LENGTH_EPS
from mindspore_serving.llm.runtimes.layout import Indices, Layout
from mindspore_serving.llm.runtimes.native.attention import Memory
from mindspore_serving.llm.runtimes.native.codes import StepColumn
from mindspore_serving.llm.runtimes.native.compiling import compiled
from mindspore_serving.llm.runtimes.native.elementwise import (
    A_STRIDE,
    OUT,
    OUT_STRIDE,
    P0,
    P1,
    P2,
    P3,
    P5,
    WIDTH,
    A,
    B,
    Floats,
    Integers,
    sigmoid,
)
from mindspore_serving.llm.runtimes.native.memory import exp
from mindspore_serving.llm.runtimes.native.memory import load_f32 as get
from mindspore_serving.llm.runtimes.native.memory import store_f32 as put
from mindspore_serving.llm.runtimes.pages import in_pages
from mindspore_serving.llm.step import StateSlots

_READ, _WRITE = int(StepColumn.STATE_READ), int(StepColumn.STATE_WRITE)
_ZERO, _UNIT, _LENGTH_EPS = np.float32(0), np.float32(1), np.float32(LENGTH_EPS)
_LINEAR = np.float32(20)  # from here on log(1 + e**x) is x


class StateTables:
    """States of all operations, `sizes` numbers each; one slot more is for those not kept."""

    def __init__(self, sizes: Sequence[int], num_slots: int) -> None:
        self._num_slots = num_slots
        self._arrays = [in_pages((num_slots + 1, size), np.float32) for size in sizes]
        self.state_bytes = 4 * sum(sizes)
        self.addresses = np.array([array.ctypes.data for array in self._arrays], np.int64)

    def columns(self, layout: Layout) -> tuple[Indices, Indices]:
        """Return the slots that each token reads and writes; -1 reads zeros."""
        unkept = StateSlots(-1, self._num_slots)
        reads, writes = [], []
        for span in layout.spans:
            state = span.state or unkept
            write = np.full(span.end - span.begin, state.write)
            if state.snapshot >= 0:
                write[: state.kept] = state.snapshot
            writes.append(write)
            reads.append(np.concatenate([[state.read], write[:-1]]))
        return np.concatenate(reads), np.concatenate(writes)

    def read(self, slot: int) -> memoryview:
        """Return a copy of the state in a slot, `state_bytes` bytes."""
        parts = [array[slot] for array in self._arrays]
        return memoryview(np.concatenate(parts)).cast("B")

    def replace(self, slot: int, content: memoryview) -> None:
        """Overwrite the state in a slot with what `read` returned."""
        begin, source = 0, np.frombuffer(content, np.float32)
        for array in self._arrays:
            array[slot] = source[begin : begin + array.shape[1]]
            begin += array.shape[1]

    def clear(self) -> None:
        """Drop the memory; no pass may be computed any more."""
        self._arrays.clear()


@compiled
def _state(memory: Memory, table: int, size: int, row: int) -> int:
    """Return the address of the state that the token writes, with what it reads in it."""
    read, write = memory.step[row, _READ], memory.step[row, _WRITE]
    state: int = table + 4 * write * size
    if read < 0:
        for i in range(size):
            put(state, i, _ZERO)
    elif read != write:
        source = table + 4 * read * size
        for i in range(size):
            put(state, i, get(source, i))
    return state


@compiled
def execute_state(
    table: int, memory: Memory, op: Integers, numbers: Floats, rows: int
) -> None:  # fmt: skip
    """Compute a convolution if P1 is 0, else a recurrence, whose states are at `table`."""
    size = op[WIDTH] * (op[P2] if op[P1] else op[P0])
    for row in range(rows):
        state = _state(memory, table, size, row)
        x = memory.arena + 4 * (op[A] + row * op[A_STRIDE])
        out = memory.arena + 4 * (op[OUT] + row * op[OUT_STRIDE])
        if op[P1]:
            _recur(memory.arena, op, numbers, (x, state, out))
        else:
            _convolve(memory.arena, op, (x, state, out))


@compiled
def _convolve(arena: int, op: Integers, addresses: tuple[int, int, int]) -> None:
    """Convolve WIDTH features with P0 taps at B, [taps, features]; P2 is a bias's offset or -1."""
    x, state, out = addresses
    width, weights = op[WIDTH], arena + 4 * op[B]
    last = (op[P0] - 1) * width
    for i in range(last):
        put(state, i, get(state, i + width))
    for i in range(width):
        put(state, last + i, get(x, i))
        put(out, i, get(arena, op[P2] + i) if op[P2] >= 0 else _ZERO)
    for at in range(0, last + width, width):
        for i in range(width):
            put(out, i, get(out, i) + get(state, at + i) * get(weights, at + i))


@compiled
def _softplus(x: np.float32) -> Any:
    return x if x > _LINEAR else np.float32(math.log1p(exp(x)))


@compiled
def _recur(arena: int, op: Integers, numbers: Floats, addresses: tuple[int, int, int]) -> None:
    """Update P1 states [WIDTH / P1, P2] by the gated delta rule if P3, else by selective scan.

    A has queries and keys of P0 heads of P2 features, WIDTH values, and P1 gates; of the delta rule
    also P1 logits of factors.  B has the rates, biases and skips of P1 heads, P5 is the offset of
    scratch memory for a query and a key.  Numbers are the limits of time steps.
    """
    x, state, out = addresses
    heads, key_dim = op[P1], op[P2]
    for head in range(heads):
        q = x + 4 * (head * op[P0] // heads * key_dim)
        k = q + 4 * op[P0] * key_dim
        if op[P3]:
            q, k = _normalised(arena, op, q, k)
        _update(arena, op, numbers, (x, q, k, state, out), head)


@compiled
def _normalised(arena: int, op: Integers, q: int, k: int) -> tuple[int, int]:
    """Return copies of a query and a key of length 1; the query is divided by sqrt(features)."""
    width, copies = op[P2], arena + 4 * op[P5]
    factor = _UNIT / np.float32(math.sqrt(np.float32(width)))
    for index in range(2):
        source, total = k if index else q, _LENGTH_EPS
        for i in range(width):
            total += get(source, i) * get(source, i)
        factor = (_UNIT if index else factor) / np.float32(math.sqrt(total))
        for i in range(width):
            put(copies, index * width + i, get(source, i) * factor)
    return copies, copies + 4 * width


@compiled
def _update(
    arena: int, op: Integers, numbers: Floats,
    addresses: tuple[int, int, int, int, int], head: int,
) -> None:  # fmt: skip
    """Update the state of one head, and write its result."""
    x, q, k, state, out = addresses
    heads, key_dim, value_dim = op[P1], op[P2], op[WIDTH] // op[P1]
    values = 2 * op[P0] * key_dim
    gates = values + heads * value_dim
    step = _softplus(get(x, gates + head) + get(arena, op[B] + heads + head))
    step = min(max(step, numbers[0]), numbers[1])
    decay = exp(get(arena, op[B] + head) * step)
    factor = sigmoid(get(x, gates + heads + head)) if op[P3] else step
    skip = get(arena, op[B] + 2 * heads + head)
    for feature in range(head * value_dim, (head + 1) * value_dim):
        s = state + 4 * feature * key_dim
        value = get(x, values + feature)
        predicted = _ZERO
        if op[P3]:
            for i in range(key_dim):
                predicted += get(s, i) * get(k, i)
        new, total = factor * (value - predicted * decay), _ZERO
        for i in range(key_dim):
            number = get(s, i) * decay + get(k, i) * new
            put(s, i, number)
            total += number * get(q, i)
        put(out, feature, total + skip * value)
