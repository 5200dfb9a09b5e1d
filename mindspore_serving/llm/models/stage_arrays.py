"""Array that a pipeline stage sends to the next one: what later layers need of each token.

    hidden states | inputs of the later layers, one by one | keys | values | keys | values ...

Most models have one hidden state alone.  Keys and values are those of this rank that later layers
share; the stage that gets them keeps them in its own cache as well.  Knows no runtime.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mindspore_serving.llm.models.ops import Ops, Tensor
from mindspore_serving.llm.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class StageArrays:
    """Hidden states, several with AltUp; inputs, and shared keys and values, by layer."""

    states: list[Tensor]
    layer_inputs: dict[int, Tensor]
    shared: dict[int, tuple[Tensor, Tensor]]


def received_width(spec: ModelSpec) -> int:
    """Return the number of features of a token that this stage gets; 0 if it is the first."""
    return 0 if spec.is_first else sum(_sizes(spec, spec.layers.start))


def sent_width(spec: ModelSpec) -> int:
    """Return the number of features of a token that it sends to the next; 0 if it is the last."""
    return 0 if spec.is_last else sum(_sizes(spec, spec.layers.stop))


def join(ops: Ops, spec: ModelSpec, arrays: StageArrays) -> Tensor:
    """Return the row of `arrays` for the stage after the layers of `spec`, [T, sent_width]."""
    first = spec.layers.stop
    parts = [*arrays.states]
    if spec.layer_inputs:
        parts += [arrays.layer_inputs[i] for i in range(first, spec.num_layers)]
    for source in _shared_sources(spec, first):
        parts += arrays.shared[source]
    return parts[0] if len(parts) == 1 else ops.join_heads(parts, 1, sent_width(spec))


def split(ops: Ops, spec: ModelSpec, row: Tensor) -> StageArrays:
    """Return the arrays that `join` has put into `row`, for the first layer of `spec`."""
    first = spec.layers.start
    sizes = _sizes(spec, first)
    parts = ops.split(row, sizes) if len(sizes) > 1 else [row]
    count = _num_states(spec)
    behind = count + (spec.num_layers - first if spec.layer_inputs else 0)
    layer_inputs = dict(enumerate(parts[count:behind], first))
    pairs = zip(parts[behind::2], parts[behind + 1 :: 2], strict=True)
    shared = dict(zip(_shared_sources(spec, first), pairs, strict=True))
    return StageArrays(parts[:count], layer_inputs, shared)


def _num_states(spec: ModelSpec) -> int:
    return 1 if spec.streams is None else spec.streams.count


def _shared_sources(spec: ModelSpec, first: int) -> list[int]:
    """Return the layers before `first` whose keys and values others from there on attend to."""
    return sorted({source for source in spec.sources[first:] if source < first})


def _sizes(spec: ModelSpec, first: int) -> Sequence[int]:
    """Return the number of features of each array that goes to layer `first`."""
    inputs = [spec.layer_inputs] * (spec.num_layers - first) if spec.layer_inputs else []
    shared = [prod(spec.heads[source]) for source in _shared_sources(spec, first)]
    return [
        *[spec.hidden_size] * _num_states(spec),
        *inputs,
        *(size for size in shared for _ in ("keys", "values")),
    ]
