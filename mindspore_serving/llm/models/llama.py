"""Llama and what is shaped like it: Llama 1 to 3, Mistral, Qwen2, Qwen3, InternLM 1 and 2, Phi-3.

They differ by numbers of the spec and by names; `layouts` cuts InternLM2's fused matrix.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mindspore_serving.llm.models.ops import Inputs, Ops, Tensor, Weight
from mindspore_serving.llm.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Names:
    """What a checkpoint calls its tensors; those below `norm` and `head` are of a layer.

    `qkv` and `gate_up` have one name if the tensors are fused, one after another, or one each.
    """

    embedding: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"
    attention_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    output: str = "self_attn.o_proj"
    mlp_norm: str = "post_attention_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"


LLAMA = Names()
NAMES = {
    "InternLM2ForCausalLM": Names(
        embedding="model.tok_embeddings",
        head="output",
        attention_norm="attention_norm",
        qkv=("attention.wq", "attention.wk", "attention.wv"),
        output="attention.wo",
        mlp_norm="ffn_norm",
        gate_up=("feed_forward.w1", "feed_forward.w3"),
        down="feed_forward.w2",
    ),
    "Phi3ForCausalLM": Names(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)),
}


def decoder(ops: Ops, spec: ModelSpec, inputs: Inputs) -> Tensor:
    """Logits of `inputs.rows`, [num_logits, vocab]."""
    return decode(ops, spec, inputs, NAMES.get(spec.architecture, LLAMA))


def decode(
    ops: Ops,
    spec: ModelSpec,
    inputs: Inputs,
    names: Names,
    *,
    feed_forward: "Callable[[Layer, Tensor], Tensor] | None" = None,
    slopes: tuple[float, ...] | None = None,
) -> Tensor:
    """The same with another block behind attention, or with ALiBi's `slopes`, not rotations."""
    feed_forward = feed_forward or Layer.mlp
    x = ops.embedding(inputs.token_ids, ops.weight(f"{names.embedding}.weight"))
    tables = None
    if slopes is None:
        tables = ops.rope_tables(inputs.positions, spec.rope.inv_freq, spec.rope.scale)
    for i in range(spec.num_layers):
        layer = Layer(ops, spec, names, i)
        h = layer.norm(x, names.attention_norm)
        x = ops.add(x, layer.attention(h, tables, slopes))
        h = layer.norm(x, names.mlp_norm)
        x = ops.add(x, feed_forward(layer, h))
    x = ops.gather_rows(x, inputs.rows)
    x = ops.rms_norm(x, ops.weight(f"{names.norm}.weight"), spec.norm_eps)
    x = ops.hidden(x)
    head = names.embedding if spec.tied_embeddings else names.head
    return ops.logits(x, ops.weight(f"{head}.weight"))


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer.  Norms scale by the weight, or by 1 + weight if `plus_one`."""

    ops: Ops
    spec: ModelSpec
    names: Names
    index: int
    plus_one: bool = False

    def norm(self, x: Tensor, name: str) -> Tensor:
        weight = self.weight(name)
        return self.ops.rms_norm(x, weight, self.spec.norm_eps, plus_one=self.plus_one)

    def attention(
        self, h: Tensor, tables: Tensor | None, slopes: tuple[float, ...] | None = None
    ) -> Tensor:
        ops, spec, names = self.ops, self.spec, self.names
        sizes = (spec.q_size, spec.kv_size, spec.kv_size)
        q, k, v = self.projected(h, names.qkv, sizes, spec.qkv_bias)
        if spec.qk_norm:
            q = self.head_norm(q, names.q_norm, spec.num_heads)
            k = self.head_norm(k, names.k_norm, spec.num_kv_heads)
        if tables is not None:
            q = ops.rope(q, tables, spec.num_heads)
            k = ops.rope(k, tables, spec.num_kv_heads)
        out = ops.attention(self.index, q, k, v, spec.attention(self.index, slopes))
        return ops.all_reduce(self.linear(out, names.output, spec.output_bias))

    def head_norm(self, x: Tensor, name: str, num_heads: int) -> Tensor:
        weight, eps = self.weight(name), self.spec.norm_eps
        return self.ops.head_rms_norm(x, weight, num_heads, eps, plus_one=self.plus_one)

    def mlp(self, h: Tensor) -> Tensor:
        ops, spec, names = self.ops, self.spec, self.names
        sizes = (spec.intermediate_size, spec.intermediate_size)
        gate, up = self.projected(h, names.gate_up, sizes, spec.mlp_bias)
        return ops.all_reduce(self.linear(ops.silu_mul(gate, up), names.down, spec.mlp_bias))

    def projected(
        self, h: Tensor, names: tuple[str, ...], sizes: tuple[int, ...], bias: bool
    ) -> list[Tensor]:
        if len(names) == 1:
            return self.ops.split(self.linear(h, names[0], bias), sizes)
        return [self.linear(h, name, bias) for name in names]

    def linear(self, x: Tensor, name: str, bias: bool) -> Tensor:
        return self.ops.linear(x, self.weight(name), self.weight(name, "bias") if bias else None)

    def weight(self, name: str, kind: str = "weight") -> Weight:
        return self.ops.weight(f"model.layers.{self.index}.{name}.{kind}")
