"""Mixtral and Qwen3-MoE: Llama's attention, and experts in place of the feed-forward block."""

from collections.abc import Sequence
from dataclasses import dataclass

from mindspore_serving.llm.models.llama import LLAMA, Layer
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
    x = ops.embedding(inputs.token_ids, ops.weight("model.embed_tokens.weight"))
    tables = ops.rope_tables(inputs.positions, spec.rope.inv_freq, spec.rope.scale)
    for i in range(spec.num_layers):
        layer = Layer(ops, spec, LLAMA, i)
        h = layer.norm(x, LLAMA.attention_norm)
        x = ops.add(x, layer.attention(h, tables))
        h = layer.norm(x, LLAMA.mlp_norm)
        x = ops.add(x, _mixture(layer, h) if i in spec.sparse_layers else layer.mlp(h))
    x = ops.gather_rows(x, inputs.rows)
    x = ops.rms_norm(x, ops.weight("model.norm.weight"), spec.norm_eps)
    x = ops.hidden(x)
    head = "model.embed_tokens" if spec.tied_embeddings else "lm_head"
    return ops.linear(x, ops.weight(f"{head}.weight"))


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
