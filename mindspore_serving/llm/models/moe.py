"""Mixtral and Qwen3-MoE: Llama's attention, and experts in place of the feed-forward block."""

from dataclasses import dataclass

from mindspore_serving.llm.models.llama import LLAMA, Layer, decode
from mindspore_serving.llm.models.ops import Inputs, Ops, Tensor
from mindspore_serving.llm.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """What a checkpoint calls a layer's router, its experts, and an expert's three matrices."""

    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


QWEN = ExpertNames()
NAMES = {
    "MixtralForCausalLM": ExpertNames(
        "block_sparse_moe.gate", "block_sparse_moe.experts", gate="w1", up="w3", down="w2"
    ),
}


def decoder(ops: Ops, spec: ModelSpec, inputs: Inputs) -> Tensor:
    """Logits of `inputs.rows`, [num_logits, vocab]."""
    return decode(ops, spec, inputs, LLAMA, feed_forward=_feed_forward)


def _feed_forward(layer: Layer, h: Tensor) -> Tensor:
    spec = layer.spec
    if layer.index not in spec.sparse_layers:
        return layer.mlp(h)
    names = NAMES.get(spec.architecture, QWEN)
    experts = []
    for index in range(spec.num_experts):
        prefix = f"{names.experts}.{index}"
        gate, up, down = (layer.weight(f"{prefix}.{x}") for x in (names.gate, names.up, names.down))
        experts.append((gate, up, down))
    top_k, normalize = spec.experts_per_token, spec.normalize_experts
    router = layer.weight(names.router)
    h = layer.ops.moe(h, router, experts, top_k=top_k, normalize=normalize)
    return layer.ops.all_reduce(h)
