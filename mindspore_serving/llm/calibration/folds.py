"""Folds: inputs of matrices that can be scaled without changing what the model computes.

The columns of some matrices ("readers") are multiplied by positive factors, and the operation that
produces their input ("source") is divided by them. As the source is linear in its weights, the
product stays the same:

       source / s  ->  x / s  ->  reader * s      (reader * s) @ (x / s) = reader @ x

Folds are searched in the traced calls of the model's definition, so every architecture is covered
by three rules, those of AWQ (Lin et al., 2023, arXiv:2306.00978, section 3.2 and its
implementation):

    norm      a norm with a weight, all of whose readers are matrices
    product   a matrix that reads a product (gate times up), one factor of which a matrix produces
    values    a matrix that reads the output of attention: the source is the matrix of the values.
              Query heads that share a value head share its factors

Between source and reader nothing else may read the values, and no weight may be used twice.
Everything else (experts, a norm behind a block, a norm that a router reads, normalised values) is
not scaled.
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
    """Matrices that read the same input, and the operation that produces it.

    The columns of `readers` are multiplied, the rows of `source` and its `bias` are divided.
    `channels` [columns]: the row of `source` that produces each column. A norm with `plus_one`
    multiplies by 1 + its stored weight.
    """

    readers: tuple[str, ...]
    source: str
    bias: str | None
    channels: npt.NDArray[np.int64]
    plus_one: bool = False


def find_folds(calls: Sequence[TracedCall], shape: Shape) -> list[Fold]:
    """Return the folds in the order of the calls; `shape` returns that of a tensor, by its name."""
    uses = Counter(name for call in calls for name in set(call.weights))
    folds = []
    for call in calls:
        fold = None
        if call.operation in NORMS and call.weights:
            fold = _norm_fold(call, shape)
        elif call.operation == LINEAR:
            fold = _matrix_fold(call, shape)
        if fold is not None:
            names = (*fold.readers, fold.source, fold.bias)
            if all(uses[name] == 1 for name in names if name):
                folds.append(fold)
    return folds


def _norm_fold(norm: TracedCall, shape: Shape) -> Fold | None:
    """Return the fold of a norm, None unless all its readers are matrices."""
    readers = _readers(norm)
    if not readers or any(each.operation != LINEAR for each in readers):
        return None
    (width,) = shape(norm.weights[0])
    bias = norm.weights[1] if len(norm.weights) > 1 else None
    plus_one = bool(norm.named.get("plus_one"))
    names = tuple(each.weights[0] for each in readers)
    return Fold(names, norm.weights[0], bias, np.arange(width), plus_one)


def _matrix_fold(reader: TracedCall, shape: Shape) -> Fold | None:
    """Return the fold of a matrix whose input comes from a matrix, else None.

    A product, attention, or a slice of the source's rows may lie between the two.
    """
    # Walk backwards from the reader's input; `channels` follows each column on the way:
    # reader <- [product] <- [attention <- values] <- [rows of a fused matrix] <- source
    columns = shape(reader.weights[0])[1]
    producer, channels = _factor(_sole_input(reader.inputs[0])), np.arange(columns)
    if producer is not None and producer.operation == "attention":
        # Attention mixes values over tokens, never over channels, so factors pass through it.
        spec = producer.arguments[-1]
        if columns != spec.num_heads * spec.head_dim:
            return None
        producer, channels = _sole_input(producer.inputs[2]), _value_channels(spec)
    source, begin = producer, 0
    if producer is not None and producer.operation == "split" and producer.rows is not None:
        source, begin = producer.inputs[0], producer.rows[0]
    if source is None or source.operation != LINEAR:
        return None
    if source is producer and shape(source.weights[0])[0] != channels.max() + 1:
        return None  # the output is broadcast: one number scales all channels
    bias = source.weights[1] if len(source.weights) > 1 else None
    return Fold((reader.weights[0],), source.weights[0], bias, begin + channels)


def _factor(call: TracedCall | None) -> TracedCall | None:
    """Return the factor of a product that can be divided, the second before the first; else `call`.

    The second factor of `silu_mul` is outside the activation, so the product is linear in it.
    """
    if call is None or call.operation not in ("mul", "silu_mul"):
        return call
    # The gate of an attention output is a factor like any other.
    factors = [_sole_input(each) for each in reversed(call.inputs)]
    return next((each for each in factors if each is not None and _can_be_divided(each)), None)


def _value_channels(spec: ModelSpec) -> npt.NDArray[np.int64]:
    """Return, for each column of attention's output, its channel in the shared value heads."""
    group = spec.num_heads // spec.num_kv_heads
    kv_heads = np.arange(spec.num_heads) // group * spec.head_dim
    return (kv_heads[:, None] + np.arange(spec.head_dim)).reshape(-1)


def _can_be_divided(call: TracedCall) -> bool:
    """Return whether `call` can be the source of a fold, or leads to one."""
    return call.operation in (LINEAR, "split", "attention")


def _sole_input(call: TracedCall) -> TracedCall | None:
    """Return `call`, or the call that it only scales, if nothing else reads it; else None."""
    while len(call.users) == 1:
        if call.operation != "scale":
            return call
        call = call.inputs[0]
    return None


def _readers(call: TracedCall) -> list[TracedCall]:
    """Return the calls that read `call`, also through a mere scale."""
    readers = []
    for user in call.users:
        readers += _readers(user) if user.operation == "scale" else [user]
    return readers
