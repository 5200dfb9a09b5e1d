"""Models that OpenVINO reads itself: its own (.xml), TensorFlow, TensorFlow Lite, Paddle, ONNX.

On a CPU.  Knows no batches.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mindspore_serving.backends.base import Array, ModelSource
from mindspore_serving.backends.openvino_model import (
    OpenvinoModel,
    require_cpu,
    to_properties,
    to_request,
    to_spec,
)
from mindspore_serving.backends.openvino_states import TakenState, take_states
from mindspore_serving.backends.source import (
    check_files,
    check_signature,
    element_error,
    load_error,
    warm_up,
)
from mindspore_serving.core.value import Signature

_SAVED_MODEL = "saved_model.pb"
_SEQUENCES = {"LSTMSequence", "GRUSequence", "RNNSequence"}


class OpenvinoBackend:
    """A model in a format that OpenVINO reads, one compiled model per file."""

    def __init__(
        self,
        models: list[OpenvinoModel],
        signature: tuple[Signature, ...],
        states: Sequence[TakenState] = (),
    ) -> None:
        self._models = models
        self.states = states  # the last inputs and outputs of a model of one file
        self.signature = signature  # one per file, with the file's names

    @classmethod
    def load(cls, source: ModelSource) -> "OpenvinoBackend":
        """Read, compile and warm up every file; `openvino_model` has the options.

        A TensorFlow SavedModel is named by its directory, or its file saved_model.pb.  A model with
        states has them as its last inputs and outputs; one of several files, or whose states have
        no known size, starts every run with those of the file.
        """
        source = replace(source, paths=tuple(_file_of(path) for path in source.paths))
        check_files(source)
        require_cpu(source, "export the model to ONNX, which ONNX Runtime runs on other devices")
        properties = to_properties(source)
        models, signatures = [], []
        states: list[TakenState] = []
        for path in source.paths:
            graph = read_model(source, path)
            values: list[float | None] = []
            if len(source.paths) == 1:
                graph, states, values = take_states(graph)
            graph = _widened(graph)
            has_sequence = any(node.get_type_name() in _SEQUENCES for node in graph.get_ops())
            request = to_request(source, path, graph, properties)
            model = OpenvinoModel(request, needs_elements=has_sequence, is_stateless=True)
            models.append(model)
            signature = _with_states(_signature(source, path, graph), states, values)
            signature = check_signature(source, path, signature)
            signatures.append(warm_up(model.run, signature, source, path))
        return cls(models, tuple(signatures), states)

    def run(self, inputs: Sequence[Array], subgraph: int = 0) -> list[Array]:
        return self._models[subgraph].run(inputs)

    def close(self) -> None:
        self._models.clear()


def _file_of(path: str) -> str:
    return os.path.join(path, _SAVED_MODEL) if os.path.isdir(path) else path


def read_model(source: ModelSource, path: str) -> Any:
    """Return the model of a file that OpenVINO reads.  Raises StartError."""
    import openvino

    weights = f"{os.path.splitext(path)[0]}.bin"
    if path.lower().endswith(".xml") and not os.path.exists(weights):
        raise load_error(source, path, f"its weights, '{weights}', do not exist")
    is_saved_model = os.path.basename(path) == _SAVED_MODEL
    try:
        return openvino.Core().read_model(os.path.dirname(path) if is_saved_model else path)
    except RuntimeError as error:
        raise load_error(source, path, _cause(error)) from error


def _widened(graph: Any) -> Any:
    """Replace bfloat16 inputs and outputs, which no request carries, by float32."""
    from openvino import Type
    from openvino.preprocess import PrePostProcessor

    steps = PrePostProcessor(graph)
    for ports, step in ((graph.inputs, steps.input), (graph.outputs, steps.output)):
        for index, port in enumerate(ports):
            if port.get_element_type() == Type.bf16:
                step(index).tensor().set_element_type(Type.f32)
    return steps.build()


def _cause(error: RuntimeError) -> str:
    """Return the error's message without the locations in OpenVINO's code before it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    messages = [line for line in lines if not line.startswith(("Exception from", "Check '"))]
    return " ".join(messages or lines)


def _signature(source: ModelSource, path: str, graph: Any) -> Signature:
    inputs = [to_spec(_name(port, f"x{i}"), port) for i, port in enumerate(graph.inputs)]
    outputs = [to_spec(_name(port, f"y{i}"), port) for i, port in enumerate(graph.outputs)]
    for index, (spec, port) in enumerate(zip(inputs, graph.inputs, strict=True)):
        if spec.dtype is None:
            kind = port.get_element_type().get_type_name()
            raise element_error(source, path, index, name=spec.name, kind=kind)
    for index, (spec, port) in enumerate(zip(outputs, graph.outputs, strict=True)):
        if spec.dtype is None:
            kind = port.get_element_type().get_type_name()
            raise load_error(
                source,
                path,
                f"output {index} '{spec.name}' is of type {kind}, which replies cannot carry; "
                "convert it to float32 in the model",
            )
    return Signature(tuple(inputs), tuple(outputs))


def _with_states(
    signature: Signature, states: Sequence[TakenState], values: Sequence[float | None]
) -> Signature:
    """Return the signature with the names of states, which calls of the model may leave out."""
    if not states:
        return signature
    count = len(states)
    inputs = [
        replace(spec, is_optional=value is not None, default=value)
        for spec, value in zip(signature.inputs[-count:], values, strict=True)
    ]
    outputs = [
        replace(spec, name=state.output)
        for spec, state in zip(signature.outputs[-count:], states, strict=True)
    ]
    return Signature((*signature.inputs[:-count], *inputs), (*signature.outputs[:-count], *outputs))


def _name(port: Any, default: str) -> str:
    """Return the alphabetically first of the port's names, without TensorFlow's output number."""
    return min(port.get_names(), default=default).removesuffix(":0")
