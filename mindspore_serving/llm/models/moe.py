"""Mixtral and Qwen3-MoE: Llama's attention, and experts in place of the feed-forward block."""

from collections.abc import Sequence
from dataclasses import dataclass

from mindspore_serving.llm.models.llama import LLAMA, Layer, decode
from mindspore_serving.llm.models.ops import Inputs, Ops, Tensor, Weight
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
    is_sparse = layer.index in layer.spec.sparse_layers
    return _mixture(layer, h) if is_sparse else layer.mlp(h)


def _mixture(layer: Layer, h: Tensor) -> Tensor:
    ops, spec = layer.ops, layer.spec
    names = NAMES.get(spec.architecture, QWEN)
    router = ops.weight(layer.name(f"{names.router}.weight"))
    out = ops.moe(
        h,
        router,
        _experts(layer, names),
        top_k=spec.experts_per_token,
        normalize=spec.normalize_experts,
    )
    return ops.all_reduce(out)


def _experts(layer: Layer, names: ExpertNames) -> Sequence[tuple[Weight, Weight, Weight]]:
    def expert(index: int) -> tuple[Weight, Weight, Weight]:
        prefix = f"{names.experts}.{index}"
        gate, up, down = (
            layer.ops.weight(layer.name(f"{prefix}.{name}.weight"))
            for name in (names.gate, names.up, names.down)
        )
        return gate, up, down

    return [expert(index) for index in range(layer.spec.num_experts)]
