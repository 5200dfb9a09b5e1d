"""Baichuan 1 and 2: Llama with q, k and v in one matrix; 13B has ALiBi in place of rotations.

`layouts` has normalised the output matrix of the second generation, and says by the tensor
`model.alibi_slopes` that a checkpoint is one of ALiBi's.
"""

from mindspore_serving.llm.models.layouts import ALIBI, alibi_slopes
from mindspore_serving.llm.models.llama import Layer, Names
from mindspore_serving.llm.models.ops import Inputs, Ops, Tensor
from mindspore_serving.llm.models.spec import ModelSpec

NAMES = Names(qkv=("self_attn.W_pack",))


def decoder(ops: Ops, spec: ModelSpec, inputs: Inputs) -> Tensor:
    """Logits of `inputs.rows`, [num_logits, vocab]."""
    slopes = alibi_slopes(spec.num_heads) if ops.has_weight(ALIBI) else None
    x = ops.embedding(inputs.token_ids, ops.weight("model.embed_tokens.weight"))
    tables = None
    if slopes is None:
        tables = ops.rope_tables(inputs.positions, spec.rope.inv_freq, spec.rope.scale)
    for i in range(spec.num_layers):
        layer = Layer(ops, spec, NAMES, i)
        h = layer.norm(x, NAMES.attention_norm)
        x = ops.add(x, _attention(layer, h, tables, slopes))
        x = ops.add(x, layer.mlp(layer.norm(x, NAMES.mlp_norm)))
    x = ops.gather_rows(x, inputs.rows)
    x = ops.rms_norm(x, ops.weight("model.norm.weight"), spec.norm_eps)
    x = ops.hidden(x)
    return ops.linear(x, ops.weight("lm_head.weight"))


def _attention(
    layer: Layer, h: Tensor, tables: Tensor | None, slopes: tuple[float, ...] | None
) -> Tensor:
    ops, spec = layer.ops, layer.spec
    q, k, v = layer.projected(h, NAMES.qkv, (spec.q_size, spec.kv_size, spec.kv_size), bias=False)
    if tables is not None:
        q = ops.rope(q, tables, spec.num_heads)
        k = ops.rope(k, tables, spec.num_kv_heads)
    out = ops.attention(layer.index, q, k, v, spec.attention(layer.index, slopes))
    return ops.all_reduce(layer.linear(out, NAMES.output, bias=False))
