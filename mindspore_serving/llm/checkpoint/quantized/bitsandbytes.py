"""bitsandbytes: codes of a codebook in blocks of the flattened matrix, and int8 per output.

4 bit   weight uint8 [outputs * inputs / 2, 1], high nibble first; weight.absmax float32
        [blocks]; weight.quant_map float32 [16]; weight.quant_state.bitsandbytes__nf4 (or fp4):
        JSON with shape and blocksize.  Doubly quantised: absmax uint8, weight.nested_absmax,
        weight.nested_quant_map float32 [256]
8 bit   weight int8 [outputs, inputs]; SCB float32 [outputs], the maximum that 127 stands for
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from mindspore_serving.llm.checkpoint.codebooks import CODEBOOKS
from mindspore_serving.llm.checkpoint.packing import Packed
from mindspore_serving.llm.checkpoint.quantized.parts import (
    Array,
    FormatName,
    Matrix,
    QuantizedTensor,
    TensorParts,
)

STATE = "weight.quant_state.bitsandbytes__"
MAX_JSON = 2**16  # bytes


def check_bitsandbytes(config: Mapping[str, Any]) -> FormatName:
    """Return the name of the format."""
    if config.get("load_in_8bit"):
        return FormatName("bitsandbytes int8, a scale per output")
    kind = str(config.get("bnb_4bit_quant_type") or "fp4").upper()
    return FormatName(f"bitsandbytes {kind}", kind == "NF4")


def bitsandbytes(parts: TensorParts, config: Mapping[str, Any]) -> QuantizedTensor:
    """Build a matrix.  Raises StartError naming a tensor that is missing or does not fit."""
    if parts.dtype("weight") == "I8":
        return _int8(parts)
    kind = "nf4" if parts.has(f"{STATE}nf4") else "fp4"
    state = _state(parts, f"{STATE}{kind}")
    (outputs, inputs), size = state["shape"], state["blocksize"]
    count = outputs * inputs
    values = parts.take("weight", ("U8",), (count // 2, 1), (1, count // 2), (count // 2,))
    code = parts.take("weight.quant_map", ("F32",), (16,))
    stored = _Blocks(parts, state, values, code)
    is_rowwise = inputs % size == 0
    has_kernels = is_rowwise and kind == "nf4" and bool((code == CODEBOOKS["nf4"]).all())
    read = stored.packed if has_kernels else stored.matrix
    return QuantizedTensor(kind.upper(), (outputs, inputs), values, read, is_packed=has_kernels)


class _Blocks:
    """A 4-bit matrix whose flattened codes are in blocks with a scale each."""

    def __init__(
        self, parts: TensorParts, state: dict[str, Any], values: Array, code: Array
    ) -> None:
        self.shape, self.size = tuple(state["shape"]), state["blocksize"]
        self.values, self.code = values, code
        count = -(-self.shape[0] * self.shape[1] // self.size)
        self.nested: tuple[Array, Array, int, np.float32] | None = None
        if parts.has("weight.nested_absmax"):
            size = state["nested_blocksize"]
            outer = parts.take("weight.nested_absmax", ("F32",), (-(-count // size),))
            table = parts.take("weight.nested_quant_map", ("F32",), (256,))
            self.nested = (outer, table, size, np.float32(state["nested_offset"]))
        kind = "F32" if self.nested is None else "U8"
        self.scales: Matrix = parts.take("weight.absmax", (kind,), (count,))

    def absmax(self) -> Matrix:
        """Return the scale of each block."""
        if self.nested is None:
            return self.scales
        outer, table, size, offset = self.nested
        scales: Matrix = table[self.scales] * outer.repeat(size)[: len(self.scales)] + offset
        return scales

    def packed(self) -> Packed:
        outputs, inputs = self.shape
        flat = self.values.reshape(outputs, inputs // 2)
        swapped = flat >> 4 | flat << 4  # low nibble first
        scales = self.absmax().reshape(outputs, -1)
        return Packed(swapped, scales, 4, (outputs, inputs), self.size, codebook="nf4")

    def matrix(self) -> Matrix:
        flat = self.values.reshape(-1)
        numbers = self.code[np.stack([flat >> 4, flat & 15], -1).reshape(-1)]
        numbers *= self.absmax().repeat(self.size)[: len(numbers)]
        result: Matrix = numbers.reshape(self.shape)
        return result


def _state(parts: TensorParts, leaf: str) -> dict[str, Any]:
    """Return the JSON object in a tensor.  Raises StartError naming the tensor."""
    text = parts.take(leaf, ("U8",))
    state: Any = None
    if text.size <= MAX_JSON:
        try:
            state = json.loads(text.tobytes())
        except (ValueError, RecursionError):
            state = None
    if not isinstance(state, dict):
        raise parts.wrong(leaf, "expected a JSON object")
    shape, sizes = state.get("shape"), [state.get("blocksize"), state.get("nested_blocksize", 256)]
    if not isinstance(shape, list) or len(shape) != 2:
        raise parts.wrong(leaf, f"has shape {shape!r}, expected two sizes")
    if not all(type(n) is int and 0 < n < 2**31 for n in (*shape, *sizes)):
        raise parts.wrong(leaf, f"has shape {shape} and blocks of {sizes}, expected sizes over 0")
    if not isinstance(state.get("nested_offset", 0.0), int | float):
        raise parts.wrong(leaf, "has a nested_offset that is no number")
    return {"nested_blocksize": 256, "nested_offset": 0.0, **state}


def _int8(parts: TensorParts) -> QuantizedTensor:
    values = parts.matrix("weight", ("I8",))
    outputs, inputs = values.shape
    scales = parts.take("SCB", ("F32",), (outputs,), (outputs, 1))
    if parts.has("weight_format") and parts.take("weight_format", ("U8",)).any():
        raise parts.wrong("weight_format", "expected 0, rows of inputs")

    def read() -> Packed:
        wide = scales.reshape(-1, 1) / np.float32(127)
        return Packed(values, wide, 8, (outputs, inputs), inputs)

    return QuantizedTensor("INT8", (outputs, inputs), values, read)
