"""MXFP4, as gpt-oss has its experts: numbers of 4 bits, 32 of which share a power of two.

    <name>_blocks   uint8 [experts, outputs, groups, 16], low nibble first
    <name>_scales   uint8 [experts, outputs, groups], of 2 ** (byte - 127)

Each expert becomes a matrix [outputs, groups * 32]; <experts>.<index>.<name>.weight is its name.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.packing import Packed
from mindspore_serving.llm.checkpoint.quantized.parts import Array, QuantizedTensor, Words
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor

BLOCKS, SCALES = "_blocks", "_scales"
GROUP = 32


def check_mxfp4(config: Mapping[str, Any]) -> Words:
    """What it is, in words."""
    return Words("MXFP4, groups of 32")


def experts_of(name: str, tensors: Mapping[str, StoredTensor]) -> dict[str, QuantizedTensor]:
    """The matrices in `name`_blocks and `name`_scales.  Raises StartError naming one that is
    missing or does not fit the other.
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
    return {f"{module}.{i}.{leaf}.weight": _expert(*one) for i, one in enumerate(each)}


def _bytes(name: str, tensors: Mapping[str, StoredTensor]) -> Array:
    stored = tensors.get(name)
    if stored is None:
        raise StartError(f"tensor {name!r} is missing, without which its experts are broken")
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
