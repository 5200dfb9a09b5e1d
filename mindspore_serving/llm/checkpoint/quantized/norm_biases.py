"""Biases that ModelSlim adds to RMS norms so that outliers of their results become smaller.

The matrices that read a norm's result have the opposite in their biases.  Both are put together
here, in the matrices, so that norms have no biases as in the model itself.
"""

import re
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from mindspore_serving.llm.checkpoint.derived import DerivedTensor
from mindspore_serving.llm.checkpoint.packing import Packed, unpack
from mindspore_serving.llm.checkpoint.quantized.parts import (
    FLOATS,
    Matrix,
    QuantizedTensor,
    StaticInputs,
    floats,
)
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor

Tensors: TypeAlias = dict[str, StoredTensor]

# Norm of a layer -> the matrices that read its result.
READERS = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}
LAST_NORM = "model.norm.bias"  # of models whose norms have biases by themselves
_BIAS = re.compile(rf"(.*\.layers\.\d+)\.({'|'.join(READERS)})\.bias")


def fold_norm_biases(tensors: Tensors) -> Tensors:
    """Return `tensors` with the biases of norms in those of the matrices behind them.

    A bias of a matrix that remains within the rounding of its weights is 0.
    """
    result = dict(tensors)
    for name, stored in tensors.items():
        match = _BIAS.fullmatch(name)
        if match is None or LAST_NORM in tensors or stored.dtype not in FLOATS:
            continue
        modules = [f"{match[1]}.{part}" for part in READERS[match[2]]]
        if any(f"{module}.weight" not in tensors for module in modules):
            continue
        shift = floats(stored.dtype, stored.bits).astype(np.float32).reshape(-1)
        del result[name]
        for module in modules if shift.any() else ():
            weight, bias = tensors[f"{module}.weight"], tensors.get(f"{module}.bias")
            result[f"{module}.bias"] = _shifted(weight, bias, shift)
            if isinstance(weight, QuantizedTensor) and isinstance(weight.inputs, StaticInputs):
                # Where inputs are rounded, they are those with the norm's bias.
                inputs = replace(weight.inputs, shift=shift)
                result[f"{module}.weight"] = replace(weight, inputs=inputs)
    return result


def _shifted(weight: StoredTensor, bias: StoredTensor | None, shift: Matrix) -> StoredTensor:
    """Return the bias plus the product of the weights with `shift`."""

    def read() -> Matrix:
        matrix, error = _read(weight)
        total: Matrix = matrix @ shift
        if bias is not None:
            total = total + floats(bias.dtype, bias.bits).astype(np.float32).reshape(-1)
        tolerance = error * (np.abs(shift).sum() + 1)
        return np.zeros_like(total) if (np.abs(total) <= tolerance).all() else total

    sources = [weight, *([] if bias is None else [bias])]
    return DerivedTensor("F32", weight.shape[:1], sources, read)


def _read(weight: StoredTensor) -> tuple[Matrix, Matrix]:
    """Return the weights, and for each output how far they may be from those of the model."""
    if not isinstance(weight, QuantizedTensor):
        matrix = floats(weight.dtype, weight.bits).astype(np.float32).reshape(weight.shape)
        return matrix, np.abs(matrix).max(1) * np.float32(2**-8)
    stored = weight.read()
    if isinstance(stored, Packed):
        return unpack(stored), stored.scales.astype(np.float32).max(1) * np.float32(0.51)
    return stored, np.abs(stored).max(1) * np.float32(2**-7)
