"""Conversion of a MindSpore Lite graph to an OpenVINO model."""

from math import prod
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset16 as op

from mindspore_serving.errors import StartError
from mindspore_serving.mindir.lite.call import LiteCall
from mindspore_serving.mindir.lite.graph import LiteGraph, LiteNode, LiteTensor
from mindspore_serving.mindir.lite.operators import ROWS

_MAX_BYTES = 1 << 32  # of a result of known shape: a larger one is a mistake or an attack


def missing_operators(graph: LiteGraph) -> dict[int, list[str]]:
    """Return the numbers of operators without a row, each with the names of its nodes."""
    missing: dict[int, list[str]] = {}
    for node in graph.nodes:
        if node.primitive not in ROWS:
            missing.setdefault(node.primitive, []).append(node.name)
    return missing


def convert(graph: LiteGraph) -> ov.Model:
    """Return the model of `graph`, with its names of inputs and outputs.

    Raises StartError for a node that cannot be built, with its name and the reason.
    """
    values: dict[int, Any] = {}
    parameters = []
    for index in graph.inputs:
        tensor = graph.tensors[index]
        parameter = op.parameter(
            ov.PartialShape([-1 if d < 0 else d for d in tensor.dims]), tensor.dtype
        )
        parameter.output(0).set_names({tensor.name})
        parameters.append(parameter)
        values[index] = parameter.output(0)
    for node in graph.nodes:
        for index, value in zip(node.outputs, _built(graph, node, values), strict=True):
            values[index] = value
    results = []
    for index in graph.outputs:
        value = _value(graph, index, values)
        result = op.result(value)
        result.output(0).set_names({graph.tensors[index].name})
        results.append(result)
    return ov.Model(results, parameters, "lite")


def _built(graph: LiteGraph, node: LiteNode, values: dict[int, Any]) -> list[Any]:
    """Return the outputs of a node."""
    row = ROWS[node.primitive]
    try:
        inputs = [_value(graph, index, values) for index in node.inputs]
        constants = [graph.tensors[index].data for index in node.inputs]
        built = row.build(LiteCall(inputs, constants, node.fields, len(node.outputs)))
        built = built if isinstance(built, list) else [built]
        outputs = [item if isinstance(item, ov.Output) else item.output(0) for item in built]
        if len(outputs) != len(node.outputs):
            raise StartError(f"it has {len(node.outputs)} outputs, {len(outputs)} are computed")
        for output in outputs:
            _check_size(output)
    except Exception as error:  # of any type: it depends on the fault of the file
        raise StartError(f"node '{node.name}' ({row.name}): {error}") from error
    return outputs


def _value(graph: LiteGraph, index: int, values: dict[int, Any]) -> Any:
    if index not in values:
        tensor: LiteTensor = graph.tensors[index]
        if tensor.data is None:
            raise StartError(f"tensor '{tensor.name}' is used before it is computed")
        values[index] = op.constant(np.array(tensor.data)).output(0)  # aligned, unlike the file
    return values[index]


def _check_size(output: Any) -> None:
    shape = output.get_partial_shape()
    if shape.is_static and prod(shape.to_shape()) * output.get_element_type().size > _MAX_BYTES:
        raise StartError(f"its result of shape {list(shape.to_shape())} is over {_MAX_BYTES} bytes")
