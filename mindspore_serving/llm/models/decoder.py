"""The decoder and the encoder of every architecture.

Embeddings, layers, final norm and output matrix, each as the description of the architecture says.
Knows no runtime.
"""

from collections.abc import Mapping
from functools import partial

from mindspore_serving.llm.models import altup, stage_arrays
from mindspore_serving.llm.models.attention import AttentionContext, attention
from mindspore_serving.llm.models.layer import Layer, layer_input_update, layer_inputs, norm, scaled
from mindspore_serving.llm.models.mixture import feed_forward
from mindspore_serving.llm.models.ops import DecoderInputs, Ops, Tensor
from mindspore_serving.llm.models.positions import distance_rows
from mindspore_serving.llm.models.prediction import (
    EAGLE_NORM,
    EMBEDDING_NORM,
    FUSION,
    HEAD,
    HIDDEN_NORM,
    NORM,
    PREDICTORS,
    PROJECTION,
)
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.models.stage_arrays import StageArrays
from mindspore_serving.llm.models.states import recurrence


def decoder(ops: Ops, spec: ModelSpec, inputs: DecoderInputs) -> Tensor:
    """Return the logits of `inputs.rows`, [num_logits, vocab].

    A pipeline stage before the last returns the arrays of all tokens for the next one.

    Raises StartError: unknown activation.
    """
    names, kept = spec.architecture.names, list[Tensor]()
    x = _run(ops, spec, inputs, kept)
    if not spec.is_last:
        return x
    if spec.num_layers in spec.kept_layers:
        kept.append(x)
    if kept:
        states = kept[0]
        if len(kept) > 1:
            joined = ops.join_heads(kept, 1, len(kept) * spec.hidden_size)
            states = ops.linear(joined, ops.weight(FUSION))
        ops.hidden(states)
        x = norm(ops, spec, ops.gather_rows(x, inputs.rows), names.norm)
    elif spec.keeps_hidden:
        x = ops.gather_rows(ops.hidden(norm(ops, spec, x, names.norm)), inputs.rows)
    else:
        x = ops.hidden(norm(ops, spec, ops.gather_rows(x, inputs.rows), names.norm))
    return _logits(ops, spec, x, names.embedding if spec.tied_embeddings else names.head)


def predictor(ops: Ops, spec: ModelSpec, inputs: DecoderInputs) -> Tensor:
    """Return the logits of a prediction head, [num_logits, vocab]: of the tokens after the next.

    `inputs.hidden` are the model's hidden states of all tokens, or the head's own; `token_ids` are
    the tokens after these.  `spec` and the names of tensors are those of `prediction`.
    """
    names, index = spec.architecture.names, spec.layers.start
    prefix, form = f"{names.layers}.{index}.", PREDICTORS[spec.architecture_name]
    x = _embed(ops, spec, inputs)
    parts = [
        norm(ops, spec, x, f"{prefix}{EMBEDDING_NORM}"),
        norm(ops, spec, inputs.hidden, f"{prefix}{HIDDEN_NORM}"),
    ]
    joined = ops.join_heads(parts[:: -1 if form.hidden_first else 1], 1, 2 * spec.hidden_size)
    x = ops.linear(joined, ops.weight(f"{prefix}{PROJECTION}.{names.matrix}"))
    x = _block(Layer(ops, spec, index), x, AttentionContext.of(ops, spec, inputs))
    x = ops.gather_rows(x, inputs.rows)
    normed = norm(ops, spec, x, f"{prefix}{NORM}")
    ops.hidden(normed if form.chains_normed else x)
    head = f"{prefix}{HEAD}"
    if not ops.has_weight(f"{head}.weight"):
        head = names.embedding if spec.tied_embeddings else names.head
    return _logits(ops, spec, normed, head)


