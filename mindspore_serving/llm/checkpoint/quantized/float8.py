"""FP8: matrices of float8 with a scale for each matrix, each output, or each block.

    weight F8_E4M3 or F8_E5M2 [outputs, inputs]
    weight_scale or weight_scale_inv, which a weight is multiplied by in either case: one number,
    [outputs], [outputs, 1], [outputs, groups of inputs] or [blocks of outputs, blocks of inputs]

Scales of inputs are not read: inputs stay what they are, which is more exact.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.quantized.parts import (
    FLOATS,
    Array,
    Matrix,
    Parts,
    QuantizedTensor,
    Words,
    floats,
)

KINDS = ("F8_E4M3", "F8_E5M2")
BLOCK = [128, 128]
INPUT_SCALES = ("input_scale", "activation_scale", "input_scale_ub", "output_scale")


def check_fp8(config: Mapping[str, Any]) -> Words:
    """What it is, in words.  Raises StartError for blocks that are none."""
    block = config.get("weight_block_size")
    if block is None:
        return Words("FP8", is_kept=False)
    rows, columns = _block(block)
    return Words(f"FP8 in blocks of {rows}x{columns}", is_kept=False)


def _block(block: object) -> tuple[int, int]:
    if not isinstance(block, list) or len(block) != 2 or not all(type(n) is int for n in block):
        raise StartError(f"config.json has weight_block_size {block!r}, expected two sizes")
    if min(block) < 1:
        raise StartError(f"config.json has weight_block_size {block!r}, expected sizes over 0")
    return block[0], block[1]


def fp8(parts: Parts, config: Mapping[str, Any]) -> QuantizedTensor:
    """Raises StartError naming a tensor that is missing or does not fit the others."""
    bits = parts.matrix("weight", KINDS)
    outputs, inputs = bits.shape
    block = _block(config.get("weight_block_size") or BLOCK)
    leaf = "weight_scale_inv" if parts.has("weight_scale_inv") else "weight_scale"
    scales = parts.take(leaf, (*FLOATS, "F8_E8M0"))
    size = _covered(scales.shape, (outputs, inputs), block)
    if size is None:
        raise parts.wrong(
            leaf, f"expected one number, [{outputs}, 1], or one for each block of "
            f"{block[0]}x{block[1]}"
        )  # fmt: skip
    parts.drop(*INPUT_SCALES)
    kinds = (parts.dtype("weight"), parts.dtype(leaf))
    return QuantizedTensor(
        "FP8", (outputs, inputs), bits, lambda: _widened(bits, scales, kinds, size), is_packed=False
    )


def _covered(
    scales: tuple[int, ...], shape: tuple[int, int], block: tuple[int, int]
) -> tuple[int, int] | None:
    """How many outputs and inputs share a scale; None if that is not a form of them."""
    outputs, inputs = shape
    if prod(scales) == 1:
        return shape
    if scales == (-(-outputs // block[0]), -(-inputs // block[1])):
        return block
    groups = scales[1] if len(scales) == 2 else 1
    if scales[0] != outputs or groups < 1 or inputs % groups:
        return None
    return 1, inputs // groups


def _widened(bits: Array, scales: Array, kinds: tuple[str, str], block: tuple[int, int]) -> Matrix:
    """float32; `kinds` are the types of `bits` and of `scales`, one for each `block`."""
    rows, columns = block
    if kinds[1] == "F8_E8M0":
        wide = np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
    else:
        wide = floats(kinds[1], scales).astype(np.float32)
    wide = wide.reshape(-(-bits.shape[0] // rows), -1)
    table = FLOAT8[kinds[0]]
    result = np.empty(bits.shape, np.float32)
    for index, scale in enumerate(wide):
        some = slice(index * rows, (index + 1) * rows)
        result[some] = table[bits[some]]
        result[some] *= scale.repeat(columns)[: bits.shape[1]]
    return result


def _table(exponent_bits: int, *, has_infinity: bool) -> Matrix:
    """What each byte stands for: a sign, an exponent, and a fraction in the bits that are left."""
    fraction_bits = 7 - exponent_bits
    byte = np.arange(128)
    exponent, fraction = byte >> fraction_bits, byte & ((1 << fraction_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    is_normal = exponent > 0
    steps = fraction + is_normal * (1 << fraction_bits)
    values = np.ldexp(steps.astype(np.float32), np.maximum(exponent, 1) - bias - fraction_bits)
    if has_infinity:
        largest = exponent == exponent.max()
        values[largest] = np.where(fraction[largest] == 0, np.inf, np.nan)
    else:
        values[-1] = np.nan
    both: Matrix = np.concatenate([values, -values]).astype(np.float32)
    return both


FLOAT8 = {"F8_E4M3": _table(4, has_infinity=False), "F8_E5M2": _table(5, has_infinity=True)}
