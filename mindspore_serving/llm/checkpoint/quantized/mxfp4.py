"""MXFP4 as in gpt-oss: 4-bit floats, groups of 32 of which share a power of two.

    <name>_blocks   uint8 [experts, outputs, groups, 16], low nibble first
    <name>_scales   uint8 [experts, outputs, groups], of 2 ** (byte - 127)

Each expert becomes a matrix [outputs, groups * 32] named <experts>.<index>.<name>.weight. The
format is in OCP's Microscaling Formats (MX) specification 1.0.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.packing import Packed
from mindspore_serving.llm.checkpoint.quantized.parts import Array, FormatName, QuantizedTensor
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor

BLOCKS, SCALES = "_blocks", "_scales"
GROUP = 32


def check_mxfp4(config: Mapping[str, Any]) -> FormatName:
    """Return the name of the format."""
    return FormatName("MXFP4, groups of 32")


def experts_of(name: str, tensors: Mapping[str, StoredTensor]) -> dict[str, QuantizedTensor]:
    """Build the matrices of `name`_blocks and `name`_scales.

    Raises StartError naming a tensor that is missing or does not fit the other.
    """
    blocks, scales = (_bytes(name + end, tensors) for end in (BLOCKS, SCALES))
    if blocks.ndim != 4 or blocks.shape[3] != GROUP // 2 or 0 in blocks.shape:
        raise StartError(
            f"tensor {name + BLOCKS!r} is {list(blocks.shape)}, expected [experts, outputs, "
            f"groups, {GROUP // 2}]"
        )
    if scales.shape != blocks.shape[:3]:
        raise StartError(
            f"tensor {name + SCALES!r} is {list(scales.shape)}, expected {list(blocks.shape[:3])}"
        )
    module, _, leaf = name.rpartition(".")
    each = zip(blocks, scales, strict=True)
    return {f"{module}.{i}.{leaf}.weight": _expert(*pair) for i, pair in enumerate(each)}


def _bytes(name: str, tensors: Mapping[str, StoredTensor]) -> Array:
    stored = tensors.get(name)
    if stored is None:
        raise StartError(f"tensor {name!r} is missing, which its experts need")
    if stored.dtype != "U8":
        raise StartError(f"tensor {name!r} is {stored.dtype}, expected U8")
    return stored.bits.reshape(stored.shape)


def _expert(blocks: Array, scales: Array) -> QuantizedTensor:
    outputs, groups, _ = blocks.shape
    shape = (outputs, groups * GROUP)

    def read() -> Packed:
        powers = np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
        return Packed(blocks.reshape(outputs, -1), powers, 4, shape, GROUP, codebook="f4e2m1")

    return QuantizedTensor("MXFP4", shape, blocks, read)
