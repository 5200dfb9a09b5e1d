"""Conversion of a MindIR program to an OpenVINO model: a walk over its calls.

Each operator is converted by its row in `operators`; `control` builds loops and branches.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset16 as op

from mindspore_serving.errors import StartError
from mindspore_serving.mindir import control, tensors
from mindspore_serving.mindir.attributes import BFLOAT16, NUMPY
from mindspore_serving.mindir.flow import ControlFlow, flow_of
from mindspore_serving.mindir.messages import Graph, ValueType
from mindspore_serving.mindir.operators import MOVERS, OPERATORS, REPEATING, VIEWS, WRITERS
from mindspore_serving.mindir.program import RETURN, CalledGraph, GraphProgram
from mindspore_serving.mindir.storage import claim, order_of, seen, stored, view, write
from mindspore_serving.mindir.structure import STRUCTURE
from mindspore_serving.mindir.tensors import Operator, UnsupportedTensor
from mindspore_serving.mindir.values import (
    BranchOutcome,
    GraphFunction,
    Monad,
    Value,
    Variable,
    leaves,
    moment,
)

_MAX_BYTES = 1 << 32  # of a value of known shape: a larger value is a mistake or an attack
_MAX_DEPTH = 200  # graphs inside graphs
_MAX_CALLS = 200_000  # in total: graphs that call each other twice double the calls at each level


def missing_operators(program: GraphProgram) -> dict[str, list[str]]:
    """Return the operators without a row, each with the locations of its calls."""
    missing: dict[str, list[str]] = {}
    for call in program.calls():
        if call.operator and call.operator not in OPERATORS and call.operator not in STRUCTURE:
            missing.setdefault(call.operator, []).append(call.location)
    return missing


def convert(program: GraphProgram, graph: Graph) -> ov.Model:
    """Return the model of `program`, with the inputs of `graph`, its main graph as it was read.

    Outputs are the results in order, with tuples flattened; inputs and outputs in bfloat16 become
    float32.  Raises StartError for unsupported operators or arguments, and for graphs that call
    each other in circles.
    """
    parameters = [_parameter(entry) for entry in graph.input]
    arguments = [_argument(*pair) for pair in zip(graph.input, parameters, strict=True)]
    walk = _walked(program, arguments)
    values = [
        value for value in leaves(walk.result) if not isinstance(value, Monad) and value is not None
    ]
    results = [_result(value, number) for number, value in enumerate(values)]
    sinks = [
        op.assign(_end(variable.current, f"weight '{variable.name}'").get_node(), variable.name)
        for variable in walk.variables.values()
        # a state that is never read is dropped
        if variable.state is not None and variable.state.get_target_inputs()
    ]
    return ov.Model(results, sinks, parameters, "mindir")


@dataclass(slots=True)
class _Walk:
    """Conversion of one program in progress; implements `control.Walk`."""

    program: GraphProgram
    flow: ControlFlow
    variables: dict[str, Variable]
    writes: bool = False
    result: Value = None
    depth: int = 0
    num_calls: int = 0

    @property
    def written(self) -> tuple[Variable, ...]:
        return tuple(variable for variable in self.variables.values() if variable.is_written)

    def unexpected_writes(self) -> set[str]:
        """Return the names of weights that are written, but have no state."""
        variables = self.variables.items()
        return {
            name for name, variable in variables if variable.changed and not variable.is_written
        }

    def run(self, name: str, arguments: Sequence[Value], stops: tuple[str, ...]) -> BranchOutcome:
        """Call graph `name`.  A final call of one of `stops` is not made; it is the outcome."""
        if name in stops:
            return BranchOutcome({name: tuple(arguments)})
        if self.depth > _MAX_DEPTH:
            raise StartError(f"graph '{name}' calls itself in a way that is no loop")
        self.depth += 1
        try:
            if self.flow.is_loop(name, stops):
                return control.loop(self, name, tuple(arguments), stops)
            return self.body(name, arguments, stops)
        finally:
            self.depth -= 1

    def body(self, name: str, arguments: Sequence[Value], stops: tuple[str, ...]) -> BranchOutcome:
        """Make the calls of graph `name`, and then its final one."""
        body = self.program.graphs[name]
        if len(arguments) != len(body.inputs):
            raise StartError(
                f"graph '{name}' has {len(body.inputs)} inputs, but is called with {len(arguments)}"
            )
        inputs = stored(tuple(arguments)) if self.writes else arguments
        scope: dict[str, Value] = dict(zip(body.inputs, inputs, strict=True))
        calls, tail = body.split_tail()
        for call in calls:
            scope[call.name] = self._value(call, scope)
        if tail is not None:
            return self._called(tail, scope, stops)
        return BranchOutcome({RETURN: tuple(self._known(output, scope) for output in body.outputs)})

    def _value(self, call: CalledGraph, scope: Mapping[str, Value]) -> Value:
        self.num_calls += 1
        if self.num_calls > _MAX_CALLS:
            raise StartError(f"its graphs make more than {_MAX_CALLS} calls")
        if call.operator == "UpdateState":
            return Monad(moment())
        if not call.operator:
            (value, *_) = self._called(call, scope, ()).exits[RETURN]
            return stored(value) if self.writes else value
        inputs = [self._known(name, scope) for name in call.inputs]
        convert = STRUCTURE.get(call.operator) or OPERATORS.get(call.operator)
        if convert is None:
            raise tensors.refused(call.location, call.operator, "there is no such operator")
        try:
            if call.operator in STRUCTURE:
                value = convert(*inputs)
                return stored(value) if self.writes else value
            value = self._applied(call, convert, inputs)
            _check_results(value, call.num_results)
            _check_sizes(value)
        except Exception as error:  # of any type: it depends on the fault of the file
            raise tensors.refused(call.location, call.operator, error) from error
        return value

    def _applied(self, call: CalledGraph, operator: Operator, inputs: Sequence[Value]) -> Value:
        """Return the result of an operator, in new storage if the program writes in place."""
        attributes = call.attributes or {}
        if not self.writes:
            return tensors.apply(operator, inputs, attributes)
        if call.operator in VIEWS:
            return view(operator, inputs, attributes, call.operator in REPEATING)
        if call.operator in MOVERS:
            return stored(tensors.apply(operator, inputs, attributes))
        order, is_writer = order_of(inputs), call.operator in WRITERS
        if is_writer:
            claim(inputs[0], order)
        result = tensors.apply(operator, [seen(value, order) for value in inputs], attributes)
        if not is_writer:
            return stored(result)
        return write(inputs[0], result)

    def _called(
        self, call: CalledGraph, scope: Mapping[str, Value], stops: tuple[str, ...]
    ) -> BranchOutcome:
        arguments = [self._known(name, scope) for name in call.inputs]
        if call.graph:
            return self.run(call.graph, arguments, stops)
        try:
            return control.choose(self, self._known(call.node, scope), arguments, stops)
        except StartError:
            raise
        except Exception as error:
            raise tensors.refused(call.location, "Switch", error) from error

    def _known(self, name: str, scope: Mapping[str, Value]) -> Value:
        for values in (scope, self.program.constants, self.variables):
            if name in values:
                return values[name]
        if name in self.program.graphs:
            return GraphFunction(name)
        raise StartError(f"'{name}' is used in a graph that does not define it")


def _parameter(entry: ValueType) -> Any:
    """Build the model's input for `entry`, a tensor in bfloat16 or a type that numpy has."""
    tensor = entry.tensor[0]
    if 0 in tensor.dims:
        raise StartError(f"input '{entry.name}' of shape {tuple(tensor.dims)} has no elements")
    kind = ov.Type(np.dtype("f4" if tensor.data_type == BFLOAT16 else NUMPY[tensor.data_type]))
    is_open = any(dim < -1 for dim in tensor.dims)
    shape = ov.PartialShape.dynamic() if is_open else ov.PartialShape(list(tensor.dims))
    parameter = op.parameter(shape, kind)
    name = entry.name.rsplit(":", 1)[-1]
    parameter.friendly_name = name
    parameter.output(0).get_tensor().set_names({name})
    return parameter


