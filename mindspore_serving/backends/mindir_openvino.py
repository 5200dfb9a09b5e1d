"""MindIR on a CPU through OpenVINO; MindSpore is not needed.

Every file becomes an OpenVINO model (`mindspore_serving.mindir`).  Knows no batches.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mindspore_serving.backends.base import ModelSource
from mindspore_serving.backends.mindir_signature import (
    GraphFile,
    read_graph_file,
    read_weights_file,
)
from mindspore_serving.backends.openvino import OpenvinoBackend
from mindspore_serving.backends.openvino_model import (
    OpenvinoModel,
    require_cpu,
    to_properties,
    to_request,
    to_spec,
)
from mindspore_serving.backends.source import check_files, check_signature, load_error, warm_up
from mindspore_serving.core.value import Signature
from mindspore_serving.errors import StartError
from mindspore_serving.mindir import program as programs
from mindspore_serving.mindir.attributes import Values

_NEEDS_MINDSPORE = "install MindSpore to serve it: pip install 'mindspore-serving[mindspore]'"


class MindirOpenvinoBackend(OpenvinoBackend):
    """A MindIR model, one compiled OpenVINO model per file.

    Outputs that the file does not describe are those that OpenVINO infers.
    """

    def __init__(
        self, models: list[OpenvinoModel], kept: list[Any], signature: tuple[Signature, ...]
    ) -> None:
        super().__init__(models, signature)
        self._kept = kept  # OpenVINO reads the weights in the mapped file

    @classmethod
    def load(cls, source: ModelSource) -> "MindirOpenvinoBackend":
        """Convert, compile and warm up every file; `openvino_model` has the options."""
        check_files(source)
        require_cpu(source, _NEEDS_MINDSPORE)
        properties = to_properties(source)
        models, kept, signatures = [], [], []
        for path in source.paths:
            file = read_graph_file(source, path)
            graph, program = open_model(source, path, file)
            has_lstm = any(call.operator == "LSTM" for call in program.calls())
            request = to_request(source, path, graph, properties)
            model = OpenvinoModel(request, needs_elements=has_lstm, is_stateless=False)
            models.append(model)
            kept.append(program)
            signature = check_signature(source, path, _with_outputs(file.signature, graph))
            signatures.append(warm_up(model.run, signature, source, path))
            request.reset_state()  # resets weights that the graph writes to those of the file
        return cls(models, kept, tuple(signatures))

    def close(self) -> None:
        """Drop the compiled models, then the files that they read."""
        super().close()
        self._kept.clear()


def open_model(
    source: ModelSource, path: str, file: GraphFile
) -> tuple[Any, programs.GraphProgram]:
    """Return the OpenVINO model of `file`, and its program, which has to be kept for its weights.

    Raises StartError naming the file: missing operators with their locations, damage, or an
    operator with unsupported attributes.
    """
    from mindspore_serving.mindir.convert import convert, missing_operators

    opened: dict[str, memoryview] = {}

    def read_weights(location: str) -> memoryview:
        if location not in opened:
            opened[location] = read_weights_file(source, path, location)
        return opened[location]

    try:
        program = programs.make_program(file.model, Values(read_weights))
        missing = missing_operators(program)
        if missing:
            raise StartError(_missing(missing))
        return convert(program, file.graph), program
    except StartError as error:
        raise load_error(source, path, error) from error
    except RecursionError as error:
        raise load_error(source, path, "its graphs call each other too deep") from error


def _missing(missing: Mapping[str, Sequence[str]]) -> str:
    locations = "; ".join(
        f"{name} at {', '.join(nodes)}" for name, nodes in sorted(missing.items())
    )
    return (
        f"it has {len(missing)} operators that are not known for OpenVINO: {locations}; "
        f"{_NEEDS_MINDSPORE}"
    )


def _with_outputs(signature: Signature, model: Any) -> Signature:
    """Add the outputs that OpenVINO infers, if the file does not describe them."""
    if signature.outputs:
        return signature
    outputs = enumerate(model.outputs)
    return Signature(signature.inputs, tuple(to_spec(f"output{i}", port) for i, port in outputs))
