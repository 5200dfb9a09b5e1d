"""AltUp (Gemma 3n): several hidden states of each token side by side.

A layer predicts all states from all, runs its blocks on the active one, and corrects every state by
the change that the blocks made.  Before the first layer and after the last there is one state.
Paper: "Alternating Updates for Efficient Transformers", arXiv:2301.13310.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from mindspore_serving.llm.models.layer import Layer, layer_input_update
from mindspore_serving.llm.models.ops import Ops, Tensor
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.models.spec_parts import Streams

States: TypeAlias = list[Tensor]  # [T, H] each
Block: TypeAlias = Callable[[Layer, Tensor], Tensor]


def run_layers(
    ops: Ops, spec: ModelSpec, states: States, block: Block, layer_inputs: Mapping[int, Tensor]
) -> States:
    """Run the layers of `spec` with `streams.count` hidden states per token.

    `states` are the embeddings alone for the first stage; `block` runs one layer; `layer_inputs`
    are the layers' extra inputs, [T, layer_inputs] each, or none.  Returns the states, the last
    stage a single one, [T, H].
    """
    streams = spec.streams
    assert streams is not None
    if spec.is_first:
        (x,) = states
        states = [x, *_project(ops, spec, [x] * (streams.count - 1), x, "altup_projections")]
    for i in spec.layers:
        layer = Layer(ops, spec, i)
        states = _predict(layer, states, streams)
        states = _correct(layer, states, block(layer, states[streams.active]), streams)
        if layer_inputs:
            states = _add_input_update(layer, states, layer_inputs[i], streams)
    if not spec.is_last:
        return states
    first, *inactive = states
    projected = _project(ops, spec, inactive, first, "altup_unembed_projections")
    return [ops.scale(_sum(ops, [first, *projected]), 1 / streams.count)]


def _project(ops: Ops, spec: ModelSpec, states: States, first: Tensor, name: str) -> States:
    """Multiply each of `states` by its matrix, and give it the root mean square of `first`."""
    stem = f"{spec.architecture.names.embedding.removesuffix('embed_tokens')}{name}"
    weights = (ops.weight(f"{stem}.{i}.weight") for i in range(len(states)))
    projected = [ops.linear(x, weight) for x, weight in zip(states, weights, strict=True)]
    return [ops.match_rms(x, first) for x in projected]


def _modalities(layer: Layer, x: Tensor) -> Tensor:
    ops = layer.ops
    known = ops.scale(layer.norm(x, "altup.router_norm"), 1 / layer.spec.hidden_size)
    return ops.softcap(layer.linear(known, "altup.modality_router", False), 1.0)


def _predict(layer: Layer, states: States, streams: Streams) -> States:
    ops, count = layer.ops, streams.count
    known = _modalities(layer, states[streams.active])
    every = layer.linear(known, "altup.prediction_coefs", False)
    shares = ops.split(every, [1] * count**2)
    return [
        _sum(ops, [state, *map(ops.mul, states, shares[i * count : (i + 1) * count])])
        for i, state in enumerate(states)
    ]


def _correct(layer: Layer, states: States, output: Tensor, streams: Streams) -> States:
    """Add to each state its share of the change from the active state to `output`."""
    ops = layer.ops
    change = ops.add(output, ops.scale(states[streams.active], -1.0))
    shares = layer.linear(_modalities(layer, output), "altup.correction_coefs", False)
    parts = ops.split(shares, [1] * streams.count)
    return [
        _sum(ops, [state, change, ops.mul(change, part)])
        for state, part in zip(states, parts, strict=True)
    ]


def _add_input_update(
    layer: Layer, states: States, layer_input: Tensor, streams: Streams
) -> States:
    """Add the update from the layer's extra input to all states but the first."""
    ops, x = layer.ops, states[streams.active]
    if streams.scales_result:
        stem = f"{layer.architecture.names.layers}.{layer.index}"
        x = ops.gain(x, ops.weight(f"{stem}.altup.correct_output_scale"))
    update = layer_input_update(layer, x, layer_input)
    return [states[0], *(ops.add(state, update) for state in states[1:])]


def _sum(ops: Ops, terms: Sequence[Tensor]) -> Tensor:
    total, *rest = terms
    for term in rest:
        total = ops.add(total, term)
    return total
