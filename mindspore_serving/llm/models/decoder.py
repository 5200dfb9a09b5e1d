"""The decoder and the encoder of every architecture: embeddings, layers, final norm and output
matrix, each as the description of the architecture says.  Knows no runtime.
"""

from collections.abc import Sequence
from functools import partial

from mindspore_serving.llm.models import altup
from mindspore_serving.llm.models.attention import Positions, attention
from mindspore_serving.llm.models.layer import Layer, layer_inputs, norm, of_input, scaled
from mindspore_serving.llm.models.mixture import feed_forward
from mindspore_serving.llm.models.ops import DecoderInputs, Ops, Tensor
from mindspore_serving.llm.models.positions import distance_rows
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.models.states import recurrence


def decoder(ops: Ops, spec: ModelSpec, inputs: DecoderInputs) -> Tensor:
    """Logits of `inputs.rows`, [num_logits, vocab]; of a stage that is not the last, the hidden
    state of all tokens.  Raises StartError: unknown activation.
    """
    names, x = spec.form.names, _computed(ops, spec, inputs)
    if not spec.is_last:
        return x
    x = ops.gather_rows(x, inputs.rows)
    x = ops.hidden(norm(ops, spec, x, names.norm))
    head = names.embedding if spec.tied_embeddings else names.head
    bias = ops.weight(f"{names.head}.bias") if spec.head_bias else None
    logits = ops.logits(scaled(ops, x, spec.scales.head), ops.weight(f"{head}.weight"), bias)
    return ops.softcap(logits, spec.logit_softcap) if spec.logit_softcap else logits


def encoder(ops: Ops, spec: ModelSpec, inputs: DecoderInputs) -> Tensor:
    """The final hidden state of every token, [tokens, hidden_size]; `ops.attention` sees whole
    prompts.  Raises StartError: unknown activation, a wrong tensor.
    """
    names = spec.form.names
    if names.distances:
        table = ops.weight(f"{names.distances}.weight")
        ops.add_distances(table, distance_rows(spec.max_position_embeddings))
    x = _computed(ops, spec, inputs)
    return norm(ops, spec, x, names.norm) if names.norm else x


def _computed(ops: Ops, spec: ModelSpec, inputs: DecoderInputs) -> Tensor:
    """What the layers of `spec` make of the tokens, or of what the stage before has computed."""
    x = _embedded(ops, spec, inputs) if spec.is_first else inputs.hidden
    positions = Positions.of(ops, spec, inputs)
    given = layer_inputs(ops, spec, x, inputs.token_ids)
    layers = altup.through if spec.streams else _through
    return layers(ops, spec, x, partial(_block, positions=positions), given)


def _embedded(ops: Ops, spec: ModelSpec, inputs: DecoderInputs) -> Tensor:
    names = spec.form.names
    x = ops.embedding(inputs.token_ids, ops.weight(f"{names.embedding}.weight"))
    x = scaled(ops, x, spec.scales.embedding)
    if inputs.features is not None:
        x = ops.with_rows(x, inputs.places, inputs.features)
    if names.positions:
        table = ops.weight(f"{names.positions}.weight")
        x = ops.add(x, ops.embedding(inputs.positions, table))
    if names.types:
        x = ops.add(x, ops.embedding(inputs.types, ops.weight(f"{names.types}.weight")))
    return norm(ops, spec, x, names.embedding_norm) if names.embedding_norm else x


def _through(
    ops: Ops, spec: ModelSpec, x: Tensor, block: altup.Block, given: Sequence[Tensor]
) -> Tensor:
    """As `altup.through`, of one hidden state."""
    names = spec.form.names
    for i in spec.layers:
        layer = Layer(ops, spec, i)
        x = block(layer, x)
        x = ops.add(x, of_input(layer, x, given[i])) if given else x
        x = ops.gain(x, ops.weight(f"{names.layers}.{i}.{names.scalar}")) if names.scalar else x
    return x


def _block(layer: Layer, x: Tensor, positions: Positions) -> Tensor:
    spec, names = layer.spec, layer.form.names
    if layer.form.parallel:
        return _parallel(layer, x, positions)
    if spec.mixes(layer.index):
        is_normed = layer.form.begins_normed and layer.index == 0
        h = x if is_normed else layer.norm(x, names.attention_norm)
        x = _added(layer, x, _mixed(layer, h, positions), names.after_attention)
        x = _with_low_rank(layer, x, h) if names.low_rank else x
    if spec.feeds(layer.index):
        out = feed_forward(layer, layer.norm(x, names.mlp_norm), x)
        x = _added(layer, x, out, names.after_mlp)
    return x


def _parallel(layer: Layer, x: Tensor, positions: Positions) -> Tensor:
    names = layer.form.names
    h = layer.norm(x, names.attention_norm)
    out = layer.norm(_mixed(layer, h, positions), names.after_attention)
    h = layer.norm(x, names.mlp_norm) if names.mlp_norm else h
    return _added(layer, x, layer.ops.add(out, feed_forward(layer, h, x)))


def _with_low_rank(layer: Layer, x: Tensor, h: Tensor) -> Tensor:
    """`x`, with attention, and what two small matrices make of its input `h` (LAuReL)."""
    ops, stem = layer.ops, layer.form.names.low_rank
    out = layer.linear(layer.linear(h, f"{stem}.linear_left", False), f"{stem}.linear_right", False)
    beside = ops.add(h, layer.norm(out, f"{stem}.post_laurel_norm"))
    return ops.scale(ops.add(x, beside), 2**-0.5)


def _added(layer: Layer, x: Tensor, out: Tensor, name: str = "") -> Tensor:
    """`x` with what a block gives; the norm `name` is of that, or of the sum."""
    ops, residual = layer.ops, layer.spec.scales.residual
    if layer.form.post_norm:
        return layer.norm(ops.add(x, scaled(ops, out, residual)), name)
    return ops.add(x, scaled(ops, layer.norm(out, name), residual))


def _mixed(layer: Layer, h: Tensor, positions: Positions) -> Tensor:
    """What `h` gets of other tokens of its text."""
    spec, index = layer.spec, layer.index
    has_state = spec.state is not None and index in spec.state.layers
    if index not in spec.attending:
        return recurrence(layer, h)
    out = attention(layer, h, positions)
    return layer.ops.add(recurrence(layer, h), out) if has_state else out