def eagle(ops: Ops, spec: ModelSpec, inputs: DecoderInputs) -> Tensor:
    """Return the logits of an EAGLE-3 head as `predictor` does, for `spec.num_logits` tokens.

    Its attention sees the normalised embedding and hidden state side by side; the residual stream
    begins with the hidden state.
    """
    names, layer = spec.architecture.names, Layer(ops, spec, spec.layers.start)
    x = inputs.hidden
    parts = [layer.norm(_embed(ops, spec, inputs), names.attention_norm)]
    parts += [layer.norm(x, EAGLE_NORM)]
    joined = ops.join_heads(parts, 1, 2 * spec.hidden_size)
    x = ops.add(x, attention(layer, joined, AttentionContext.of(ops, spec, inputs)))
    x = ops.add(x, feed_forward(layer, layer.norm(x, names.mlp_norm), x))
    x = ops.hidden(ops.gather_rows(x, inputs.rows))
    return _logits(ops, spec, norm(ops, spec, x, names.norm), names.head)


def _logits(ops: Ops, spec: ModelSpec, x: Tensor, head: str) -> Tensor:
    bias = ops.weight(f"{spec.architecture.names.head}.bias") if spec.head_bias else None
    logits = ops.logits(scaled(ops, x, spec.scales.head), ops.weight(f"{head}.weight"), bias)
    return ops.softcap(logits, spec.logit_softcap) if spec.logit_softcap else logits


def encoder(ops: Ops, spec: ModelSpec, inputs: DecoderInputs) -> Tensor:
    """Return the final hidden state of every token, [tokens, hidden_size].

    `ops.attention` sees complete prompts.  Raises StartError: unknown activation, a wrong tensor.
    """
    names = spec.architecture.names
    if names.distances:
        table = ops.weight(f"{names.distances}.weight")
        ops.add_distances(table, distance_rows(spec.max_position_embeddings))
    x = _run(ops, spec, inputs)
    return norm(ops, spec, x, names.norm) if names.norm else x


def _run(
    ops: Ops, spec: ModelSpec, inputs: DecoderInputs, kept: list[Tensor] | None = None
) -> Tensor:
    """Run the layers of `spec` on the tokens, or on the arrays of the stage before.

    Appends the inputs of `spec.kept_layers` to `kept`.  Returns hidden states; a stage before the
    last the arrays for the next one.
    """
    context = AttentionContext.of(ops, spec, inputs)
    if spec.is_first:
        x = _embed(ops, spec, inputs)
        arrays = StageArrays([x], layer_inputs(ops, spec, x, inputs.token_ids), context.shared)
    else:
        arrays = stage_arrays.split(ops, spec, inputs.hidden)
        context.shared.update(arrays.shared)
    block = partial(_block, context=context, kept=kept)
    if spec.image_levels and inputs.features is not None:
        block = partial(_deepen, block=block, inputs=inputs)
    layers = altup.run_layers if spec.streams else _run_layers
    states = layers(ops, spec, arrays.states, block, arrays.layer_inputs)
    if spec.is_last:
        (x,) = states
        return x
    return stage_arrays.join(ops, spec, StageArrays(states, arrays.layer_inputs, context.shared))


def _deepen(layer: Layer, x: Tensor, block: altup.Block, inputs: DecoderInputs) -> Tensor:
    """Add the image features of the layer's level, if it has any, to its output (DeepStack)."""
    ops, spec, x = layer.ops, layer.spec, block(layer, x)
    if layer.index >= spec.image_levels:
        return x
    added = _image_features(ops, spec, inputs, layer.index + 1)
    return ops.add_rows(x, inputs.feature_rows, added)


def _image_features(ops: Ops, spec: ModelSpec, inputs: DecoderInputs, level: int) -> Tensor:
    """Return the image features of a level, [n, H]: 0 for embeddings, then those of layers."""
    if not spec.image_levels:
        return inputs.features
    return ops.split(inputs.features, [spec.hidden_size] * (1 + spec.image_levels))[level]


