"""Which inputs of a model's matrices can be scaled so that the model computes the same.

Input channels of some matrices are multiplied by positive numbers, and what gives these channels
is divided by them.  It is found in the calls of the model's own definition, for every architecture
alike:

    norm      a norm with a weight, all of whose readers are matrices
    product   a matrix that reads a product (gate times up), of which one factor is a matrix's
    values    a matrix that reads what attention gives, behind the matrix of its values; queries
              that share a head of values share its numbers

What lies between is read by nothing else, and no weight is used twice.  Whatever differs (experts,
a norm behind a block, one that is read by a router, values that are normalised) is not scaled.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.models.tracing import LINEAR, TracedCall

Shape = Callable[[str], tuple[int, ...]]
NORMS = ("rms_norm", "layer_norm")


@dataclass(frozen=True, slots=True)
class Fold:
    """`readers` are matrices, all with the same input, whose columns are multiplied; `source` and
    its `bias` are divided.

    `channels` [columns]: the row of `source` that a column's numbers come from.  Of a norm with
    `plus_one` the numbers are 1 + what is stored.
    """

    readers: tuple[str, ...]
    source: str
    bias: str | None
    channels: npt.NDArray[np.int64]
    plus_one: bool = False


def find_folds(calls: Sequence[TracedCall], shape: Shape) -> list[Fold]:
    """In the order of the calls.  `shape` is that of a tensor, by its name."""
    uses = Counter(name for call in calls for name in set(call.weights))
    found = []
    for call in calls:
        fold = None
        if call.operation in NORMS and call.weights:
            fold = _of_norm(call, shape)
        elif call.operation == LINEAR:
            fold = _of_matrix(call, shape)
        if fold is not None:
            names = (*fold.readers, fold.source, fold.bias)
            if all(uses[name] == 1 for name in names if name):
                found.append(fold)
    return found


def _of_norm(norm: TracedCall, shape: Shape) -> Fold | None:
    readers = _readers(norm)
    if not readers or any(each.operation != LINEAR for each in readers):
        return None
    (width,) = shape(norm.weights[0])
    bias = norm.weights[1] if len(norm.weights) > 1 else None
    plus_one = bool(norm.named.get("plus_one"))
    names = tuple(each.weights[0] for each in readers)
    return Fold(names, norm.weights[0], bias, np.arange(width), plus_one)


def _of_matrix(reader: TracedCall, shape: Shape) -> Fold | None:
    """Behind a matrix, perhaps through a product, attention, or a part of the matrix's rows."""
    columns = shape(reader.weights[0])[1]
    giver, channels = _factor(_alone(reader.inputs[0])), np.arange(columns)
    if giver is not None and giver.operation == "attention":
        spec = giver.arguments[-1]
        if columns != spec.num_heads * spec.head_dim:
            return None
        giver, channels = _alone(giver.inputs[2]), _channels_of_values(spec)
    source, begin = giver, 0
    if giver is not None and giver.operation == "split" and giver.rows is not None:
        source, begin = giver.inputs[0], giver.rows[0]
    if source is None or source.operation != LINEAR:
        return None
    if source is giver and shape(source.weights[0])[0] != channels.max() + 1:
        return None  # one number for all
    bias = source.weights[1] if len(source.weights) > 1 else None
    return Fold((reader.weights[0],), source.weights[0], bias, begin + channels)


def _factor(call: TracedCall | None) -> TracedCall | None:
    """The factor of a product that can be divided, the second before the first; else `call`."""
    if call is None or call.operation not in ("mul", "silu_mul"):
        return call
    # A gate of attention's result is a factor like any other.
    factors = [_alone(each) for each in reversed(call.inputs)]
    return next((each for each in factors if each is not None and _gives(each)), None)


def _channels_of_values(spec: ModelSpec) -> npt.NDArray[np.int64]:
    """For each column of what attention gives, its channel in the values that heads share."""
    shared = spec.num_heads // spec.num_kv_heads
    kv_heads = np.arange(spec.num_heads) // shared * spec.head_dim
    return (kv_heads[:, None] + np.arange(spec.head_dim)).reshape(-1)


def _gives(call: TracedCall) -> bool:
    return call.operation in (LINEAR, "split", "attention")


def _alone(call: TracedCall) -> TracedCall | None:
    """`call`, or what it scales, if nothing else reads it."""
    while len(call.users) == 1:
        if call.operation != "scale":
            return call
        call = call.inputs[0]
    return None


def _readers(call: TracedCall) -> list[TracedCall]:
    """Of `call`, and of what is only scaled."""
    found = []
    for user in call.users:
        found += _readers(user) if user.operation == "scale" else [user]
    return found
