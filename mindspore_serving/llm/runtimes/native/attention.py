"""Compiled attention over a paged cache, one task for each token and query head.

A block of keys, or of values, is [heads, tokens, features], as OpenVINO's.  Of integers each row of
features is preceded by a float32 scale and a float32 minimum.
"""

from typing import Any, NamedTuple

import numpy as np

from mindspore_serving.llm.runtimes.native.codes import CacheType, StepColumn
from mindspore_serving.llm.runtimes.native.compiling import compiled
from mindspore_serving.llm.runtimes.native.elementwise import (
    A_STRIDE,
    B_STRIDE,
    OUT,
    OUT_STRIDE,
    P0,
    P1,
    P3,
    P4,
    P5,
    POSITION,
    WIDTH,
    A,
    B,
    Floats,
    Integers,
    tanh,
)
from mindspore_serving.llm.runtimes.native.memory import (
    exp,
    load_bf16,
    load_f16,
    load_f32,
    load_u8,
    store_bf16,
    store_f16,
    store_f32,
    store_u8,
)
from mindspore_serving.llm.runtimes.native.memory import load_f32 as get
from mindspore_serving.llm.runtimes.native.memory import store_f32 as put

HEAD_BYTES = 8  # scale and minimum of a row of integers
_F32, _F16, _BF16, _U8 = map(int, CacheType)
_BLOCK, _OFFSET, _TABLE = int(StepColumn.BLOCK), int(StepColumn.OFFSET), int(StepColumn.TABLE)
_ZERO, _UNIT, _STEPS, _HALF = np.float32(0), np.float32(1), np.float32(255), np.float32(0.5)
_LOWEST = np.float32(-np.inf)

# Columns of a layer's row: addresses of keys and values, and the shape of a block.
KEYS, VALUES, TYPE, TOKENS, HEADS, FEATURES, ROW_BYTES = range(7)


class Memory(NamedTuple):
    """Memory of a pass; `adapters` is the table of `lora.AdapterTable`."""

    arena: int
    step: Integers
    blocks: Integers
    gathered: Integers
    adapters: Integers


class AttentionMemory(NamedTuple):
    """Memory of a task; at `scores` is a number for each token of a sequence."""

    arena: int
    scores: int
    step: Integers
    blocks: Integers


class SeenSpan(NamedTuple):
    """Positions `begin` .. `end - 1` that a token sees with one head of keys."""

    row: int
    head: int
    begin: int
    end: int


@compiled
def _store_row(address: int, x: int, width: int, kind: int) -> None:
    if kind == _F32:
        for i in range(width):
            store_f32(address, i, get(x, i))
    elif kind == _F16:
        for i in range(width):
            store_f16(address, i, get(x, i))
    elif kind == _BF16:
        for i in range(width):
            store_bf16(address, i, get(x, i))
    else:
        low, high = get(x, 0), get(x, 0)
        for i in range(width):
            low, high = min(low, get(x, i)), max(high, get(x, i))
        scale = (high - low) / _STEPS
        store_f32(address, 0, scale)
        store_f32(address, 1, low)
        inverse = _UNIT / scale if scale > _ZERO else _ZERO
        for i in range(width):
            step = (get(x, i) - low) * inverse + _HALF
            store_u8(address + HEAD_BYTES, i, min(step, _STEPS))


@compiled
def _dot(address: int, x: int, total: np.float32, layer: Integers) -> Any:
    """Return the product of a cached row and `x`, whose sum is `total`."""
    width, kind, result = layer[FEATURES], layer[TYPE], _ZERO
    if kind == _F32:
        for i in range(width):
            result += load_f32(address, i) * get(x, i)
    elif kind == _F16:
        for i in range(width):
            result += load_f16(address, i) * get(x, i)
    elif kind == _BF16:
        for i in range(width):
            result += load_bf16(address, i) * get(x, i)
    else:
        for i in range(width):
            result += load_u8(address + HEAD_BYTES, i) * get(x, i)
        result = result * load_f32(address, 0) + total * load_f32(address, 1)
    return result


@compiled
def _add_row(address: int, out: int, weight: np.float32, layer: Integers) -> None:
    """Add `weight` times a cached row to `out`."""
    width, kind = layer[FEATURES], layer[TYPE]
    if kind == _F32:
        for i in range(width):
            put(out, i, get(out, i) + load_f32(address, i) * weight)
    elif kind == _F16:
        for i in range(width):
            put(out, i, get(out, i) + load_f16(address, i) * weight)
    elif kind == _BF16:
        for i in range(width):
            put(out, i, get(out, i) + load_bf16(address, i) * weight)
    else:
        scale, low = load_f32(address, 0) * weight, load_f32(address, 1) * weight
        for i in range(width):
            put(out, i, get(out, i) + load_u8(address + HEAD_BYTES, i) * scale + low)


