"""GPTQ and AWQ: integers [inputs, outputs], with a scale and a zero for each group of inputs.

    GPTQ   qweight int32 [inputs * bits / 32, outputs], qzeros int32 [groups, outputs * bits / 32],
           scales [groups, outputs], g_idx int32 [inputs]: the group of each input
    AWQ    qweight int32 [inputs, outputs / 8], qzeros int32 [groups, outputs / 8], scales as above

A weight is scale * (integer - zero). GPTQ's files store zero - 1, except `gptq_v2`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.packing import pack_nibbles
from mindspore_serving.llm.checkpoint.quantized.grouped import Grouped, fields
from mindspore_serving.llm.checkpoint.quantized.parts import (
    Array,
    FormatName,
    QuantizedTensor,
    TensorParts,
)

GPTQ_LAYOUTS = ("gptq", "gptq_v2")
UNIT_WORDS = {4: 0x11111111, 8: 0x01010101}  # a 1 in each integer of a word
AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # positions of outputs 0 to 7 in a word


def check_gptq(config: Mapping[str, Any]) -> FormatName:
    """Return the name of the format.  Raises StartError for unsupported bits and layouts."""
    bits, layout = config.get("bits"), gptq_layout(config)
    if type(bits) is not int or bits not in UNIT_WORDS:
        raise StartError(f"the checkpoint is GPTQ with bits {bits!r}, expected 4 or 8")
    if layout not in GPTQ_LAYOUTS:
        raise StartError(
            f"the checkpoint is GPTQ with checkpoint_format {layout!r}, expected one of "
            f"{', '.join(GPTQ_LAYOUTS)}"
        )
    order = ", act-order" if config.get("desc_act") else ""
    return FormatName(f"GPTQ {bits} bit, {groups_of(config.get('group_size'))}{order}")


def check_awq(config: Mapping[str, Any]) -> FormatName:
    """Return the name of the format.  Raises StartError for unsupported bits and versions.

    Older files have other keys for bits and groups.
    """
    bits, version = config.get("bits", config.get("w_bit")), config.get("version") or "gemm"
    if bits != 4:
        raise StartError(f"the checkpoint is AWQ with bits {bits!r}, expected 4")
    if str(version).lower() != "gemm":
        raise StartError(f"the checkpoint is AWQ with version {version!r}, expected 'gemm'")
    size = config.get("group_size", config.get("q_group_size"))
    return FormatName(f"AWQ 4 bit, {groups_of(size)}")


def groups_of(size: object) -> str:
    """Describe a group size in words."""
    return f"groups of {size}" if type(size) is int and size > 0 else "a scale per output"


def gptq_layout(config: Mapping[str, Any]) -> str:
    """Return the layout of a GPTQ checkpoint."""
    if config.get("is_marlin_format"):
        return "marlin"
    return str(config.get("checkpoint_format") or config.get("format") or "gptq")


def gptq(parts: TensorParts, config: Mapping[str, Any]) -> QuantizedTensor:
    """Build a matrix.  Raises StartError naming a tensor that is missing or does not fit."""
    words, zeros = parts.matrix("qweight", ("I32",)), parts.matrix("qzeros", ("I32",))
    outputs = words.shape[1]
    bits = zeros.shape[1] * 32 // outputs
    if bits not in UNIT_WORDS or zeros.shape[1] * 32 != outputs * bits:
        raise parts.wrong("qzeros", f"expected 4 or 8 bits for each of {outputs} outputs")
    if bits != config["bits"] and not config.get("dynamic"):  # "dynamic" sets bits by module
        raise parts.wrong("qzeros", f"{bits} bits, but config.json has {config['bits']}")
    inputs, groups = words.shape[0] * 32 // bits, len(zeros)
    scales = parts.numbers("scales", (groups, outputs))
    carry = np.uint32(0 if gptq_layout(config) == "gptq_v2" else UNIT_WORDS[bits])
    return Grouped(
        shape=(outputs, inputs),
        bits=bits,
        groups=groups,
        rows=lambda some: np.ascontiguousarray(words[:, some].T).view(np.uint8),
        scales=lambda: _transposed(scales()),
        zeros=lambda: _transposed(fields(zeros.view(np.uint32) + carry, bits)),
        index=_index(parts, config, inputs, groups),
    ).tensor("GPTQ", words)


def _index(parts: TensorParts, config: Mapping[str, Any], inputs: int, groups: int) -> Array | None:
    """Return the group of each input, None if groups are of consecutive inputs."""
    size = config.get("group_size")
    if type(size) is not int or size < 1:
        size = inputs
    if config.get("dynamic"):
        size = -(-inputs // groups)
    if -(-inputs // size) != groups:
        raise parts.wrong("scales", f"expected {-(-inputs // size)} groups of {size} inputs")
    plain = np.arange(inputs) // size
    index = parts.take("g_idx", ("I32",), (inputs,)) if parts.has("g_idx") else plain
    if index.min() < 0 or index.max() >= groups:
        problem = f"has groups {index.min()} to {index.max()}, expected 0 to {groups - 1}"
        raise parts.wrong("g_idx", problem)
    return None if inputs % groups == 0 and (index == plain).all() else index


def awq(parts: TensorParts, config: Mapping[str, Any]) -> QuantizedTensor:
    """Build a matrix.  Raises StartError naming a tensor that is missing or does not fit."""
    words = parts.matrix("qweight", ("I32",))
    inputs, width = words.shape
    outputs = width * 8
    zeros = parts.matrix("qzeros", ("I32",))
    groups = len(zeros)
    parts.take("qzeros", ("I32",), (groups, width))
    scales = parts.numbers("scales", (groups, outputs))
    if inputs % groups or inputs % 2:
        raise parts.wrong("qweight", f"expected an even number of inputs, of {groups} groups")

    def rows(some: slice) -> Array:
        piece = words[:, some.start // 8 : some.stop // 8]
        return pack_nibbles(np.ascontiguousarray(_awq_fields(piece).T))

    return Grouped(
        shape=(outputs, inputs),
        bits=4,
        groups=groups,
        rows=rows,
        scales=lambda: _transposed(scales()),
        zeros=lambda: _transposed(_awq_fields(zeros)),
    ).tensor("AWQ", words)


def _awq_fields(words: Array) -> Array:
    in_order = fields(words, 4).reshape(len(words), -1, 8)[..., AWQ_ORDER]
    return in_order.reshape(len(words), -1)


def _transposed(array: Array) -> Array:
    return np.ascontiguousarray(array.T)
