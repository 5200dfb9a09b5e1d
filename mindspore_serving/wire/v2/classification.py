"""The classification extension of protocol v2: an output's largest values as texts.

An element is "VALUE:INDEX", or "VALUE:INDEX:LABEL", as Triton writes it: six decimals of a float.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.wire.v2.datatypes import BOOL, BY_NAME
from mindspore_serving.wire.v2.outputs import OutputTensor, of_texts

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
MAX_VALUES = 1 << 17  # of an output: sorting them takes some 10 ms
MAX_TEXTS = 1 << 13  # in an answer


def classify(
    tensor: OutputTensor, count: int, labels: Sequence[str], *, is_batched: bool
) -> OutputTensor:
    """Return the `count` largest values of each instance, as BYTES [instances, count] or [count].

    Equal values are in the order of their indices.  Raises InvalidInputs for values that are no
    numbers, and for too many.
    """
    where, row = f"output '{tensor.name}'", BY_NAME[tensor.datatype]
    if row.numpy is None or row is BOOL:
        raise InvalidInputs(f"{where}: classification needs numbers, it has {row.name}")
    num_instances = tensor.shape[0] if is_batched else 1
    num_values = tensor.num_bytes // row.size
    count = min(count, num_values // max(1, num_instances))
    if num_values > MAX_VALUES or count * num_instances > MAX_TEXTS:
        raise InvalidInputs(
            f"{where}: the classification of {num_values} values would have "
            f"{count * num_instances} texts; at most {MAX_VALUES} values and {MAX_TEXTS} texts are "
            "accepted: send fewer instances, or request fewer classes"
        )
    values = np.frombuffer(b"".join(tensor.raw), row.numpy).reshape(num_instances, -1)
    texts = [text for each in values for text in _largest(each, count, labels)]
    shape = (num_instances, count) if is_batched else (count,)
    return of_texts(tensor.name, texts, shape)


def _largest(values: Array, count: int, labels: Sequence[str]) -> list[str]:
    comparable = values
    if values.dtype.kind == "f":
        comparable = np.where(np.isnan(values), -np.inf, values)
    ascending = np.argsort(comparable[::-1], kind="stable")  # of equal values the last is first
    indices = (len(values) - 1 - ascending[::-1][:count]).tolist()
    chosen = values[indices].tolist()
    form = "%f:%d" if values.dtype.kind == "f" else "%d:%d"
    texts = [form % pair for pair in zip(chosen, indices, strict=True)]
    return [
        f"{text}:{labels[index]}" if index < len(labels) else text
        for text, index in zip(texts, indices, strict=True)
    ]