@compiled
def write(memory: Memory, op: Integers, rows: int, layer: Integers) -> None:
    """Write the keys at B and the values at P0 (P1 from row to row) to the blocks of `layer`."""
    arena, step = memory.arena, memory.step
    width, heads, row_bytes = layer[FEATURES], layer[HEADS], layer[ROW_BYTES]
    for row in range(rows):
        for head in range(heads):
            slot = (step[row, _BLOCK] * heads + head) * layer[TOKENS] + step[row, _OFFSET]
            at = op[B] + row * op[B_STRIDE] + head * width
            _store_row(layer[KEYS] + slot * row_bytes, arena + 4 * at, width, layer[TYPE])
            at = op[P0] + row * op[P1] + head * width
            _store_row(layer[VALUES] + slot * row_bytes, arena + 4 * at, width, layer[TYPE])


@compiled
def attend(
    memory: AttentionMemory, op: Integers, numbers: Floats, layer: Integers, task: int
) -> None:
    """Compute the output of a query head of a token.

    WIDTH is the number of query heads of a head of keys, P3 the window, P4 and P5 the offsets of
    slopes and sinks or -1; numbers are scale and softcap.
    """
    arena, width, num_heads = memory.arena, layer[FEATURES], layer[HEADS] * op[WIDTH]
    row, head = task // num_heads, task % num_heads
    end = memory.step[row, POSITION] + 1
    begin = max(end - op[P3], 0) if op[P3] else 0
    query = arena + 4 * (op[A] + row * op[A_STRIDE] + head * width)
    out = arena + 4 * (op[OUT] + row * op[OUT_STRIDE] + head * width)
    slope = get(arena, op[P4] + head) if op[P4] >= 0 else _ZERO
    sink = get(arena, op[P5] + head) if op[P5] >= 0 else _LOWEST
    span = SeenSpan(row, head // op[WIDTH], begin, end)
    largest = max(_score(memory, span, layer, query, numbers), sink)
    if slope != _ZERO:
        largest = max(_add_distances(memory.scores, end - begin, slope), sink)
    divisor = _exponentials(memory.scores, end - begin, largest)
    if op[P5] >= 0:
        divisor += exp(sink - largest)
    _mix(memory, span, layer, out, _UNIT / divisor)


@compiled
def _block(
    memory: AttentionMemory, span: SeenSpan, layer: Integers, position: int
) -> tuple[int, int, int]:
    """Return the tokens of the block of `position` from there to the end, and the block's slot."""
    tokens = layer[TOKENS]
    first = position % tokens
    block = memory.blocks[memory.step[span.row, _TABLE] + position // tokens]
    last = min(tokens, first + span.end - position)
    return first, last, (block * layer[HEADS] + span.head) * tokens


@compiled
def _score(
    memory: AttentionMemory, span: SeenSpan, layer: Integers, query: int, numbers: Floats
) -> Any:
    """Write the scores of the visible keys, and return the largest."""
    total, largest, position, index = _ZERO, _LOWEST, span.begin, 0
    for i in range(layer[FEATURES]):
        total += get(query, i)
    while position < span.end:
        first, last, at = _block(memory, span, layer, position)
        for i in range(first, last):
            key = layer[KEYS] + (at + i) * layer[ROW_BYTES]
            score = _dot(key, query, total, layer) * numbers[0]
            if numbers[1] > _ZERO:
                score = tanh(score / numbers[1]) * numbers[1]
            put(memory.scores, index, score)
            largest = max(largest, score)
            index += 1
        position += last - first
    return largest


@compiled
def _add_distances(scores: int, count: int, slope: np.float32) -> Any:
    largest = _LOWEST
    for i in range(count):
        put(scores, i, get(scores, i) + slope * np.float32(i - count + 1))
        largest = max(largest, get(scores, i))
    return largest


@compiled
def _exponentials(scores: int, count: int, largest: np.float32) -> Any:
    """Replace the scores by their exponentials, and return the sum."""
    for i in range(count):
        put(scores, i, exp(get(scores, i) - largest))
    total = _ZERO
    for i in range(count):
        total += get(scores, i)
    return total


@compiled
def _mix(
    memory: AttentionMemory, span: SeenSpan, layer: Integers, out: int, factor: np.float32
) -> None:
    """Write the sum of the visible values, each with its share."""
    for i in range(layer[FEATURES]):
        put(out, i, _ZERO)
    position, index = span.begin, 0
    while position < span.end:
        first, last, at = _block(memory, span, layer, position)
        for i in range(first, last):
            value = layer[VALUES] + (at + i) * layer[ROW_BYTES]
            _add_row(value, out, get(memory.scores, index) * factor, layer)
            index += 1
        position += last - first
