"""FP8: matrices of float8 with a scale per matrix, per output, or per block.

    weight F8_E4M3 or F8_E5M2 [outputs, inputs]
    weight_scale or weight_scale_inv, a factor of the weights in either case: one number,
    [outputs], [outputs, 1], [outputs, groups of inputs] or [blocks of outputs, blocks of inputs]

Scales of inputs are ignored: inputs are not quantised, which is more accurate.
"""

from collections.abc import Mapping
from functools import partial
from math import gcd, prod
from typing import Any

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.packing import Packed
from mindspore_serving.llm.checkpoint.quantized.parts import (
    FLOATS,
    Array,
    FormatName,
    QuantizedTensor,
    TensorParts,
    floats,
)

KINDS = ("F8_E4M3", "F8_E5M2")
BLOCK = [128, 128]
INPUT_SCALES = ("input_scale", "activation_scale", "input_scale_ub", "output_scale")


def check_fp8(config: Mapping[str, Any]) -> FormatName:
    """Return the name of the format.  Raises StartError for invalid block sizes."""
    block = config.get("weight_block_size")
    if block is None:
        return FormatName("FP8", has_kernels=False)
    rows, columns = _block(block)
    return FormatName(f"FP8 in blocks of {rows}x{columns}", has_kernels=False)


def _block(block: object) -> tuple[int, int]:
    if not isinstance(block, list) or len(block) != 2 or not all(type(n) is int for n in block):
        raise StartError(f"config.json has weight_block_size {block!r}, expected two sizes")
    if min(block) < 1:
        raise StartError(f"config.json has weight_block_size {block!r}, expected sizes over 0")
    return block[0], block[1]


def fp8(parts: TensorParts, config: Mapping[str, Any]) -> QuantizedTensor:
    """Build a matrix.  Raises StartError naming a tensor that is missing or does not fit."""
    bits = parts.matrix("weight", KINDS)
    outputs, inputs = bits.shape
    block = _block(config.get("weight_block_size") or BLOCK)
    leaf = "weight_scale_inv" if parts.has("weight_scale_inv") else "weight_scale"
    scales = parts.take(leaf, (*FLOATS, "F8_E8M0"))
    size = _covered(scales.shape, (outputs, inputs), block)
    if size is None:
        raise parts.wrong(
            leaf, f"expected a single number, [{outputs}, 1], or a number for each block of "
            f"{block[0]}x{block[1]}"
        )  # fmt: skip
    parts.drop(*INPUT_SCALES)
    kinds = (parts.dtype("weight"), parts.dtype(leaf))
    read = partial(_packed, bits, scales, kinds, size)
    return QuantizedTensor("FP8", (outputs, inputs), bits, read)


def _covered(
    scales: tuple[int, ...], shape: tuple[int, int], block: tuple[int, int]
) -> tuple[int, int] | None:
    """Return how many outputs and inputs share a scale, None for scales of another shape."""
    outputs, inputs = shape
    if prod(scales) == 1:
        return shape
    if scales == (-(-outputs // block[0]), -(-inputs // block[1])):
        return block
    groups = scales[1] if len(scales) == 2 else 1
    if scales[0] != outputs or groups < 1 or inputs % groups:
        return None
    return 1, inputs // groups


def _packed(bits: Array, scales: Array, kinds: tuple[str, str], block: tuple[int, int]) -> Packed:
    """Return the matrix.

    `kinds` are the dtypes of `bits` and of `scales`, each of which is for one `block`.
    """
    rows, columns = block
    if kinds[1] == "F8_E8M0":
        wide = np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
    else:
        wide = floats(kinds[1], scales).astype(np.float32)
    outputs, inputs = bits.shape
    group = gcd(columns, inputs)  # smaller than a block if the last one is partial
    wide = wide.reshape(-(-outputs // rows), -1).repeat(rows, 0)[:outputs]
    wide = wide.repeat(columns // group, 1)[:, : inputs // group]
    codebook = kinds[0].replace("_", "").lower()
    return Packed(bits, wide, 8, (outputs, inputs), group, codebook=codebook)
