"""Several hidden states of each token beside one another (AltUp, Gemma 3n).

A layer predicts all of them from all, computes its blocks of one, and corrects every one by what
the blocks have changed.  Before the first layer there is one state, and behind the last one again.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from mindspore_serving.llm.models.layer import Layer, of_input
from mindspore_serving.llm.models.ops import Ops, Tensor
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.models.spec_parts import Streams

States: TypeAlias = list[Tensor]  # [T, H] each
Block: TypeAlias = Callable[[Layer, Tensor], Tensor]


def through(ops: Ops, spec: ModelSpec, x: Tensor, block: Block, given: Sequence[Tensor]) -> Tensor:
    """What the layers make of the embeddings `x`; `block` computes those of one layer, and `given`
    are the layers' own inputs.
    """
    streams = spec.streams
    assert streams is not None
    states = [x, *_projected(ops, spec, [x] * (streams.count - 1), x, "altup_projections")]
    for i in spec.layers:
        layer = Layer(ops, spec, i)
        states = _predicted(layer, states, streams)
        states = _corrected(layer, states, block(layer, states[streams.active]), streams)
        if given:
            states = _with_input(layer, states, given[i], streams)
    first, *others = states
    projected = _projected(ops, spec, others, first, "altup_unembed_projections")
    return ops.scale(_sum(ops, [first, *projected]), 1 / streams.count)


def _projected(ops: Ops, spec: ModelSpec, states: States, first: Tensor, name: str) -> States:
    """Each of `states` by a matrix of its own, as large as `first`."""
    stem = f"{spec.form.names.embedding.removesuffix('embed_tokens')}{name}"
    weights = (ops.weight(f"{stem}.{i}.weight") for i in range(len(states)))
    made = [ops.linear(x, weight) for x, weight in zip(states, weights, strict=True)]
    return [ops.as_large(x, first) for x in made]


def _modalities(layer: Layer, x: Tensor) -> Tensor:
    ops = layer.ops
    known = ops.scale(layer.norm(x, "altup.router_norm"), 1 / layer.spec.hidden_size)
    return ops.softcap(layer.linear(known, "altup.modality_router", False), 1.0)


def _predicted(layer: Layer, states: States, streams: Streams) -> States:
    ops, count = layer.ops, streams.count
    known = _modalities(layer, states[streams.active])
    every = layer.linear(known, "altup.prediction_coefs", False)
    shares = ops.split(every, [1] * count**2)
    return [
        _sum(ops, [state, *map(ops.mul, states, shares[i * count : (i + 1) * count])])
        for i, state in enumerate(states)
    ]


def _corrected(layer: Layer, states: States, out: Tensor, streams: Streams) -> States:
    """Each state with a share of what the blocks have changed of one, `out` being their result."""
    ops = layer.ops
    change = ops.add(out, ops.scale(states[streams.active], -1.0))
    shares = layer.linear(_modalities(layer, out), "altup.correction_coefs", False)
    parts = ops.split(shares, [1] * streams.count)
    return [
        _sum(ops, [state, change, ops.mul(change, part)])
        for state, part in zip(states, parts, strict=True)
    ]


def _with_input(layer: Layer, states: States, given: Tensor, streams: Streams) -> States:
    """All states but the first get what the layer makes of its own input."""
    ops, x = layer.ops, states[streams.active]
    if streams.scales_result:
        stem = f"{layer.form.names.layers}.{layer.index}"
        x = ops.gain(x, ops.weight(f"{stem}.altup.correct_output_scale"))
    own = of_input(layer, x, given)
    return [states[0], *(ops.add(state, own) for state in states[1:])]


def _sum(ops: Ops, terms: Sequence[Tensor]) -> Tensor:
    first, *others = terms
    for term in others:
        first = ops.add(first, term)
    return first
