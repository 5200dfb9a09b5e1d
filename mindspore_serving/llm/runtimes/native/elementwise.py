"""Compiled operations on single rows: norms, rotary positions, activations, sums.

Each takes the arena, a row of the plan, its numbers and the number of rows.
"""

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.models.ops import MIN_MEAN_SQUARE
from mindspore_serving.llm.runtimes.native.codes import (
    Binary,
    Column,
    Reduce,
    Scaling,
    StepColumn,
    Unary,
)
from mindspore_serving.llm.runtimes.native.compiling import compiled
from mindspore_serving.llm.runtimes.native.memory import exp
from mindspore_serving.llm.runtimes.native.memory import load_f32 as get
from mindspore_serving.llm.runtimes.native.memory import store_f32 as put

Floats: TypeAlias = npt.NDArray[np.float32]
Integers: TypeAlias = npt.NDArray[np.int64]

# Compiled code has the members of enumerations as constants.
OUT, OUT_STRIDE, A, A_STRIDE = map(int, list(Column)[2:6])
B, B_STRIDE, WIDTH = map(int, list(Column)[6:9])
P0, P1, P2, P3, P4, P5, P6 = map(int, list(Column)[9:])
_SILU, _GELU_TANH, _GELU, _RELU = map(int, list(Unary)[:4])
_SCALE, _SOFTCAP, _GAUSSIAN, _CLIP = map(int, Scaling)
_ADD, _MUL, _SILU_MUL, _CLAMPED = map(int, Binary)
_MEAN = int(Reduce.MEAN)
POSITION, LONG = int(StepColumn.POSITION), int(StepColumn.USES_LONG_ROPE)
TIME = int(StepColumn.TIME)
_LEAST = np.float32(MIN_MEAN_SQUARE)
_ZERO, _UNIT, _DOUBLE, _HALF = np.float32(0), np.float32(1), np.float32(2), np.float32(0.5)
_TANH_FACTOR, _TANH_CUBE = np.float32(math.sqrt(2 / math.pi)), np.float32(0.044715)
_ROOT_HALF = np.float32(math.sqrt(0.5))


@compiled
def sigmoid(x: np.float32) -> Any:
    """Return the logistic function of `x`."""
    return _UNIT / (_UNIT + exp(-x))


@compiled
def tanh(x: np.float32) -> Any:
    """Return the hyperbolic tangent of `x`."""
    return _UNIT - _DOUBLE / (exp(_DOUBLE * x) + _UNIT)


@compiled
def rms_norm(arena: int, op: Integers, numbers: Floats, rows: int) -> None:
    """Normalise P0 groups of WIDTH; B are weights, P1 apart from group to group; -1: none."""
    width = op[WIDTH]
    for row in range(rows):
        for group in range(op[P0]):
            x = arena + 4 * (op[A] + row * op[A_STRIDE] + group * width)
            out = arena + 4 * (op[OUT] + row * op[OUT_STRIDE] + group * width)
            total = _ZERO
            for i in range(width):
                total += get(x, i) * get(x, i)
            factor = _UNIT / np.float32(math.sqrt(total / np.float32(width) + numbers[0]))
            if op[B] < 0:
                for i in range(width):
                    put(out, i, get(x, i) * factor)
            else:
                weights = arena + 4 * (op[B] + group * op[P1])
                for i in range(width):
                    put(out, i, get(x, i) * factor * get(weights, i))


@compiled
def layer_norm(arena: int, op: Integers, numbers: Floats, rows: int) -> None:
    """Normalise as `rms_norm`, around the mean; P2 is the offset of a bias, or -1."""
    width = op[WIDTH]
    for row in range(rows):
        for group in range(op[P0]):
            x = arena + 4 * (op[A] + row * op[A_STRIDE] + group * width)
            out = arena + 4 * (op[OUT] + row * op[OUT_STRIDE] + group * width)
            mean = _ZERO
            for i in range(width):
                mean += get(x, i)
            mean /= np.float32(width)
            total = _ZERO
            for i in range(width):
                total += (get(x, i) - mean) * (get(x, i) - mean)
            factor = _UNIT / np.float32(math.sqrt(total / np.float32(width) + numbers[0]))
            for i in range(width):
                put(out, i, (get(x, i) - mean) * factor)
            if op[B] >= 0:
                weights = arena + 4 * (op[B] + group * op[P1])
                for i in range(width):
                    put(out, i, get(out, i) * get(weights, i))
            if op[P2] >= 0:
                bias = arena + 4 * op[P2]
                for i in range(width):
                    put(out, i, get(out, i) + get(bias, i))