def _argument(entry: ValueType, parameter: Any) -> Any:
    """Return the value of an input in the graph."""
    value = parameter.output(0)
    is_half = entry.tensor[0].data_type == BFLOAT16
    return tensors.cast(value, ov.Type.bf16) if is_half else value


def _end(value: Value, what: str) -> Any:
    """Return the tensor of `value` at the end of the program; `what` names it in errors."""
    try:
        return tensors.tensor(value)
    except UnsupportedTensor as error:
        raise StartError(f"{what} of the network cannot be converted: {error}") from error


def _result(value: Value, number: int) -> Any:
    output = _end(value, f"result {number}")
    if output.get_element_type() == ov.Type.bf16:
        output = tensors.cast(output, ov.Type.f32)
    result = op.result(output)
    result.output(0).get_tensor().add_names({f"output{number}"})
    return result


def _walked(program: GraphProgram, arguments: Sequence[Value]) -> _Walk:
    """Walk all of `program`, again if it wrote weights that had no state in the first walk."""
    flow = flow_of(program)
    writers = [call for call in program.calls() if call.operator in WRITERS]
    written = {call.inputs[0] for call in writers if call.inputs}
    num_calls = 0
    while True:
        variables = _variables(program, written)
        walk = _Walk(program, flow, variables, writes=bool(writers), num_calls=num_calls)
        try:
            walk.result = walk.run(program.main.name, arguments, ()).exits[RETURN]
        except StartError:
            if not walk.unexpected_writes():
                raise
        new = walk.unexpected_writes()
        if not new:
            return walk
        written |= new
        num_calls = walk.num_calls


def _variables(program: GraphProgram, written: Collection[str]) -> dict[str, Variable]:
    """Return a variable for each weight; those in `written` keep their value between runs."""
    variables = {}
    for name, constant in program.weights.items():
        state = None
        if name in written:
            state = op.read_value(tensors.tensor(constant), name).output(0)
        variables[name] = Variable(name, constant if state is None else state, state)
    return variables


def _check_results(value: Value, count: int | None) -> None:
    """Raise Unsupported unless there are as many results as in the file."""
    num_results = len(value) if isinstance(value, tuple) else 0
    if count is not None and num_results != count:
        ours, expected = (f"a tuple of {n}" if n else "a tensor" for n in (num_results, count))
        raise UnsupportedTensor(f"it would give {ours}, and gives {expected} in the file")


def _check_sizes(value: Value) -> None:
    for value_of in leaves(value):
        leaf = value_of.current if isinstance(value_of, Variable) else value_of
        if not isinstance(leaf, ov.Output):
            continue
        shape = leaf.get_partial_shape()
        if shape.is_static:
            size = prod(shape.to_shape()) * leaf.get_element_type().size
            if size > _MAX_BYTES:
                raise UnsupportedTensor(
                    f"a tensor of {size} bytes, at most {_MAX_BYTES} are accepted"
                )
