"""ONNX through ONNX Runtime on CPU, CUDA or CANN.  Knows no batches."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from mindspore_serving.backends.base import Array, ModelSource
from mindspore_serving.backends.source import (
    SourceOptions,
    check_files,
    check_signature,
    element_error,
    error_text,
    load_error,
    warm_up,
)
from mindspore_serving.core.dtype import TEXT
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import StageFailed, StartError

_PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "gpu": "CUDAExecutionProvider",
    "ascend": "CANNExecutionProvider",
}
_CANN_OPTIONS = ("precision_mode", "op_select_impl_mode")  # of CANNExecutionProvider
_ELEMENTS = {
    "float": "float32",
    "double": "float64",
    "float16": "float16",
    "bool": "bool",
    "string": "str",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


_ZIPMAPS = ("seq(map(int64,", "seq(map(string,")  # scikit-learn's probabilities by class
_LOCALE = (
    "install the locale (Debian: locales-all), or export with another; for skl2onnx: "
    "options={TfidfVectorizer: {'locale': 'C'}}"
)


class OnnxBackend:
    """An ONNX model, one session per file.

    Its signature has the names of the file.  A ZipMap is a tensor (batch, classes).  ONNX Runtime
    does not distinguish a scalar from a tensor of unknown rank; both have shape None.
    """

    def __init__(self, sessions: list[Any], signature: tuple[Signature, ...]) -> None:
        self._sessions = sessions
        self.signature = signature

    @classmethod
    def device_types(cls) -> tuple[str, ...]:
        """Return the device types whose provider the installed ONNX Runtime has."""
        import onnxruntime

        providers = onnxruntime.get_available_providers()
        return tuple(
            device for device in ("ascend", "gpu", "cpu") if _PROVIDERS[device] in providers
        )

    @classmethod
    def load(cls, source: ModelSource) -> "OnnxBackend":
        """Open and warm up every file.  Raises StartError if the device's provider is missing."""
        check_files(source)
        _check_provider(source)
        options = SourceOptions(source)
        settings, providers = _session_options(options), _providers(source, options)
        options.report_ignored()
        sessions = [_session(source, path, settings, providers) for path in source.paths]
        signature = tuple(
            _warm(source, path, session)
            for path, session in zip(source.paths, sessions, strict=True)
        )
        return cls(sessions, signature)

    def run(self, inputs: Sequence[Array], subgraph: int = 0) -> list[Array]:
        names = [spec.name for spec in self.signature[subgraph].inputs]
        return _run(self._sessions[subgraph], dict(zip(names, inputs, strict=True)))

    def close(self) -> None:
        self._sessions.clear()


def _check_provider(source: ModelSource) -> None:
    import onnxruntime

    provider, available = _PROVIDERS[source.device_type], onnxruntime.get_available_providers()
    if provider not in available:
        raise StartError(
            f"Load model '{source.spec.key}' failed: the installed ONNX Runtime has no {provider} "
            f"for device type {source.device_type}, it has: {', '.join(available)}"
        )


def _providers(source: ModelSource, options: SourceOptions) -> list[Any]:
    """Return the execution providers, with their options, in order of preference."""
    device_type, cpu = source.device_type, _PROVIDERS["cpu"]
    if device_type == "cpu":
        return [cpu]
    settings: dict[str, Any] = {"device_id": source.device_id}
    for name in _CANN_OPTIONS if device_type == "ascend" else ():
        if (value := options.take(name)) is not None:
            settings[name] = value
    return [(_PROVIDERS[device_type], settings), cpu]


def _session_options(options: SourceOptions) -> Any:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    num_threads = options.take("thread_num")
    num_cores = len(os.sched_getaffinity(0))
    if num_threads is None and num_cores < (os.cpu_count() or 1):
        num_threads = num_cores  # the library would pin a thread to each core of the machine
    if num_threads is not None:
        settings.intra_op_num_threads = num_threads
    if options.take("enable_parallel"):
        settings.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    return settings


