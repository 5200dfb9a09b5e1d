"""Builds an OpenVINO model of a MindIR program: a walk over its calls.

What an operator becomes is a row of `operators`; loops and branches are built by `control`.
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

_MAX_BYTES = 1 << 32  # of one value whose shape is known: more is a mistake or an attack
_MAX_DEPTH = 200  # graphs inside graphs
_MAX_CALLS = 200_000  # in all; graphs that call each other twice would double them each time


def missing_operators(program: GraphProgram) -> dict[str, list[str]]:
    """Operators that have no row, each with the places where it stands."""
    found: dict[str, list[str]] = {}
    for call in program.calls():
        if call.operator and call.operator not in OPERATORS and call.operator not in STRUCTURE:
            found.setdefault(call.operator, []).append(call.place)
    return found


def convert(program: GraphProgram, graph: Graph) -> ov.Model:
    """The model of `program`, with the inputs of `graph`, its main graph as it was read.

    Outputs are the results without their tuples, in order; inputs and outputs in bfloat16 become
    float32.  Raises StartError: arguments that an operator is not converted with, graphs that call
    in circles.
    """
    parameters = [_parameter(entry) for entry in graph.input]
    arguments = [_argument(*pair) for pair in zip(graph.input, parameters, strict=True)]
    walk = _walked(program, arguments)
    values = [
        value for value in leaves(walk.result) if not isinstance(value, Monad) and value is not None
    ]
    results = [_result(value, number) for number, value in enumerate(values)]
    sinks = [
        op.assign(_end(one.current, f"weight '{one.name}'").get_node(), one.name)
        for one in walk.variables.values()
        if one.state is not None and one.state.get_target_inputs()  # what no one reads is not kept
    ]
    return ov.Model(results, sinks, parameters, "mindir")


@dataclass(slots=True)
class _Walk:
    """One program being converted; a `control.Walk`."""

    program: GraphProgram
    flow: ControlFlow
    variables: dict[str, Variable]
    writes: bool = False
    result: Value = None
    depth: int = 0
    num_calls: int = 0

    @property
    def written(self) -> tuple[Variable, ...]:
        return tuple(one for one in self.variables.values() if one.is_written)

    def surprises(self) -> set[str]:
        """Names of weights that are written, but have no state."""
        return {name for name, one in self.variables.items() if one.changed and not one.is_written}

    def run(self, name: str, arguments: Sequence[Value], stops: tuple[str, ...]) -> BranchOutcome:
        """Call graph `name`.  An end in one of `stops` is not called, it is the outcome."""
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
        """The calls of graph `name`, and then the one that it ends in."""
        body = self.program.graphs[name]
        if len(arguments) != len(body.inputs):
            raise StartError(
                f"graph '{name}' has {len(body.inputs)} inputs, but is called with {len(arguments)}"
            )
        inputs = stored(tuple(arguments)) if self.writes else arguments
        scope: dict[str, Value] = dict(zip(body.inputs, inputs, strict=True))
        calls, tail = body.parted()
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
            (value, *_) = self._called(call, scope, ()).ways[RETURN]
            return stored(value) if self.writes else value
        inputs = [self._known(name, scope) for name in call.inputs]
        convert = STRUCTURE.get(call.operator) or OPERATORS.get(call.operator)
        if convert is None:
            raise tensors.refused(call.place, call.operator, "there is no such operator")
        try:
            if call.operator in STRUCTURE:
                value = convert(*inputs)
                return stored(value) if self.writes else value
            value = self._applied(call, convert, inputs)
            _check_results(value, call.num_results)
            _check_sizes(value)
        except Exception as error:  # of every kind, by what in the file is wrong
            raise tensors.refused(call.place, call.operator, error) from error
        return value

    def _applied(self, call: CalledGraph, operator: Operator, inputs: Sequence[Value]) -> Value:
        """The result of an operator, in storage of its own where the program writes."""
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
        value = tensors.apply(operator, [seen(one, order) for one in inputs], attributes)
        if not is_writer:
            return stored(value)
        return write(inputs[0], value)

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
            raise tensors.refused(call.place, "Switch", error) from error

    def _known(self, name: str, scope: Mapping[str, Value]) -> Value:
        for values in (scope, self.program.constants, self.variables):
            if name in values:
                return values[name]
        if name in self.program.graphs:
            return GraphFunction(name)
        raise StartError(f"'{name}' is used in a graph that does not define it")


def _parameter(entry: ValueType) -> Any:
    """The model's input for `entry`, which is one tensor of a type that numpy has or bfloat16."""
    tensor = entry.tensor[0]
    if 0 in tensor.dims:
        raise StartError(f"input '{entry.name}' of shape {tuple(tensor.dims)} can hold nothing")
    kind = ov.Type(np.dtype("f4" if tensor.data_type == BFLOAT16 else NUMPY[tensor.data_type]))
    is_open = any(dim < -1 for dim in tensor.dims)
    shape = ov.PartialShape.dynamic() if is_open else ov.PartialShape(list(tensor.dims))
    parameter = op.parameter(shape, kind)
    name = entry.name.rsplit(":", 1)[-1]
    parameter.friendly_name = name
    parameter.output(0).get_tensor().set_names({name})
    return parameter


def _argument(entry: ValueType, parameter: Any) -> Any:
    """The value that the graph has of its input."""
    value = parameter.output(0)
    is_half = entry.tensor[0].data_type == BFLOAT16
    return tensors.cast(value, ov.Type.bf16) if is_half else value


def _end(value: Value, what: str) -> Any:
    """The tensor that `what` is at the end of the program."""
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
    """A walk of all of `program`: once more where it writes weights that it was not seen to."""
    flow = flow_of(program)
    writers = [call for call in program.calls() if call.operator in WRITERS]
    written = {call.inputs[0] for call in writers if call.inputs}
    num_calls = 0
    while True:
        variables = _variables(program, written)
        walk = _Walk(program, flow, variables, writes=bool(writers), num_calls=num_calls)
        try:
            walk.result = walk.run(program.main.name, arguments, ()).ways[RETURN]
        except StartError:
            if not walk.surprises():
                raise
        new = walk.surprises()
        if not new:
            return walk
        written |= new
        num_calls = walk.num_calls


def _variables(program: GraphProgram, written: Collection[str]) -> dict[str, Variable]:
    """Every weight; those of `written` read what the last run left."""
    found = {}
    for name, constant in program.weights.items():
        state = None
        if name in written:
            state = op.read_value(tensors.tensor(constant), name).output(0)
        found[name] = Variable(name, constant if state is None else state, state)
    return found


def _check_results(value: Value, count: int | None) -> None:
    """Raises Unsupported unless there are as many results as in the file."""
    given = len(value) if isinstance(value, tuple) else 0
    if count is not None and given != count:
        one, other = (f"a tuple of {number}" if number else "a tensor" for number in (given, count))
        raise UnsupportedTensor(f"it would give {one}, and gives {other} in the file")


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
