"""MindIR on a CPU through OpenVINO; MindSpore is not needed.

Every file becomes an OpenVINO model (`mindspore_serving.mindir`).  Knows nothing of batches.
"""

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving import log
from mindspore_serving.backends.base import Array, ModelSource
from mindspore_serving.backends.mindir_signature import GraphFile, read_beside, read_graph_file
from mindspore_serving.backends.source import (
    Options,
    check_files,
    checked,
    load_error,
    warm_up,
    words,
)
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import StageFailed, StartError
from mindspore_serving.mindir import program as programs
from mindspore_serving.mindir.attributes import Values

_PRECISIONS = {None: "f32", "fp16": "f16"}  # of Context's precision_mode
_NEEDS_MINDSPORE = "install MindSpore to serve it: pip install 'mindspore-serving[mindspore]'"


class MindirOpenvinoBackend:
    """A MindIR model, one compiled OpenVINO model per file."""

    def __init__(
        self, requests: list[Any], kept: list[Any], signature: tuple[Signature, ...]
    ) -> None:
        self._requests = requests
        # LSTM of OpenVINO 2026.4 ends the process at an empty batch.
        self._needs_elements = [
            any(call.operator == "LSTM" for call in program.calls()) for program in kept
        ]
        self._kept = kept  # OpenVINO reads the weights where the file is mapped
        self._signature = signature

    @classmethod
    def load(cls, source: ModelSource) -> "MindirOpenvinoBackend":
        """Convert, compile and warm up every file.

        Of `Context`, `thread_num` and the CPU's `precision_mode` are applied: "origin" computes in
        float32, also where the processor would rather take bfloat16.  `config_file` is a JSON
        object of OpenVINO's own properties, such as {"INFERENCE_PRECISION_HINT": "bf16"}.
        """
        check_files(source)
        if source.device_type != "cpu":
            raise StartError(
                f"Load model '{source.spec.key}' failed: OpenVINO runs MindIR on device type cpu, "
                f"not on {source.device_type}; {_NEEDS_MINDSPORE}"
            )
        properties = _properties(source)
        requests, kept, signatures = [], [], []
        for path in source.paths:
            file = read_graph_file(source, path)
            model, program = open_model(source, path, file)
            request = _compiled(source, path, model, properties)
            requests.append(request)
            kept.append(program)
            signature = checked(source, path, _told(file.signature, model))
            signatures.append(warm_up(partial(_run, request), signature, source, path))
            request.reset_state()  # weights that the graph writes are those of the file again
        return cls(requests, kept, tuple(signatures))

    @property
    def signature(self) -> tuple[Signature, ...]:
        """One per file; what the file does not tell of the outputs is what OpenVINO infers."""
        return self._signature

    def run(self, inputs: Sequence[Array], subgraph: int = 0) -> list[Array]:
        if self._needs_elements[subgraph] and not all(array.size for array in inputs):
            raise StageFailed("an input without elements, which this model's LSTM cannot compute")
        return _run(self._requests[subgraph], inputs)

    def close(self) -> None:
        """Drop the compiled models, then the files that they read."""
        self._requests.clear()
        self._kept.clear()


def open_model(source: ModelSource, path: str, file: GraphFile) -> tuple[Any, programs.Program]:
    """The OpenVINO model of `file`, and what must be kept while it is used: it has the weights.

    Raises StartError naming the file: operators that are missing, each with its places, what is
    damaged, or what an operator is not converted with.
    """
    from mindspore_serving.mindir.convert import convert, missing_operators

    opened: dict[str, memoryview] = {}

    def beside(location: str) -> memoryview:
        if location not in opened:
            opened[location] = read_beside(source, path, location)
        return opened[location]

    try:
        program = programs.make_program(file.model, Values(beside))
        missing = missing_operators(program)
        if missing:
            raise StartError(_missing(missing))
        return convert(program, file.graph), program
    except StartError as error:
        raise load_error(source, path, error) from error
    except RecursionError as error:
        raise load_error(source, path, "its graphs call each other too deep") from error


def _missing(missing: Mapping[str, Sequence[str]]) -> str:
    places = "; ".join(f"{name} at {', '.join(found)}" for name, found in sorted(missing.items()))
    return (
        f"it has {len(missing)} operators that are not known for OpenVINO: {places}; "
        f"{_NEEDS_MINDSPORE}"
    )


def _properties(source: ModelSource) -> dict[str, Any]:
    options = Options(source)
    precision = _PRECISIONS[options.take("precision_mode")]
    properties = {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}
    num_threads = options.take("thread_num")
    if num_threads is not None:
        properties["INFERENCE_NUM_THREADS"] = num_threads
    properties.update(_own_properties(source, options.take("config_file")))
    options.report_ignored()
    return properties


def _own_properties(source: ModelSource, path: str | None) -> dict[str, Any]:
    """What the operator's file says of OpenVINO; nothing without a file."""
    if path is None:
        return {}
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise load_error(source, path, f"config_file is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise load_error(source, path, "config_file is no JSON object of OpenVINO's properties")
    return found


def _compiled(source: ModelSource, path: str, model: Any, properties: dict[str, Any]) -> Any:
    import openvino

    # A limit for the oneDNN of MindSpore, which the backend of MindSpore may have set: with AVX2
    # OpenVINO's own normalisation ends the process.  It is read when something is compiled first.
    limit = os.environ.pop("ONEDNN_MAX_CPU_ISA", None)
    try:
        compiled = openvino.Core().compile_model(model, "CPU", properties)
    except RuntimeError as error:
        raise load_error(source, path, error) from error
    finally:
        if limit is not None:
            os.environ["ONEDNN_MAX_CPU_ISA"] = limit
    wanted = properties["INFERENCE_PRECISION_HINT"]
    used = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    if used != wanted:
        log.warning("Model file '%s' is computed in %s, this CPU has no %s", path, used, wanted)
    return compiled.create_infer_request()


def _told(signature: Signature, model: Any) -> Signature:
    """With the outputs that OpenVINO infers, where the file does not tell them."""
    if signature.outputs:
        return signature
    return Signature(
        signature.inputs,
        tuple(_output(number, output) for number, output in enumerate(model.outputs)),
    )


def _output(number: int, output: Any) -> TensorSpec:
    shape = output.get_partial_shape()
    dims = None
    if not shape.rank.is_dynamic:
        dims = tuple(-1 if dim.is_dynamic else dim.get_length() for dim in shape)
    return TensorSpec(f"output{number}", np.dtype(output.get_element_type().to_dtype()), dims)


def _run(request: Any, inputs: Sequence[Array]) -> list[Array]:
    try:
        results = request.infer(list(inputs), share_inputs=True, share_outputs=True)
    except Exception as error:  # OpenVINO raises RuntimeError, its Python part others
        raise StageFailed(words(error)) from error
    return list(results.to_tuple())
