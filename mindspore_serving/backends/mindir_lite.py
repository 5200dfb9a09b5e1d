"""MindIR and Lite models (.ms) through MindSpore Lite, one file per model."""

import importlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from mindspore_serving.backends.base import Array, ModelSource
from mindspore_serving.backends.source import (
    SourceOptions,
    check_files,
    check_signature,
    error_text,
    load_error,
)
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import StageFailed, StartError

# Values of AscendDeviceInfo, which are ACL's -> those of MindSpore Lite.
_ASCEND_PRECISION = {
    "force_fp16": "enforce_fp16",
    "allow_fp32_to_fp16": "preferred_fp32",
    "must_keep_origin_dtype": "enforce_origin",
    "allow_mix_precision": "preferred_optimal",
    "force_fp32": "enforce_fp32",
}
# Options of AscendDeviceInfo -> keys of [ascend_context] in Lite's configuration files.
_ASCEND_CONTEXT = {
    "input_format": "input_format",
    "input_shape": "input_shape",
    "output_type": "output_type",
    "op_select_impl_mode": "op_select_impl_mode",
    "buffer_optimize_mode": "buffer_optimize",
    "insert_op_cfg_path": "insert_op_config_file_path",
    "fusion_switch_config_path": "fusion_switch_config_file_path",
}


class MindirLiteBackend:
    """A MindSpore Lite model."""

    def __init__(self, model: Any, signature: Signature) -> None:
        self._model = model
        self.signature = (signature,)
        self._shapes = [spec.shape for spec in signature.inputs]

    @classmethod
    def load(cls, source: ModelSource) -> "MindirLiteBackend":
        """Load the one file of `source`; its config file and key are passed to Lite unchanged."""
        check_files(source)
        if len(source.paths) > 1:
            raise StartError(
                f"Load model '{source.spec.key}' failed: MindSpore Lite runs one file per model, "
                f"but {len(source.paths)} are declared"
            )
        lite, path = importlib.import_module("mindspore_lite"), source.paths[0]
        options = SourceOptions(source)
        key = {"dec_key": source.dec_key, "dec_mode": source.dec_mode} if source.dec_key else {}
        settings = _ascend_context(source, options)
        more = {"config_dict": {"ascend_context": settings}} if settings else {}
        model = lite.Model()
        try:
            model.build_from_file(
                path,
                _kind(lite, path),
                _context(lite, source, options),
                config_path=options.take("config_file") or "",
                **key,
                **more,
            )
        except Exception as error:
            raise load_error(source, path, error) from error
        options.report_ignored()
        inputs, outputs = _specs(model.get_inputs()), _specs(model.get_outputs())
        return cls(model, check_signature(source, path, Signature(inputs, outputs)))

    def run(self, inputs: Sequence[Array], subgraph: int = 0) -> list[Array]:
        """Run the model; see `Backend.run`.  `subgraph` is 0."""
        try:
            tensors = self._model.get_inputs()
            shapes: list[tuple[int, ...] | None] = [array.shape for array in inputs]
            if shapes != self._shapes:
                self._model.resize(tensors, [list(array.shape) for array in inputs])
                self._shapes, tensors = shapes, self._model.get_inputs()
            for tensor, array in zip(tensors, inputs, strict=True):
                tensor.set_data_from_numpy(array)
            return [tensor.get_data_to_numpy() for tensor in self._model.predict(tensors)]
        except Exception as error:
            raise StageFailed(error_text(error)) from error

    def close(self) -> None:
        self._model = None


def _kind(lite: Any, path: str) -> Any:
    """Return the kind of a file by its first bytes."""
    with open(path, "rb") as file:
        is_lite = file.read(8)[4:] == b"MSL2"
    return lite.ModelType.MINDIR_LITE if is_lite else lite.ModelType.MINDIR


def _context(lite: Any, source: ModelSource, options: SourceOptions) -> Any:
    context = lite.Context()
    context.target = [source.device_type]
    if source.device_type != "cpu":
        getattr(context, source.device_type).device_id = source.device_id
    names = {
        "cpu": ("thread_num", "thread_affinity_core_list"),
        "ascend": ("precision_mode",),
        "gpu": (),
    }[source.device_type]
    for name in names:
        value = options.take(name)
        if value is not None:
            value = _precision(source, value) if name == "precision_mode" else value
            setattr(getattr(context, source.device_type), name, value)
    if source.device_type != "ascend" and options.take("precision_mode") == "fp16":
        getattr(context, source.device_type).precision_mode = "preferred_fp16"
    return context


def _precision(source: ModelSource, value: str) -> str:
    if value not in _ASCEND_PRECISION:
        raise StartError(
            f"Load model '{source.spec.key}' failed: precision_mode is '{value}', which MindSpore "
            f"Lite does not have; it has {', '.join(_ASCEND_PRECISION)}"
        )
    return _ASCEND_PRECISION[value]


def _ascend_context(source: ModelSource, options: SourceOptions) -> dict[str, str]:
    """Return Lite's settings for ACL.  Raises StartError for a file that does not exist."""
    if source.device_type != "ascend":
        return {}
    settings = {}
    for name, key in _ASCEND_CONTEXT.items():
        value = options.take(name)
        if value is None:
            continue
        if name.endswith("_path") and not os.path.isfile(value):
            raise StartError(
                f"Load model '{source.spec.key}' failed: {name} is '{value}', which is no file; "
                "give an absolute path, or one relative to where the server was started"
            )
        settings[key] = _lite_shapes(value) if name == "input_shape" else value
    return settings


def _lite_shapes(text: str) -> str:
    """Return "x:[1,2];y:[3]" for ACL's "x: 1,2;y: 3"."""
    parts = (part.rpartition(":") for part in text.split(";"))
    return ";".join(f"{name.strip()}:[{sizes.strip(' []')}]" for name, _, sizes in parts)


def _specs(tensors: Sequence[Any]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(tensor.name, np.dtype(tensor.dtype.name.lower()), tuple(map(int, tensor.shape)))
        for tensor in tensors
    )
