"""The stages that `add_stage` knows by name.  Each works on one instance and knows no method."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.value import Value
from mindspore_serving.errors import StageFailed


def argmax(data: Value) -> "np.ndarray[Any, Any]":
    """The index of the largest element of the flattened `data`, as an int64 scalar array.

    The first of equal elements wins.  Raises StageFailed for text, bytes, bool and float16, which
    the original refuses too, and for an array without elements.
    """
    kind = dtypes.of(data)
    if kind is None or not isinstance(data, np.ndarray) or kind.name in ("bool", "float16"):
        raise StageFailed(f"Argmax not support data type {kind.kind if kind else type(data)}")
    if data.size == 0:
        raise StageFailed(f"Argmax needs at least one element, but the shape is {data.shape}")
    return np.array(np.argmax(data), dtype=np.int64)


Builtin: TypeAlias = tuple[Callable[..., Value], int, int]

# name: function of one instance's inputs, number of inputs, number of outputs
BUILTINS: dict[str, Builtin] = {
    "argmax_cpp": (argmax, 1, 1),
}
