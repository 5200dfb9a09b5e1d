"""States inside an OpenVINO model (ReadValue and Assign) as further inputs and outputs.

So each row of a batch can have the state of another sequence.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mindspore_serving import log


class TakenState(NamedTuple):
    """State by the names of its input and output, with the bytes of its first value."""

    input: str
    output: str
    initial: bytes


def take_states(graph: Any) -> tuple[Any, list[TakenState], list[float | None]]:
    """Return a graph whose states are its last inputs and outputs, the states, and their values.

    A first value is that for one row of zeros; None if its elements differ.  The graph is returned
    as it is if the size of a state is not known but for its first dimension: each run then starts
    with the states of the file.
    """
    import openvino
    from openvino import opset15 as ops

    nodes = graph.get_ordered_ops()
    reads = [node for node in nodes if node.get_type_name() == "ReadValue"]
    assigns = {node.get_variable_id(): node for node in nodes if node.get_type_name() == "Assign"}
    shapes = [node.get_output_partial_shape(0) for node in reads]
    if not reads or any(node.get_variable_id() not in assigns for node in reads):
        return graph, [], []
    if not all(shape.rank.is_static and _is_fixed(shape) for shape in shapes):
        log.warning("%s has states of unknown size: each run starts anew", graph.get_name())
        return graph, [], []
    initial = [_initial(graph, node) for node in reads]
    parameters, results, states = [], [], []
    for node, shape, value in zip(reads, shapes, initial, strict=True):
        name = node.get_variable_id()
        parameter = ops.parameter(shape, node.get_output_element_type(0), name=name)
        parameter.output(0).set_names({name})
        for target in node.output(0).get_target_inputs():
            target.replace_source_output(parameter.output(0))
        parameters.append(parameter)
        states.append(TakenState(name, f"{name}_next", value.tobytes()))
    for node in reads:  # after all replacements: a state can be assigned another's old value
        results.append(ops.result(assigns[node.get_variable_id()].input_value(0)))
    model = openvino.Model(
        [*graph.get_results(), *results], [*graph.get_parameters(), *parameters], graph.get_name()
    )
    return model, states, [_single(value) for value in initial]


def _is_fixed(shape: Any) -> bool:
    return all(dimension.is_static for dimension in list(shape)[1:])


def _initial(graph: Any, node: Any) -> "np.ndarray[Any, Any]":
    """Compute the first value of a state, for inputs of zeros with one row."""
    import openvino

    if not node.inputs():
        sizes = _sizes(node.get_output_partial_shape(0))
        return np.zeros(sizes, node.get_output_element_type(0).to_dtype())
    parameters = graph.get_parameters()
    model = openvino.Model([node.input_value(0)], parameters, "initial").clone()
    request = openvino.compile_model(model, "CPU").create_infer_request()
    zeros = [
        np.zeros(_sizes(port.get_partial_shape()), port.get_element_type().to_dtype())
        for port in model.inputs
    ]
    return np.array(next(iter(request.infer(zeros).values())))


def _sizes(shape: Any) -> Sequence[int]:
    return [size.get_length() if size.is_static else 1 for size in shape]


def _single(value: "np.ndarray[Any, Any]") -> float | None:
    return float(value.flat[0]) if value.size and (value == value.flat[0]).all() else None
