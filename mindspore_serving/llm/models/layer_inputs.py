"""Inputs of one layer each (Gemma 3n and 4): of every token some features for every layer, of a
table of their own and of the token's embedding, which a layer adds to its result.
"""

from collections.abc import Sequence

from mindspore_serving.llm.models.layer import Layer, activated
from mindspore_serving.llm.models.ops import Ops, Tensor
from mindspore_serving.llm.models.spec import ModelSpec


def layer_inputs(ops: Ops, spec: ModelSpec, x: Tensor, token_ids: Tensor) -> Sequence[Tensor]:
    """[T, layer_inputs] for each layer; `x` are the embeddings of the tokens, as layers get them.
    Nothing if the model has none."""
    width, count = spec.layer_inputs, spec.num_layers
    if not width:
        return ()
    names = spec.form.names
    if spec.layer_words < spec.vocab_size:
        token_ids = ops.below(token_ids, spec.layer_words)
    own = ops.embedding(token_ids, ops.weight(f"{names.embedding}_per_layer.weight"))
    stem = names.embedding.removesuffix("embed_tokens")
    projected = ops.linear(x, ops.weight(f"{stem}per_layer_model_projection.weight"))
    projected = ops.scale(projected, spec.hidden_size**-0.5)
    gain = ops.weight(f"{stem}per_layer_projection_norm.weight")
    projected = ops.head_rms_norm(projected, gain, count, spec.norm_eps)
    both = ops.add(projected, ops.scale(own, width**0.5))
    return ops.split(ops.scale(both, 2**-0.5), [width] * count)


def of_input(layer: Layer, x: Tensor, given: Tensor) -> Tensor:
    """What `layer`, whose blocks give `x`, makes of its own input `given`."""
    ops = layer.ops
    gate = activated(ops, layer.linear(x, "per_layer_input_gate", False), layer.spec.activation)
    out = layer.linear(ops.mul(gate, given), "per_layer_projection", False)
    return layer.norm(out, "post_per_layer_input_norm")
