"""Texts that models take and give: one in each instance, an element of an object array in a run.

Pure numpy: runs nothing.
"""

from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.value import TensorSpec, Value
from mindspore_serving.errors import InvalidTensor, StageFailed

Array: TypeAlias = "np.ndarray[Any, Any]"


def fit_text(index: int, value: Value, tensor: TensorSpec, shape: tuple[int, ...] | None) -> Array:
    """The text `value` as an array of shape (), or of ones if the model wants dimensions.

    Raises InvalidTensor if it is no text.
    """
    if not isinstance(value, str):
        given = dtypes.of(value)
        name = given.kind if given is not None else str(type(value))
        raise InvalidTensor(
            f"Given model input {index} data type {name} not match the data type "
            f"{dtypes.STR.kind} defined in model: input '{tensor.name}' is one text"
        )
    array = np.empty((1,) * len(shape or ()), object)
    array[...] = str(value)
    return array


def is_text(array: Array) -> bool:
    """Whether an output of a model holds texts."""
    return array.dtype.kind in "OU"


def to_text(index: int, output: Array) -> str:
    """What one instance gets of an `output` that holds texts.  Raises StageFailed if it is not one
    text."""
    if output.size != 1 or not isinstance(text := output.reshape(-1)[0], str):
        raise StageFailed(
            f"Model output {index} is {output.size} texts for an instance, replies carry one: have "
            "the model give an output for each"
        )
    return str(text)
