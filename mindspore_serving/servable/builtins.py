"""Built-in stages, which `add_stage` knows by name; each works on one instance."""

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs, StageFailed

NUMBERS = ("max_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "seed")


def argmax(data: Value) -> "np.ndarray[Any, Any]":
    """Return the index of the largest element of the flattened `data`, as an int64 scalar array.

    The first of equal elements is taken. Raises StageFailed for text, bytes, bool, float16 and an
    empty array.
    """
    dtype = dtypes.of(data)
    if dtype is None or not isinstance(data, np.ndarray) or dtype.name in ("bool", "float16"):
        raise StageFailed(f"Argmax not support data type {dtype.kind if dtype else type(data)}")
    if data.size == 0:
        raise StageFailed(f"Argmax needs at least one element, but the shape is {data.shape}")
    return np.array(np.argmax(data), dtype=np.int64)


def generate_parameters(*values: Value) -> str:
    """Return the parameters of the method `generate` as a JSON object, without those that are "".

    In order: those of `NUMBERS`, stop (a text), and a JSON object with more. Raises InvalidInputs.
    """
    *numbers, stop, more = values
    parameters: dict[str, Any] = json_object(more)
    for name, value in zip(NUMBERS, numbers, strict=True):
        if isinstance(value, str) and not value:
            continue
        if not isinstance(value, np.ndarray) or value.size != 1:
            raise InvalidInputs(f"{name} should be a number, but given {value!r}")
        parameters[name] = value.item()
    if isinstance(stop, str) and stop:
        parameters["stop"] = [stop]
    return json.dumps(parameters)


def json_object(text: Value) -> dict[str, Any]:
    """Parse parameters from the text of a JSON object; {} for "".  Raises InvalidInputs."""
    if not isinstance(text, str):
        type_name = type(text).__name__
        raise InvalidInputs(f"parameters should be a JSON object as text, but given {type_name}")
    try:
        parameters = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidInputs(f"parameters is not JSON: {error}") from None
    if not isinstance(parameters, dict):
        raise InvalidInputs(f"parameters should be a JSON object, but given {text[:64]!r}")
    return parameters


Builtin: TypeAlias = tuple[Callable[..., Value], int, int]

# name: function of one instance's inputs, number of inputs, number of outputs
BUILTINS: dict[str, Builtin] = {
    "argmax_cpp": (argmax, 1, 1),
    "generate_parameters": (generate_parameters, 8, 1),
}
