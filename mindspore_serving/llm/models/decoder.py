"""The decoder of every architecture: embeddings, layers, final norm and output matrix, each as the
description of the architecture says.  Knows no runtime.
"""

from mindspore_serving.llm.models.attention import Positions, attention
from mindspore_serving.llm.models.layer import Layer, norm
from mindspore_serving.llm.models.layer_inputs import layer_inputs, with_input
from mindspore_serving.llm.models.mixture import feed_forward
from mindspore_serving.llm.models.ops import Inputs, Ops, Tensor
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.models.states import recurrence


def decoder(ops: Ops, spec: ModelSpec, inputs: Inputs) -> Tensor:
    """Logits of `inputs.rows`, [num_logits, vocab]; of a stage that is not the last, the hidden
    state of all tokens.  Raises StartError: unknown activation."""
    names = spec.form.names
    x = _embedded(ops, spec, inputs) if spec.is_first else inputs.hidden
    positions = Positions.of(ops, spec, inputs)
    given = layer_inputs(ops, spec, x, inputs.token_ids)
    for i in spec.layers:
        layer = Layer(ops, spec, i)
        x = _block(layer, x, positions)
        x = with_input(layer, x, given[i]) if given else x
        x = ops.gain(x, ops.weight(f"{names.layers}.{i}.{names.scalar}")) if names.scalar else x
    if not spec.is_last:
        return x
    x = ops.gather_rows(x, inputs.rows)
    x = ops.hidden(norm(ops, spec, x, names.norm))
    head = names.embedding if spec.tied_embeddings else names.head
    bias = ops.weight(f"{names.head}.bias") if spec.form.head_bias else None
    logits = ops.logits(_scaled(ops, x, spec.scales.head), ops.weight(f"{head}.weight"), bias)
    return ops.softcap(logits, spec.logit_softcap) if spec.logit_softcap else logits


def _embedded(ops: Ops, spec: ModelSpec, inputs: Inputs) -> Tensor:
    names = spec.form.names
    x = ops.embedding(inputs.token_ids, ops.weight(f"{names.embedding}.weight"))
    x = _scaled(ops, x, spec.scales.embedding)
    if inputs.features is not None:
        x = ops.with_rows(x, inputs.places, inputs.features)
    if names.positions:
        table = ops.weight(f"{names.positions}.weight")
        x = ops.add(x, ops.embedding(inputs.positions, table))
    return norm(ops, spec, x, names.embedding_norm) if names.embedding_norm else x


def _block(layer: Layer, x: Tensor, positions: Positions) -> Tensor:
    ops, names, scale = layer.ops, layer.form.names, layer.spec.scales.residual
    h = layer.norm(x, names.attention_norm)
    out = layer.norm(_mixed(layer, h, positions), names.after_attention)
    if layer.form.parallel:
        h = layer.norm(x, names.mlp_norm) if names.mlp_norm else h
        out = ops.add(out, feed_forward(layer, h, x))
        return ops.add(x, _scaled(ops, out, scale))
    x = ops.add(x, _scaled(ops, out, scale))
    out = feed_forward(layer, layer.norm(x, names.mlp_norm), x)
    return ops.add(x, _scaled(ops, layer.norm(out, names.after_mlp), scale))


def _mixed(layer: Layer, h: Tensor, positions: Positions) -> Tensor:
    """What `h` gets of other tokens of its text."""
    state = layer.spec.state
    if state is not None and layer.index in state.layers:
        return recurrence(layer, h, state)
    return attention(layer, h, positions)


def _scaled(ops: Ops, x: Tensor, scale: float) -> Tensor:
    return x if scale == 1.0 else ops.scale(x, scale)
