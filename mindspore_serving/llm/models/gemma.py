"""Gemma 2 and Gemma 3 (text): norms before and after every block, scaled by 1 + weight, scaled
embeddings, GELU gates, and layers with an attention window between layers without.

Gemma 2 caps the scores of attention and the logits; Gemma 3 normalises queries and keys, and its
window layers have rotary frequencies of their own.
"""

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.llama import LLAMA, Layer
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
        layer = Layer(ops, spec, LLAMA, i, plus_one=True)
        h = layer.norm(x, "input_layernorm")
        h = layer.attention(h, local if spec.windows[i] else tables)
        x = ops.add(x, layer.norm(h, "post_attention_layernorm"))
        h = _feed_forward(layer, layer.norm(x, "pre_feedforward_layernorm"))
        x = ops.add(x, layer.norm(h, "post_feedforward_layernorm"))
    x = ops.gather_rows(x, inputs.rows)
    x = ops.rms_norm(x, ops.weight("model.norm.weight"), spec.norm_eps, plus_one=True)
    x = ops.hidden(x)
    head = embedding if spec.tied_embeddings else ops.weight("lm_head.weight")
    logits = ops.logits(x, head)
    return ops.softcap(logits, spec.logit_softcap) if spec.logit_softcap else logits


def _feed_forward(layer: Layer, h: Tensor) -> Tensor:
    ops = layer.ops
    gate, up = (layer.linear(h, name, bias=False) for name in LLAMA.gate_up)
    h = ops.mul(ops.gelu(gate, tanh=True), up)
    return ops.all_reduce(layer.linear(h, LLAMA.down, bias=False))
