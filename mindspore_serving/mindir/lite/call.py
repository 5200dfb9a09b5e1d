"""A node that becomes operations of OpenVINO: its inputs, its fields, its activation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from openvino import opset16 as op

from mindspore_serving.errors import StartError
from mindspore_serving.mindir.lite.flatbuffer import Table

Build = Callable[["LiteCall"], Any]


@dataclass(frozen=True, slots=True)
class LiteCall:
    """A node to build: inputs as OpenVINO outputs, and numpy arrays of those that are constant."""

    inputs: Sequence[Any]
    constants: Sequence["np.ndarray[Any, Any] | None"]
    fields: Table
    num_outputs: int

    @property
    def x(self) -> Any:
        return self.inputs[0]

    def ints(self, index: int) -> list[int]:
        """Return the numbers of a constant input.  Raises StartError if it is computed."""
        value = self.constants[index] if index < len(self.constants) else None
        if value is None:
            raise StartError(f"its input {index} is not a constant")
        return [int(number) for number in value.ravel()]

    def number(self, slot: int, kind: str, default: Any = 0) -> Any:
        return self.fields.number(slot, kind, default)


def const(value: Any, dtype: Any = np.int64) -> Any:
    """Return a constant of integers."""
    return op.constant(np.asarray(value, dtype))


def like(value: float, x: Any) -> Any:
    """Return a constant of the element type of `x`."""
    return op.convert_like(op.constant(np.float32(value)), x)


def permute(x: Any, order: Sequence[int]) -> Any:
    """Transpose `x` to the `order` of its axes."""
    return op.transpose(x, const(order))


_ACTIVATIONS: dict[int, Callable[[Any, LiteCall | None], Any]] = {
    0: lambda x, _: x,
    1: lambda x, _: op.relu(x),
    2: lambda x, _: op.sigmoid(x),
    3: lambda x, _: op.clamp(x, 0.0, 6.0),
    4: lambda x, call: op.elu(x, call.number(6, "<f") if call else 1.0),
    5: lambda x, call: op.prelu(x, like(call.number(6, "<f") if call else 0.01, x)),
    6: lambda x, _: op.abs(x),
    8: lambda x, _: op.softsign(x),
    9: lambda x, _: op.softplus(x),
    10: lambda x, _: op.tanh(x),
    12: lambda x, _: op.hswish(x),
    13: lambda x, _: op.hsigmoid(x),
    16: lambda x, call: op.clamp(x, *_bounds(call)),
    18: lambda x, _: op.swish(x),
    19: lambda x, call: op.gelu(x, "TANH" if call and call.number(12, "<?", False) else "ERF"),
}
"""By the number of ActivationType in the schema."""


def _bounds(call: LiteCall | None) -> tuple[float, float]:
    return (call.number(8, "<f"), call.number(10, "<f")) if call else (-1.0, 1.0)


def activated(x: Any, number: int, call: LiteCall | None = None) -> Any:
    """Apply an activation by its number; `call` has its parameters if it is a node of its own."""
    if number not in _ACTIVATIONS:
        raise StartError(f"its activation {number} is not supported")
    return _ACTIVATIONS[number](x, call)


def axis_of(x: Any, axis: int) -> int:
    """Return an axis as a number from 0.  Raises StartError if `x` has no such axis."""
    rank = int(x.get_partial_shape().rank.get_length())
    if not -rank <= axis < rank:
        raise StartError(f"its axis is {axis}, but the input has {rank} dimensions")
    return axis % rank
