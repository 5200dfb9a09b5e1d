"""Gemma 2 and Gemma 3 (text): norms before and after every block, scaled by 1 + weight, scaled
embeddings, GELU gates, and layers that look at a window between layers that look at everything.

Gemma 2 caps the scores of attention and the logits; Gemma 3 normalises queries and keys, and its
window layers have rotary frequencies of their own.
"""

from dataclasses import dataclass

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.ops import Inputs, Ops, Tensor
from mindspore_serving.llm.models.spec import ModelSpec

ACTIVATION = "gelu_pytorch_tanh"


def decoder(ops: Ops, spec: ModelSpec, inputs: Inputs) -> Tensor:
    """Logits of `inputs.rows`, [num_logits, vocab].  Raises StartError: unknown activation."""
    if spec.activation != ACTIVATION:
        raise StartError(f"activation is {spec.activation!r}, expected {ACTIVATION!r}")
    embedding = ops.weight("model.embed_tokens.weight")
    x = ops.scale(ops.embedding(inputs.token_ids, embedding), spec.hidden_size**0.5)
    tables = ops.rope_tables(inputs.positions, spec.rope.inv_freq, spec.rope.scale)
    local = tables
    if spec.local_rope is not None:
        local = ops.rope_tables(inputs.positions, spec.local_rope.inv_freq, spec.local_rope.scale)
    for i in range(spec.num_layers):
        layer = Layer(ops, spec, i)
        h = layer.norm(x, "input_layernorm")
        h = layer.attention(h, local if spec.windows[i] else tables)
        x = ops.add(x, layer.norm(h, "post_attention_layernorm"))
        h = layer.mlp(layer.norm(x, "pre_feedforward_layernorm"))
        x = ops.add(x, layer.norm(h, "post_feedforward_layernorm"))
    x = ops.gather_rows(x, inputs.rows)
    x = ops.rms_norm(x, ops.weight("model.norm.weight"), spec.norm_eps, plus_one=True)
    x = ops.hidden(x)
    head = embedding if spec.tied_embeddings else ops.weight("lm_head.weight")
    logits = ops.linear(x, head)
    return ops.softcap(logits, spec.logit_softcap) if spec.logit_softcap else logits


@dataclass(frozen=True, slots=True)
class Layer:
    ops: Ops
    spec: ModelSpec
    index: int

    def norm(self, x: Tensor, name: str) -> Tensor:
        weight = self.ops.weight(f"model.layers.{self.index}.{name}.weight")
        return self.ops.rms_norm(x, weight, self.spec.norm_eps, plus_one=True)

    def attention(self, h: Tensor, tables: Tensor) -> Tensor:
        ops, spec = self.ops, self.spec
        q, k, v = (self.linear(h, f"self_attn.{n}_proj", spec.qkv_bias) for n in "qkv")
        if spec.qk_norm:
            q = self.head_norm(q, "self_attn.q_norm", spec.num_heads)
            k = self.head_norm(k, "self_attn.k_norm", spec.num_kv_heads)
        q = ops.rope(q, tables, spec.num_heads)
        k = ops.rope(k, tables, spec.num_kv_heads)
        out = ops.attention(self.index, q, k, v, spec.attention(self.index))
        return ops.all_reduce(self.linear(out, "self_attn.o_proj", spec.output_bias))

    def mlp(self, h: Tensor) -> Tensor:
        ops = self.ops
        gate = ops.gelu(self.linear(h, "mlp.gate_proj"), tanh=True)
        h = ops.mul(gate, self.linear(h, "mlp.up_proj"))
        return ops.all_reduce(self.linear(h, "mlp.down_proj"))

    def head_norm(self, x: Tensor, name: str, num_heads: int) -> Tensor:
        weight = self.ops.weight(f"model.layers.{self.index}.{name}.weight")
        return self.ops.head_rms_norm(x, weight, num_heads, self.spec.norm_eps, plus_one=True)

    def linear(self, x: Tensor, name: str, bias: bool = False) -> Tensor:
        name = f"model.layers.{self.index}.{name}"
        weight = self.ops.weight(f"{name}.weight")
        return self.ops.linear(x, weight, self.ops.weight(f"{name}.bias") if bias else None)