def _session(source: ModelSource, path: str, settings: Any, providers: list[Any]) -> Any:
    import onnxruntime

    provider = _PROVIDERS[source.device_type]
    try:
        session = onnxruntime.InferenceSession(path, settings, providers=providers)
    except Exception as error:  # its classes share no base but Exception
        hint = f"; {_LOCALE}" if "construct locale" in str(error) else ""
        raise load_error(source, path, f"{error_text(error)}{hint}") from error
    if provider not in session.get_providers():  # it falls back to the CPU without an error
        raise load_error(source, path, f"{provider} does not start on device {source.device_id}")
    return session


def _warm(source: ModelSource, path: str, session: Any) -> Signature:
    import onnxruntime

    inputs, outputs = session.get_inputs(), session.get_outputs()
    signature = Signature(tuple(map(_spec, inputs)), tuple(map(_spec, outputs)))
    for index, (spec, node) in enumerate(zip(signature.inputs, inputs, strict=True)):
        if spec.dtype is None:
            raise element_error(source, path, index, name=node.name, kind=node.type)
        if spec.dtype == TEXT and max(spec.shape or (1,), default=1) > 1:
            problem = (
                f"input {index} '{node.name}' has {max(spec.shape or ())} texts for an instance"
            )
            raise load_error(
                source, path, f"{problem}, requests carry one: export an input for each column"
            )
    for index, (spec, node) in enumerate(zip(signature.outputs, outputs, strict=True)):
        if spec.dtype is None:
            problem = f"output {index} '{node.name}' is of type {node.type}"
            raise load_error(
                source, path, f"{problem}, which replies cannot carry: export it as plain tensors"
            )
        if spec.dtype == TEXT and max((spec.shape or (1,))[1:], default=1) > 1:
            problem = (
                f"output {index} '{node.name}' has {max(spec.shape or ())} texts for an instance"
            )
            raise load_error(
                source, path, f"{problem}, replies carry one: export an output for each column"
            )
    names = [spec.name for spec in signature.inputs]
    quiet = onnxruntime.RunOptions()
    quiet.log_severity_level = 4  # that sizes are refused is no error while some are tried
    return warm_up(
        lambda arrays: _run(session, dict(zip(names, arrays, strict=True)), quiet),
        check_signature(source, path, signature),
        source,
        path,
    )


def _spec(node: Any) -> TensorSpec:
    """Return the spec of an input or output.

    `node.type` is like "tensor(float)", "tensor(string)" or "seq(map(int64,tensor(float)))"; dtype
    is None if no instance can carry it.  A dimension that has a name or is missing becomes -1.
    """
    is_zipmap = node.type.startswith(_ZIPMAPS)
    element = node.type.removeprefix("tensor(").removesuffix(")")
    if is_zipmap:
        element = node.type.partition(",tensor(")[2].rstrip(")")
    dtype = np.dtype(_ELEMENTS[element]) if element in _ELEMENTS else None
    if is_zipmap:
        return TensorSpec(node.name, dtype, (-1, -1))
    dims = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape)
    symbols = tuple(dim if isinstance(dim, str) else "" for dim in node.shape)
    return TensorSpec(node.name, dtype, dims or None, symbols=symbols)


def _run(session: Any, feed: dict[str, Array], options: Any = None) -> list[Array]:
    try:
        results: list[Any] = session.run(None, feed, options)
    except Exception as error:
        raise StageFailed(error_text(error)) from error
    return [_array(result) for result in results]


def _array(result: Any) -> Array:
    """Convert a result to an array.

    A ZipMap is a dictionary of classes per row; its values are in the sorted order of the classes,
    scikit-learn's `classes_`.
    """
    if isinstance(result, np.ndarray):
        return result
    classes = sorted(result[0]) if result else []
    return np.array([[row[label] for label in classes] for row in result], np.float32)
