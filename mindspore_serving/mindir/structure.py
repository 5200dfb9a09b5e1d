"""Operators that make and choose functions, and that mark an order of effects."""

from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir import tensors
from mindspore_serving.mindir.storage import seen
from mindspore_serving.mindir.values import BranchChoice, GraphFunction, Value


def _partial(function: GraphFunction, *arguments: Value) -> GraphFunction:
    return GraphFunction(function.graph, (*function.bound, *arguments))


def _switch(condition: Value, then: Value, otherwise: Value) -> Value:
    if isinstance(then, GraphFunction | BranchChoice):
        return BranchChoice(condition, then, otherwise)
    parts = (tensors.tensor(seen(value, None)) for value in (condition, then, otherwise))
    return op.select(*parts).output(0)


def _switch_layer(index: Value, functions: tuple[Value, ...]) -> Value:
    """Choose a function by index, counted from the end if `index` is negative."""
    *remaining, chosen = functions
    number = tensors.cast(tensors.tensor(index), ov.Type.i64)
    for position, function in reversed(list(enumerate(remaining))):
        is_it = op.equal(
            op.floor_mod(number, tensors.tensor(len(functions))), tensors.tensor(position)
        )
        chosen = BranchChoice(is_it.output(0), function, chosen)
    return chosen


STRUCTURE: dict[str, Any] = {
    "Partial": _partial,
    "Switch": _switch,
    "SwitchLayer": _switch_layer,
    "switch_layer": _switch_layer,
    "UpdateState": None,
}