@compiled
def rope_tables(arena: int, op: Integers, numbers: Floats, rows: int, step: Integers) -> None:
    """Compute cos and sin of WIDTH frequencies at B, or at P0 in rows with long positions.

    P1 has the axis of each, of time, height and width, or is -1.
    """
    width = op[WIDTH]
    for row in range(rows):
        position = np.float32(step[row, POSITION])
        source = op[P0] if op[P0] >= 0 and step[row, LONG] else op[B]
        at = op[OUT] + row * op[OUT_STRIDE]
        for i in range(width):
            if op[P1] >= 0:
                position = np.float32(step[row, TIME + int(get(arena, op[P1] + i))])
            angle = position * get(arena, source + i)
            put(arena, at + i, np.float32(math.cos(angle)) * numbers[0])
            put(arena, at + width + i, np.float32(math.sin(angle)) * numbers[0])


@compiled
def rope(arena: int, op: Integers, rows: int) -> None:
    """Rotate WIDTH pairs of P0 heads of P1 features by the tables at B; P2: pairs are adjacent."""
    half, head_dim = op[WIDTH], op[P1]
    step, second = (2, 1) if op[P2] else (1, half)
    for row in range(rows):
        at = op[B] + row * op[B_STRIDE]
        cos, sin = arena + 4 * at, arena + 4 * (at + half)
        for head in range(op[P0]):
            x = arena + 4 * (op[A] + row * op[A_STRIDE] + head * head_dim)
            out = arena + 4 * (op[OUT] + row * op[OUT_STRIDE] + head * head_dim)
            for i in range(half):
                first, other = get(x, i * step), get(x, i * step + second)
                put(out, i, first * get(cos, i) - other * get(sin, i))
                put(out, half + i, other * get(cos, i) + first * get(sin, i))
            for i in range(2 * half, head_dim):
                put(out, i, get(x, i))


@compiled
def unary(arena: int, op: Integers, rows: int) -> None:
    """Apply an activation of `Unary`."""
    width, kind = op[WIDTH], op[P0]
    for row in range(rows):
        x = arena + 4 * (op[A] + row * op[A_STRIDE])
        out = arena + 4 * (op[OUT] + row * op[OUT_STRIDE])
        if kind == _SILU:
            for i in range(width):
                put(out, i, get(x, i) * sigmoid(get(x, i)))
        elif kind == _GELU_TANH:
            _gelu_tanh(x, out, width)
        elif kind == _GELU:
            _gelu(x, out, width)
        elif kind == _RELU:
            for i in range(width):
                put(out, i, max(get(x, i), _ZERO))
        else:
            for i in range(width):
                put(out, i, sigmoid(get(x, i)))


@compiled
def _gelu(x: int, out: int, width: int) -> None:
    for i in range(width):
        y = get(x, i)
        put(out, i, _HALF * y * (_UNIT + np.float32(math.erf(y * _ROOT_HALF))))


@compiled
def _gelu_tanh(x: int, out: int, width: int) -> None:
    for i in range(width):
        y = _TANH_FACTOR * (get(x, i) + _TANH_CUBE * get(x, i) * get(x, i) * get(x, i))
        put(out, i, _HALF * get(x, i) * (_UNIT + tanh(y)))


@compiled
def scaling(arena: int, op: Integers, numbers: Floats, rows: int) -> None:
    """Apply an operation of `Scaling`."""
    width, kind, number, other = op[WIDTH], op[P0], numbers[0], numbers[1]
    for row in range(rows):
        x = arena + 4 * (op[A] + row * op[A_STRIDE])
        out = arena + 4 * (op[OUT] + row * op[OUT_STRIDE])
        if kind == _SCALE:
            for i in range(width):
                put(out, i, get(x, i) * number)
        elif kind == _SOFTCAP:
            for i in range(width):
                put(out, i, tanh(get(x, i) / number) * number)
        elif kind == _CLIP:
            for i in range(width):
                put(out, i, min(max(get(x, i), number), other))
        else:
            limit = _limit(x, width, number)
            for i in range(width):
                put(out, i, max(get(x, i) - limit, _ZERO))


