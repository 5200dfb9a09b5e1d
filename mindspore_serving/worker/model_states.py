"""States and control inputs of models in the graph of a method, which its author did not write."""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from mindspore_serving.backends.base import LoadedModel
from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.core.sequences import ControlInput, MethodControl, MethodState
from mindspore_serving.core.signature import ValueSpec
from mindspore_serving.core.value import Signature
from mindspore_serving.errors import StartError, did_you_mean
from mindspore_serving.ipc.messages import ModelReport, StateReport


def with_model_states(method: Method, models: Mapping[str, ModelReport]) -> Method:
    """Return `method` with a state for each paired input and output of the models of its stages.

    Control inputs of the models follow.  Slots of stages move behind the new ones.  Raises
    StartError.
    """
    reports = [_report_of(stage, models) for stage in method.stages]
    with_states = [report for report in reports if report is not None]
    if not with_states:
        return method
    if method.streams:
        raise StartError(
            f"method '{method.name}' has a model with a state: it cannot stream its answers"
        )
    num_states = sum(len(report.states) for report in with_states)
    num_controls = sum(len(report.controls) for report in with_states)
    expansion = _Expansion(method, num_states, num_controls)
    for stage, report in zip(method.stages, reports, strict=True):
        expansion.add(stage, report)
    return replace(
        expansion.method(),
        needs_sequence=method.needs_sequence
        or not all(row.is_inside and not row.controls for row in with_states),
    )


def reports_of(spec: DeclaredModel, model: LoadedModel) -> tuple[list[StateReport], bool]:
    """Return the states of a loaded model, and whether they are inside of it.

    Those are of backends that have found them in the file; others are declared.
    """
    if spec.states:
        return [StateReport(*pair) for pair in spec.states.items()], False
    states = getattr(model, "states", ())
    return [StateReport(*state) for state in states], bool(states)


def without_states(signature: Signature, report: ModelReport) -> Signature:
    """Return the inputs and outputs of a graph that are no states, and not filled by the server."""
    inputs = {state.input for state in report.states} | {row.name for row in report.controls}
    outputs = {state.output for state in report.states}
    return Signature(
        tuple(tensor for tensor in signature.inputs if tensor.name not in inputs),
        tuple(tensor for tensor in signature.outputs if tensor.name not in outputs),
    )


def _report_of(stage: Stage, models: Mapping[str, ModelReport]) -> ModelReport | None:
    """Return the report of the model of a stage if it has states or control inputs."""
    if stage.kind is not StageKind.MODEL or stage.subgraph:
        return None
    report = models.get(stage.target)
    return report if report is not None and (report.states or report.controls) else None


class _Expansion:
    """Method in progress: its slots by those of the method without the states of models."""

    def __init__(self, method: Method, num_states: int, num_controls: int) -> None:
        self._method = method
        first = len(method.inputs) + len(method.states)
        self._slots = {slot: slot for slot in range(first)}
        self._next_state, self._next_control = first, first + num_states
        self._next_output = first + num_states + num_controls
        self._stages: list[Stage] = []
        self._states: list[MethodState] = []
        self._controls: list[MethodControl] = []

    def add(self, stage: Stage, report: ModelReport | None) -> None:
        """Add a stage, with the states and control inputs of its model."""
        inputs = [self._slots[slot] for slot in stage.inputs]
        if report is None:
            self._append(stage, inputs, [self._new_output(slot) for slot in stage.outputs])
            return
        graph = report.graphs[0]
        where = f"model {stage.target}"
        positions = {
            state.input: _index(where, graph.inputs, state.input) for state in report.states
        }
        nexts = {_index(where, graph.outputs, state.output): state for state in report.states}
        new = dict(zip(sorted(positions.values()), count(self._next_state), strict=False))
        for control in report.controls:
            position = _index(where, graph.inputs, control.name)
            self._controls.append(_control(where, graph.inputs[position], control))
            new[position] = self._next_control
            self._next_control += 1
        for position in sorted(new):
            inputs.insert(position, new[position])
        visible = iter(stage.outputs)
        outputs = []
        next_slots: dict[str, int] = {}
        for index in range(len(stage.outputs) + len(nexts)):
            if index in nexts:
                next_slots[nexts[index].input] = self._next_output
            outputs.append(self._new_output(-1 if index in nexts else next(visible, -1)))
        for name, position in sorted(positions.items(), key=lambda row: row[1]):
            state = next(state for state in report.states if state.input == name)
            initial = _initial(where, graph.inputs[position], state)
            if name not in next_slots:
                raise StartError(
                    f"{where}: output '{state.output}' of its state is behind those of the stage"
                )
            self._states.append(MethodState(name, initial, self._next_state, next_slots[name]))
            self._next_state += 1
        self._append(stage, inputs, outputs)

    def method(self) -> Method:
        """Return the method with all of its states."""
        declared = (
            replace(state, next_slot=self._slots[state.next_slot]) for state in self._method.states
        )
        return replace(
            self._method,
            stages=tuple(self._stages),
            returns=tuple(self._slots[slot] for slot in self._method.returns),
            states=(*declared, *self._states),
            controls=tuple(self._controls),
        )

    def _append(self, stage: Stage, inputs: list[int], outputs: list[int]) -> None:
        self._stages.append(replace(stage, inputs=tuple(inputs), outputs=tuple(outputs)))

    def _new_output(self, old: int) -> int:
        """Return the slot of the next output, which was `old` before; -1 for a new one."""
        self._slots[old] = self._next_output
        self._next_output += 1
        return self._next_output - 1


def _index(where: str, specs: tuple[ValueSpec, ...], name: str) -> int:
    """Return the index of an input or output.  Raises StartError if there is none."""
    names = [spec.name for spec in specs]
    if name not in names:
        raise StartError(
            f"{where}: 'states' names {name!r}, known are {', '.join(names) or 'none'}"
            f"{did_you_mean(name, names)}"
        )
    return names.index(name)


def _control(where: str, spec: ValueSpec, control: ControlInput) -> MethodControl:
    """Return a control input with the shape of the model's input, which has a single value."""
    shape = (1,) if spec.shape is None else tuple(size or 1 for size in spec.shape)
    if math.prod(shape) != 1:
        raise StartError(
            f"{where}: control input '{control.name}' has shape {list(shape)} in an instance, "
            "expected a single value"
        )
    return MethodControl(control, shape)


def _initial(where: str, spec: ValueSpec, state: StateReport) -> "np.ndarray[Any, Any]":
    """Return the first value of a state.  Raises StartError if its size is not fixed."""
    row = None if spec.dtype is None else dtypes.BY_NAME[spec.dtype]
    sizes = None if spec.shape is None else [size for size in spec.shape if size is not None]
    if row is None or row.numpy is None or sizes is None or len(sizes) < len(spec.shape or ()):
        shown = "any shape" if spec.shape is None else list(spec.shape)
        raise StartError(
            f"{where}: its state '{spec.name}' is {spec.dtype} {shown}, a state needs a type of "
            "numbers and a fixed shape: leave out 'states' and use register.declare_state"
        )
    if not state.initial:
        return np.zeros(sizes, row.numpy)
    return np.frombuffer(state.initial, row.numpy).reshape(sizes)
