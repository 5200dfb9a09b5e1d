"""MindSpore Lite files (.ms) on a CPU through OpenVINO; MindSpore Lite is not needed.

Float graphs only.  Knows no batches.
"""

from typing import Any

from mindspore_serving.backends.base import ModelSource
from mindspore_serving.backends.mindir_signature import map_file
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

_INSTEAD = "install MindSpore Lite from its download page to serve the file by it"


class LiteOpenvinoBackend(OpenvinoBackend):
    """A MindSpore Lite model, one compiled OpenVINO model per file."""

    @classmethod
    def load(cls, source: ModelSource) -> "LiteOpenvinoBackend":
        """Convert, compile and warm up every file; `openvino_model` has the options."""
        check_files(source)
        require_cpu(source, _INSTEAD)
        properties = to_properties(source)
        models, signatures = [], []
        for path in source.paths:
            graph = open_lite_model(source, path)
            request = to_request(source, path, graph, properties)
            model = OpenvinoModel(request, needs_elements=False, is_stateless=True)
            models.append(model)
            inputs, outputs = (
                tuple(to_spec(port.get_any_name(), port) for port in ports)
                for ports in (graph.inputs, graph.outputs)
            )
            signature = check_signature(source, path, Signature(inputs, outputs))
            signatures.append(warm_up(model.run, signature, source, path))
        return cls(models, tuple(signatures))


def open_lite_model(source: ModelSource, path: str) -> Any:
    """Return the OpenVINO model of a .ms file.  Raises StartError naming file and cause."""
    from mindspore_serving.mindir.lite.convert import convert, missing_operators
    from mindspore_serving.mindir.lite.graph import read_graph

    try:
        graph = read_graph(map_file(path))
        if missing := missing_operators(graph):
            nodes = "; ".join(f"{number} at {', '.join(at)}" for number, at in missing.items())
            raise StartError(
                f"it has operators that are not known for OpenVINO, numbers of the schema: {nodes}"
            )
        return convert(graph)
    except StartError as error:
        raise load_error(source, path, f"{error}; {_INSTEAD}") from error
