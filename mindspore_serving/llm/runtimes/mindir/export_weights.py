"""Weights of checkpoints for `export_cell`: float32, [in, out], fused.

Checks which checkpoints the graph supports, and reads one tensor at a time, when it is used.  Knows
no MindSpore.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.models.spec import ModelSpec

F32 = npt.NDArray[np.float32]


def load_exportable_spec(config: Mapping[str, Any], max_model_len: int | None = None) -> ModelSpec:
    """Return the spec of config.json.  Raises StartError for a model that is not supported."""
    spec, _ = load_definition(config, max_model_len=max_model_len)
    check_exportable(spec)
    return spec


def check_exportable(spec: ModelSpec) -> None:
    """Raise StartError for a model that the graph does not support."""
    if not spec.is_llama_shaped:
        raise StartError(
            f"{spec.architecture_name} is not shaped like Llama, so it cannot be exported; "
            "serve its checkpoint with the runtime openvino, torch or mindspore"
        )
    if spec.rope.switch:
        raise StartError(
            f"{spec.architecture_name} has other rotary positions beyond {spec.rope.switch} "
            f"tokens, and the graph has one kind: give max_model_len={spec.rope.switch}, "
            "or serve the checkpoint with the runtime openvino, torch or mindspore"
        )
    if len(set(spec.windows)) > 1:
        raise StartError(
            f"the layers of the model have windows of {sorted(set(spec.windows))} tokens, "
            "expected the same for all: the graph has one mask"
        )


def sources(spec: ModelSpec) -> dict[str, tuple[str, ...]]:
    """Return the checkpoint's tensors of each name in the graph, in the order of concatenation.

    The names are "embedding", "norm", "head", and of layer i "i.qkv", "i.qkv_bias" and so on.
    """
    names = spec.architecture.names
    head = names.embedding if spec.tied_embeddings else names.head
    tensors_of: dict[str, tuple[str, ...]] = {
        "embedding": (f"{names.embedding}.weight",),
        "norm": (f"{names.norm}.weight",),
        "head": (f"{head}.weight",),
    }
    for i in range(spec.num_layers):
        for role, tensors in roles(spec).items():
            tensors_of[f"{i}.{role}"] = tuple(f"{names.layers}.{i}.{tensor}" for tensor in tensors)
    return tensors_of


def roles(spec: ModelSpec) -> dict[str, tuple[str, ...]]:
    """Return the layer's tensors of each name in the graph."""
    names = spec.architecture.names
    weights: dict[str, tuple[str, ...]] = {
        "attention_norm": (names.attention_norm,),
        "qkv": names.qkv,
        "output": (names.output,),
        "mlp_norm": (names.mlp_norm,),
        "gate_up": names.gate_up,
        "down": (names.down,),
    }
    if spec.qk_norm:
        weights |= {"q_norm": (names.q_norm,), "k_norm": (names.k_norm,)}
    biased = {"qkv": spec.qkv_bias, "output": spec.output_bias}
    biased |= {"gate_up": spec.gate_bias, "down": spec.mlp_bias}
    tensors_of = {
        role: tuple(f"{stem}.weight" for stem in stems) for role, stems in weights.items()
    }
    for role in (role for role, is_biased in biased.items() if is_biased):
        tensors_of[f"{role}_bias"] = tuple(f"{stem}.bias" for stem in weights[role])
    return tensors_of


class Matrices(Mapping[str, F32]):
    """Arrays of `sources` by their name in the graph, read from `checkpoint` at each use.

    A matrix is [in, out], the embedding [vocab, hidden].  Raises StartError for a missing tensor.
    """

    def __init__(self, checkpoint: Checkpoint, spec: ModelSpec) -> None:
        self._checkpoint = checkpoint
        self._sources = sources(spec)

    def __getitem__(self, name: str) -> F32:
        parts = [self._checkpoint.f32(source) for source in self._sources[name]]
        joined = np.concatenate(parts) if len(parts) > 1 else parts[0]
        return joined if name == "embedding" else joined.T

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)