def _embed(ops: Ops, spec: ModelSpec, inputs: DecoderInputs) -> Tensor:
    names = spec.architecture.names
    x = ops.embedding(inputs.token_ids, ops.weight(f"{names.embedding}.weight"))
    x = scaled(ops, x, spec.scales.embedding)
    if inputs.features is not None:
        x = ops.replace_rows(x, inputs.feature_rows, _image_features(ops, spec, inputs, 0))
    if names.positions:
        table = ops.weight(f"{names.positions}.weight")
        x = ops.add(x, ops.whole_embedding(inputs.positions, table))
    if names.types:
        table = ops.weight(f"{names.types}.weight")
        x = ops.add(x, ops.whole_embedding(inputs.types, table))
    return norm(ops, spec, x, names.embedding_norm) if names.embedding_norm else x


def _run_layers(
    ops: Ops, spec: ModelSpec, states: altup.States, block: altup.Block,
    extra_inputs: Mapping[int, Tensor],
) -> altup.States:  # fmt: skip
    """Run the layers as `altup.run_layers` does, with one hidden state per token."""
    names, (x,) = spec.architecture.names, states
    for i in spec.layers:
        layer = Layer(ops, spec, i)
        x = block(layer, x)
        x = ops.add(x, layer_input_update(layer, x, extra_inputs[i])) if extra_inputs else x
        x = ops.gain(x, ops.weight(f"{names.layers}.{i}.{names.scalar}")) if names.scalar else x
    return [x]


def _block(
    layer: Layer, x: Tensor, context: AttentionContext, kept: list[Tensor] | None = None
) -> Tensor:
    spec, names = layer.spec, layer.architecture.names
    if kept is not None and layer.index in spec.kept_layers:
        kept.append(x)
    if layer.architecture.parallel:
        return _parallel(layer, x, context)
    if spec.mixes(layer.index):
        is_normed = layer.architecture.begins_normed and layer.index == 0
        h = x if is_normed else layer.norm(x, names.attention_norm)
        x = _add_residual(layer, x, _token_mixing(layer, h, context), names.after_attention)
        x = _add_low_rank(layer, x, h) if names.low_rank else x
    if spec.feeds(layer.index):
        out = feed_forward(layer, layer.norm(x, names.mlp_norm), x)
        x = _add_residual(layer, x, out, names.after_mlp)
    return x


def _parallel(layer: Layer, x: Tensor, context: AttentionContext) -> Tensor:
    names = layer.architecture.names
    h = layer.norm(x, names.attention_norm)
    out = layer.norm(_token_mixing(layer, h, context), names.after_attention)
    h = layer.norm(x, names.mlp_norm) if names.mlp_norm else h
    return _add_residual(layer, x, layer.ops.add(out, feed_forward(layer, h, x)))


def _add_low_rank(layer: Layer, x: Tensor, h: Tensor) -> Tensor:
    """Add LAuReL's low-rank residual of `h` (Gemma 3n) to `x`, which has the attention's output."""
    ops, stem = layer.ops, layer.architecture.names.low_rank
    out = layer.linear(layer.linear(h, f"{stem}.linear_left", False), f"{stem}.linear_right", False)
    low_rank = ops.add(h, layer.norm(out, f"{stem}.post_laurel_norm"))
    return ops.scale(ops.add(x, low_rank), 2**-0.5)


def _add_residual(layer: Layer, x: Tensor, out: Tensor, name: str = "") -> Tensor:
    """Add the output of a block to `x`; the norm `name` is applied to the output or to the sum."""
    ops, residual = layer.ops, layer.spec.scales.residual
    if layer.architecture.post_norm:
        return layer.norm(ops.add(x, scaled(ops, out, residual)), name)
    return ops.add(x, scaled(ops, layer.norm(out, name), residual))


def _token_mixing(layer: Layer, h: Tensor, context: AttentionContext) -> Tensor:
    """Return the token mixing of `h`: attention, recurrent state, or the sum of both."""
    spec, index = layer.spec, layer.index
    has_state = spec.state is not None and index in spec.state.layers
    if index not in spec.attending:
        return recurrence(layer, h)
    out = attention(layer, h, context)
    return layer.ops.add(recurrence(layer, h), out) if has_state else out
