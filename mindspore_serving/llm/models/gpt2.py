"""GPT-2: learned positions, layer norms with biases, one matrix for q, k and v, GELU.

Its matrices are [in, out] in checkpoints; `layouts` has turned them.
"""

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.ops import Inputs, Ops, Tensor
from mindspore_serving.llm.models.spec import ModelSpec

ACTIVATIONS = {"gelu_new": True, "gelu_pytorch_tanh": True, "gelu": False}  # name -> by tanh


def decoder(ops: Ops, spec: ModelSpec, inputs: Inputs) -> Tensor:
    """Logits of `inputs.rows`, [num_logits, vocab].  Raises StartError: unknown activation."""
    tanh = ACTIVATIONS.get(spec.activation)
    if tanh is None:
        known = ", ".join(ACTIVATIONS)
        raise StartError(f"activation is {spec.activation!r}, expected one of {known}")
    table = ops.weight("transformer.wte.weight")
    x = ops.add(
        ops.embedding(inputs.token_ids, table),
        ops.embedding(inputs.positions, ops.weight("transformer.wpe.weight")),
    )
    for i in range(spec.num_layers):
        prefix = f"transformer.h.{i}."
        h = _norm(ops, spec, x, f"{prefix}ln_1")
        x = ops.add(x, _attention(ops, spec, i, h))
        h = _norm(ops, spec, x, f"{prefix}ln_2")
        h = ops.gelu(_linear(ops, h, f"{prefix}mlp.c_fc"), tanh=tanh)
        x = ops.add(x, _linear(ops, h, f"{prefix}mlp.c_proj"))
    x = _norm(ops, spec, ops.gather_rows(x, inputs.rows), "transformer.ln_f")
    x = ops.hidden(x)
    return ops.logits(x, table if spec.tied_embeddings else ops.weight("lm_head.weight"))


def _attention(ops: Ops, spec: ModelSpec, layer: int, h: Tensor) -> Tensor:
    prefix = f"transformer.h.{layer}.attn."
    q, k, v = ops.split(_linear(ops, h, f"{prefix}c_attn"), [spec.q_size] * 3)
    out = ops.attention(layer, q, k, v, spec.attention(layer))
    return _linear(ops, out, f"{prefix}c_proj")


def _linear(ops: Ops, x: Tensor, name: str) -> Tensor:
    return ops.linear(x, ops.weight(f"{name}.linear.weight"), ops.weight(f"{name}.bias"))


def _norm(ops: Ops, spec: ModelSpec, x: Tensor, name: str) -> Tensor:
    weight, bias = ops.weight(f"{name}.weight"), ops.weight(f"{name}.bias")
    return ops.layer_norm(x, weight, bias, spec.norm_eps)