@compiled
def _limit(x: int, width: int, cutoff: np.float32) -> Any:
    """Return the mean plus `cutoff` standard deviations."""
    mean, total = _sum(x, width) / np.float32(width), _ZERO
    for i in range(width):
        total += (get(x, i) - mean) * (get(x, i) - mean)
    return mean + np.float32(math.sqrt(total / np.float32(width))) * cutoff


@compiled
def _sum(x: int, width: int) -> Any:
    total = _ZERO
    for i in range(width):
        total += get(x, i)
    return total


@compiled
def binary(arena: int, op: Integers, numbers: Floats, rows: int) -> None:
    """Apply an operation of `Binary` to two tensors."""
    width, kind, number = op[WIDTH], op[P0], numbers[0]
    for row in range(rows):
        a = arena + 4 * (op[A] + row * op[A_STRIDE])
        b = arena + 4 * (op[B] + row * op[B_STRIDE])
        out = arena + 4 * (op[OUT] + row * op[OUT_STRIDE])
        if kind == _ADD:
            for i in range(width):
                put(out, i, get(a, i) + get(b, i))
        elif kind == _MUL:
            for i in range(width):
                put(out, i, get(a, i) * get(b, i))
        elif kind == _SILU_MUL:
            for i in range(width):
                put(out, i, get(a, i) * sigmoid(get(a, i)) * get(b, i))
        else:
            for i in range(width):
                put(out, i, get(a, i) * sigmoid(get(a, i) * number) * (get(b, i) + _UNIT))


@compiled
def broadcast(arena: int, op: Integers, rows: int) -> None:
    """Add or multiply by the one feature of a second tensor."""
    for row in range(rows):
        at, to = op[A] + row * op[A_STRIDE], op[OUT] + row * op[OUT_STRIDE]
        number = get(arena, op[B] + row * op[B_STRIDE])
        factor = _UNIT if op[P0] == _ADD else number
        added = number if op[P0] == _ADD else _ZERO
        for i in range(op[WIDTH]):
            put(arena, to + i, get(arena, at + i) * factor + added)


@compiled
def reduce(arena: int, op: Integers, rows: int) -> None:
    """Write the mean of A, or A with the root mean square of B."""
    width = op[WIDTH]
    for row in range(rows):
        x = arena + 4 * (op[A] + row * op[A_STRIDE])
        at = op[OUT] + row * op[OUT_STRIDE]
        if op[P0] == _MEAN:
            put(arena, at, _sum(x, width) / np.float32(width))
        else:
            other = arena + 4 * (op[B] + row * op[B_STRIDE])
            mine, target = _ZERO, _ZERO
            for i in range(width):
                mine += get(x, i) * get(x, i)
                target += get(other, i) * get(other, i)
            mine = max(mine / np.float32(width), _LEAST)
            factor = np.float32(math.sqrt(target / np.float32(width) / mine))
            for i in range(width):
                put(arena, at + i, get(x, i) * factor)


@compiled
def copy_heads(arena: int, op: Integers, rows: int) -> None:
    """Copy WIDTH features of each of P0 heads, from heads P1 apart to heads P2 apart.

    P3 zeros follow each.
    """
    width = op[WIDTH]
    for row in range(rows):
        for head in range(op[P0]):
            at = op[A] + row * op[A_STRIDE] + head * op[P1]
            to = op[OUT] + row * op[OUT_STRIDE] + head * op[P2]
            for i in range(width):
                put(arena, to + i, get(arena, at + i))
            for i in range(width, width + op[P3]):
                put(arena, to + i, _ZERO)


@compiled
def query_scale(arena: int, op: Integers, numbers: Floats, rows: int, step: Integers) -> None:
    """Compute 1 + beta * log(1 + floor((position + first) / length))."""
    for row in range(rows):
        position = np.float32(step[row, POSITION])
        count = np.float32(math.floor((position + numbers[2]) / numbers[1]))
        value = _UNIT + numbers[0] * np.float32(math.log1p(count))
        put(arena, op[OUT] + row * op[OUT_STRIDE], value)
