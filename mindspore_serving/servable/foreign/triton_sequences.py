"""Sequences of Triton's config.pbtxt: the states of a model, and its control inputs."""

from collections.abc import Iterable
from typing import Any

from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.sequences import ControlInput
from mindspore_serving.core.value import TensorSpec
from mindspore_serving.errors import StartError
from mindspore_serving.proto import triton_model_pb2 as pb

_DEFAULT_IDLE = 1_000_000  # microseconds, of a sequence
_PREFIX = "CONTROL_SEQUENCE_"
_ID = _PREFIX + "CORRID"
_KINDS = {f"{_PREFIX}{kind.upper()}": kind for kind in ("start", "end", "ready")}
_PAIRS = {  # fields with the values for false and true
    "int32_false_true": "int32",
    "fp32_false_true": "float32",
    "bool_false_true": "bool",
}
_ID_DTYPES = {
    pb.TYPE_UINT64: "uint64",
    pb.TYPE_INT64: "int64",
    pb.TYPE_UINT32: "uint32",
    pb.TYPE_INT32: "int32",
    pb.TYPE_STRING: "str",
}


def to_options(config: Any) -> dict[str, Any]:
    """Return the options for sequence_batching, whose states are inputs and outputs."""
    if not config.HasField("sequence_batching"):
        return {}
    batching = config.sequence_batching
    states = {str(state.input_name): str(state.output_name) for state in batching.state}
    if not all((*states, *states.values())) or not (states or batching.control_input):
        raise StartError(
            "config.pbtxt: sequence_batching has no state with input_name and output_name, and no "
            "control_input: the server keeps states of models only as outputs that are inputs of "
            "the next request"
        )
    idle = batching.max_sequence_idle_microseconds or _DEFAULT_IDLE
    options: dict[str, Any] = {"sequence_idle_seconds": max(0.1, idle / 1e6)}
    if states:
        options["states"] = states
    if batching.oldest.max_candidate_sequences > 0:
        options["max_sequences"] = int(batching.oldest.max_candidate_sequences)
    return options


def to_controls(config: Any) -> tuple[ControlInput, ...]:
    """Return the control inputs of sequence_batching.

    Raises StartError for one without a name or values, for one that is a state or an input of
    clients, and for two of one name or kind.
    """
    batching = config.sequence_batching
    taken = {("name", str(state.input_name)): "a state" for state in batching.state}
    taken |= {("name", str(tensor.name)): "an input of clients" for tensor in config.input}
    controls = []
    for row in batching.control_input:
        name = str(row.name)
        where = f"config.pbtxt: control_input {name!r:.100}"
        if not name or len(row.control) != 1:
            raise StartError(
                f"{where} has {len(row.control)} fields control, expected a name and one control"
            )
        control = _to_control(where, name, row.control[0])
        for key in (("name", name), ("kind", control.kind)):
            if key in taken:
                raise StartError(f"{where} has the {key[0]} of {taken[key]}, expected another one")
            taken[key] = f"control_input {name!r:.100}"
        controls.append(control)
    return tuple(controls)


def _to_control(where: str, name: str, control: Any) -> ControlInput:
    kind = pb.ModelSequenceBatching.Control.Kind.Name(control.kind)
    pairs = {field: [*getattr(control, field)] for field in _PAIRS if getattr(control, field)}
    if kind == _ID:
        dtype = _ID_DTYPES.get(control.data_type)
        if dtype is None or pairs:
            names = ", ".join(pb.DataType.Name(number) for number in _ID_DTYPES)
            raise StartError(
                f"{where}: {kind} has data_type {pb.DataType.Name(control.data_type)}"
                f"{''.join(f' and {field}' for field in pairs)}, expected one of {names} alone"
            )
        return ControlInput(name, "id", dtype)
    if control.data_type or len(pairs) != 1 or len(*pairs.values()) != 2:
        fields = [f"{field}: {values}" for field, values in pairs.items()]
        if control.data_type:
            fields.append(f"data_type: {pb.DataType.Name(control.data_type)}")
        raise StartError(
            f"{where}: {kind} has {', '.join(fields) or 'no values'}, expected two values, "
            f"for false and true, in one of {', '.join(_PAIRS)}"
        )
    ((field, (is_false, is_true)),) = pairs.items()
    return ControlInput(name, _KINDS[kind], _PAIRS[field], (float(is_false), float(is_true)))


def to_specs(controls: Iterable[ControlInput]) -> tuple[TensorSpec, ...]:
    """Return the specs of control inputs among the inputs of a model, of any shape."""
    kinds = {name: row.numpy or dtypes.TEXT for name, row in dtypes.BY_NAME.items()}
    return tuple(TensorSpec(control.name, kinds[control.dtype], None) for control in controls)
