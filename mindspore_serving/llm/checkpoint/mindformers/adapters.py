"""LoRA that MindFormers saved in the weights of a model, added to its matrices when they are read.

`wq.mindpet_delta_lora_a` [rank, inputs] and mindpet_delta_lora_b [outputs, rank] change `wq.weight`
by their product times lora_alpha / lora_rank of `pet_config`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.derived import DerivedTensor
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor

Tensors: TypeAlias = dict[str, StoredTensor]
ToFloat: TypeAlias = Callable[[StoredTensor, str], Any]

SUFFIXES = {".mindpet_delta_lora_a": ".mindpet_delta_lora_b", ".lora_A.weight": ".lora_B.weight"}


def merge_adapters(
    tensors: Tensors, adapter: Mapping[str, Any], label: str, to_f32: ToFloat
) -> Tensors:
    """Return `tensors` with LoRA added to matrices, in float32; those without LoRA are unchanged.

    `adapter` is `pet_config`, and `label` names the checkpoint in errors.  Raises StartError if
    there is LoRA, but `adapter` or a tensor is missing or does not fit.
    """
    pairs = {
        name.removesuffix(first): (name, name.removesuffix(first) + second)
        for name in tensors
        for first, second in SUFFIXES.items()
        if name.startswith("model.") and name.endswith(first)
    }
    if not pairs:
        return tensors
    rank, alpha = adapter.get("lora_rank", 8), adapter.get("lora_alpha", 16)
    is_valid = all(isinstance(n, int | float) and n > 0 for n in (rank, alpha))
    if not adapter or not is_valid:
        raise StartError(
            f"{label} has LoRA in its weights ({next(iter(pairs.values()))[0]!r}), expected the "
            "predict_*.yaml beside it, with lora_rank and lora_alpha in pet_config"
        )
    result = dict(tensors)
    for module, pair in pairs.items():
        parts = [_part(tensors, name, label) for name in (f"{module}.weight", *pair)]
        result[f"{module}.weight"] = _sum(parts, alpha / rank, f"{label}: {module!r}", to_f32)
        del result[pair[0]], result[pair[1]]
    return result


def _part(tensors: Tensors, name: str, label: str) -> StoredTensor:
    if name not in tensors:
        raise StartError(f"{label} has no tensor {name!r}, which LoRA in its weights needs")
    return tensors[name]


def _sum(parts: Sequence[StoredTensor], scale: float, label: str, to_f32: ToFloat) -> StoredTensor:
    weight, first, second = parts
    if weight.shape != (*second.shape[:1], *first.shape[1:]) or first.shape[0] != second.shape[-1]:
        raise StartError(
            f"{label} has LoRA of {list(first.shape)} and {list(second.shape)}, expected factors "
            f"of {list(weight.shape)}"
        )

    def read() -> Any:
        a, b = (to_f32(part, label).reshape(part.shape) for part in (first, second))
        whole = to_f32(weight, label).reshape(weight.shape)
        return whole + np.float32(scale) * (b @ a)

    return DerivedTensor("F32", weight.shape, parts, read)
