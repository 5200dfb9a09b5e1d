"""A model compiled by OpenVINO for the CPU: its options, its tensors, its runs.

Knows no file format.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving import log
from mindspore_serving.backends.base import Array, ModelSource
from mindspore_serving.backends.openvino_guard import guard
from mindspore_serving.backends.source import SourceOptions, error_text, load_error
from mindspore_serving.core.value import TensorSpec
from mindspore_serving.errors import StageFailed, StartError

# By the precision_mode of a Context, and by the operator's precision.
_PRECISIONS = {None: "f32", "fp16": "f16", "float32": "f32", "bfloat16": "bf16", "float16": "f16"}
_WIDE = ("i64", "u64", "u32")  # computed as int32
_LARGEST = 2**31 - 1


class OpenvinoModel:
    """A compiled model.

    With `is_stateless`, a run does not see what earlier runs wrote to the model's states.
    """

    def __init__(self, request: Any, *, needs_elements: bool, is_stateless: bool) -> None:
        self.request = request
        # The LSTM of OpenVINO 2026.4 ends the process at an empty batch.
        self._needs_elements = needs_elements
        self._resets = is_stateless and bool(request.query_state())
        self._inputs = request.get_compiled_model().inputs
        self._wide = [
            number
            for number, port in enumerate(self._inputs)
            if port.get_element_type().to_string() in _WIDE
        ]

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run the model; see `Backend.run`."""
        if self._needs_elements and not all(array.size for array in inputs):
            raise StageFailed("an input has no elements, which this model's LSTM does not support")
        for number in self._wide:
            self._check_width(number, inputs[number])
        try:
            if self._resets:
                self.request.reset_state()
            results = self.request.infer(list(inputs), share_inputs=True, share_outputs=True)
        except Exception as error:  # RuntimeError of OpenVINO, others of its Python part
            raise StageFailed(error_text(error)) from error
        return list(results.to_tuple())

    def _check_width(self, number: int, array: Array) -> None:
        for value in (array.min(), array.max()) if array.size else ():
            if not -_LARGEST - 1 <= value <= _LARGEST:
                name = self._inputs[number].get_any_name()
                raise StageFailed(
                    f"input '{name}' has {value}: OpenVINO computes integers in 32 bits on a CPU, "
                    f"from {-_LARGEST - 1} to {_LARGEST}"
                )


def require_cpu(source: ModelSource, instead: str) -> None:
    """Raise StartError, which ends with `instead`, for any device but a CPU."""
    if source.device_type != "cpu":
        raise StartError(
            f"Load model '{source.spec.key}' failed: OpenVINO runs it on device type cpu, "
            f"not on {source.device_type}; {instead}"
        )


def to_properties(source: ModelSource) -> dict[str, Any]:
    """Return OpenVINO's properties: of `Context`, `thread_num` and the CPU's `precision_mode`.

    "origin" computes in float32, even if the processor's default would be bfloat16.  `config_file`
    is a JSON object of OpenVINO's own properties, such as {"INFERENCE_PRECISION_HINT": "bf16"}.
    """
    options = SourceOptions(source)
    precision = _PRECISIONS[options.take("precision_mode")]
    properties = {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}
    num_threads = options.take("thread_num")
    if num_threads is not None:
        properties["INFERENCE_NUM_THREADS"] = num_threads
    properties.update(_file_properties(source, options.take("config_file")))
    options.report_ignored()
    return properties


def _file_properties(source: ModelSource, path: str | None) -> dict[str, Any]:
    """Return the properties in the operator's file; none without a file."""
    if path is None:
        return {}
    try:
        properties = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise load_error(source, path, f"config_file is no JSON: {error}") from error
    if not isinstance(properties, dict):
        raise load_error(source, path, "config_file is no JSON object of OpenVINO's properties")
    return properties


def to_request(source: ModelSource, path: str, model: Any, properties: dict[str, Any]) -> Any:
    """Compile `model` and return its request.  Raises StartError naming `path`."""
    import openvino

    # MindSpore's backend may have set this limit for MindSpore's oneDNN: with AVX2, OpenVINO's
    # normalisation ends the process.  The variable is read at the first compilation.
    limit = os.environ.pop("ONEDNN_MAX_CPU_ISA", None)
    try:
        guard(model)
        compiled = openvino.Core().compile_model(model, "CPU", properties)
    except RuntimeError as error:
        raise load_error(source, path, error) from error
    finally:
        if limit is not None:
            os.environ["ONEDNN_MAX_CPU_ISA"] = limit
    precision = properties["INFERENCE_PRECISION_HINT"]
    used = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    if used != precision:
        log.warning("Model file '%s' is computed in %s, this CPU has no %s", path, used, precision)
    return compiled.create_infer_request()


def to_spec(name: str, port: Any) -> TensorSpec:
    """Return the spec of an input or output; dtype is None if numpy has no such type."""
    shape, kind = port.get_partial_shape(), port.get_element_type()
    dims, max_rows = None, 0
    if not shape.rank.is_dynamic:
        dims = tuple(-1 if dim.is_dynamic else dim.get_length() for dim in shape)
        max_rows = max(shape[0].get_max_length(), 0) if dims and dims[0] < 0 else 0
    name_of_kind = kind.get_type_name()
    is_plain = name_of_kind == "boolean" or name_of_kind[:1] in "fiu" and kind.bitwidth >= 8
    dtype = np.dtype(kind.to_dtype()) if is_plain else None
    return TensorSpec(name, dtype, dims, max_rows)
