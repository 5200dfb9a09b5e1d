"""The stages that `add_stage` knows by name.  Each works on one instance and knows no method."""

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs, StageFailed

NUMBERS = ("max_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "seed")


def argmax(data: Value) -> "np.ndarray[Any, Any]":
    """The index of the largest element of the flattened `data`, as an int64 scalar array.

    The first of equals wins.  Raises StageFailed for text, bytes, bool, float16 and an empty array.
    """
    kind = dtypes.of(data)
    if kind is None or not isinstance(data, np.ndarray) or kind.name in ("bool", "float16"):
        raise StageFailed(f"Argmax not support data type {kind.kind if kind else type(data)}")
    if data.size == 0:
        raise StageFailed(f"Argmax needs at least one element, but the shape is {data.shape}")
    return np.array(np.argmax(data), dtype=np.int64)


def generate_parameters(*values: Value) -> str:
    """The parameters of the method `generate` as a JSON object; those that are "" are left out.

    In order: those of `NUMBERS`, stop (a text), and a JSON object of others.  Raises InvalidInputs.
    """
    *numbers, stop, others = values
    found: dict[str, Any] = json_object(others)
    for name, value in zip(NUMBERS, numbers, strict=True):
        if isinstance(value, str) and not value:
            continue
        if not isinstance(value, np.ndarray) or value.size != 1:
            raise InvalidInputs(f"{name} should be a number, but given {value!r}")
        found[name] = value.item()
    if isinstance(stop, str) and stop:
        found["stop"] = [stop]
    return json.dumps(found)


def json_object(text: Value) -> dict[str, Any]:
    """Parameters given as the text of a JSON object; empty for "".  Raises InvalidInputs."""
    if not isinstance(text, str):
        kind = type(text).__name__
        raise InvalidInputs(f"parameters should be a JSON object as text, but given {kind}")
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidInputs(f"parameters is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidInputs(f"parameters should be a JSON object, but given {text[:64]!r}")
    return found


Builtin: TypeAlias = tuple[Callable[..., Value], int, int]

# name: function of one instance's inputs, number of inputs, number of outputs
BUILTINS: dict[str, Builtin] = {
    "argmax_cpp": (argmax, 1, 1),
    "generate_parameters": (generate_parameters, 8, 1),
}
