"""Helpers of all backends: check of files, options, warm-up, error messages.

Knows no runtime.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from mindspore_serving import file_check, log
from mindspore_serving.backends.base import Array, ModelSource
from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import StageFailed, StartError

_ARCHIVES = ("pytorch", "sklearn")  # formats that are archives, whatever their suffix
_RULER = re.compile(r"(?:^|\n)-{8,}")
_NO_MESSAGE = ("", "Kernel select failed:")
_MAX_TEXT = 600  # characters of a runtime's message that are passed on
_DEFAULTS = {"precision_mode": "origin", "enable_parallel": False, "config_file": ""}
_TRIED = (32, 256)  # sizes of open dimensions of a model that refuses 1
_MAX_TRIED = 1 << 18  # times as many elements as with dimensions of 1
_MAX_OPEN = 6  # open dimensions that are tried one by one
_reported: set[tuple[str, str]] = set()


def check_files(source: ModelSource) -> None:
    """Raise StartError if a file of `source` is missing, no regular file, or obviously no model."""
    if not source.paths:
        raise StartError(f"Load model '{source.spec.key}' failed: it names no model file")
    for path in source.paths:
        if not os.path.exists(path):
            missing = f"the file does not exist{file_check.unfinished(path)}"
            raise load_error(source, path, missing)
        if not os.path.isfile(path):
            raise load_error(source, path, "it is not a file")
        if not os.access(path, os.R_OK):
            raise load_error(source, path, "no permission to read it")
        may_be_archive = source.spec.format in _ARCHIVES
        if why := file_check.why_no_model(path, may_be_archive=may_be_archive):
            raise load_error(source, path, f"the file {why}")


def load_error(source: ModelSource, path: str, cause: object) -> StartError:
    """Return the error for a `path` that cannot be loaded, with the runtime's or our message."""
    details = cause if isinstance(cause, StartError) else error_text(cause)
    return StartError(
        f"Load model failed, model file: '{path}', model format: {source.spec.format}, "
        f"load error details: {details}"
    )


def error_text(cause: object) -> str:
    """Return a runtime's message on one line, without stack dumps below a ruler, shortened.

    Some of MindSpore's messages begin with a ruler and a heading, which are not the message.
    """
    parts = [part.strip().removeprefix("- ") for part in _RULER.split(str(cause))]
    text = next((part for part in parts if part not in _NO_MESSAGE), type(cause).__name__)
    text = " ".join(text.split())
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"


class SourceOptions:
    """Options of a declaration for its runtime on the chosen device; unused ones are logged.

    They come from `spec.options` and `source.options`, which wins; of a "device_list" those of the
    chosen device apply.
    """

    def __init__(self, source: ModelSource) -> None:
        options: dict[str, Any] = {**source.spec.options, **source.options}
        devices = {
            device.get("device_type", "").lower(): device
            for device in options.pop("device_list", None) or ()
        }
        options.update(devices.get(source.device_type, {}))
        self._device = source.device_type
        self._unused = [] if source.device_type in devices else sorted(devices)
        options.pop("device_type", None)
        options["config_file"] = source.config_file
        self._format = source.spec.format
        self._options = {
            name: value
            for name, value in options.items()
            if value not in (None, [], ()) and value != _DEFAULTS.get(name)
        }

    def take(self, name: str) -> Any:
        """Return the option's value, or None; from now on it counts as applied."""
        return self._options.pop(name, None)

    def report_ignored(self) -> None:
        """Log, once per process, each option without effect.

        It is one for which this format has no setting, or all are for other types of devices.
        """
        for other in self._unused:
            if (other, self._device) not in _reported:
                _reported.add((other, self._device))
                log.warning(
                    "Options for %s devices have no effect: the model runs on %s",
                    other,
                    self._device,
                )
        for name, value in self._options.items():
            if (self._format, name) not in _reported:
                _reported.add((self._format, name))
                log.warning(
                    "Option %s=%r is ignored: model format '%s' has no such setting on this device",
                    name,
                    value,
                    self._format,
                )


def check_signature(source: ModelSource, path: str, signature: Signature) -> Signature:
    """Return `signature` if requests can carry its inputs: types of `core.dtype`, unique names.

    Raises StartError otherwise.
    """
    for index, spec in enumerate(signature.inputs):
        if spec.dtype is not None and spec.dtype not in dtypes.BY_SPEC:
            raise load_error(source, path, _not_an_input(index, spec.name, spec.dtype.name))
    seen = [spec.name for spec in signature.inputs]
    if len(set(seen)) != len(seen):
        raise load_error(source, path, f"two inputs have the same name: {', '.join(seen)}")
    return signature


def element_error(
    source: ModelSource, path: str, index: int, *, name: str, kind: str
) -> StartError:
    """Return the error for input `index` whose element type `kind` no request can carry."""
    return load_error(source, path, _not_an_input(index, name, kind))


def _not_an_input(index: int, name: str, kind: str) -> str:
    accepted = ", ".join(row.name for row in dtypes.TABLE if row.numpy is not None)
    return (
        f"input {index} '{name}' is of type {kind}, which requests cannot carry; "
        f"accepted are tensors of {accepted}"
    )


def warm_up(
    run: Callable[[Sequence[Array]], list[Array]],
    signature: Signature,
    source: ModelSource,
    path: str,
) -> Signature:
    """Run once on zeros and fill in outputs that the file does not describe.

    A model of fixed shapes must run.  If another one refuses open dimensions of 1, a few larger
    sizes are tried; the inputs get the shapes with which it ran.  If none fits, that is logged.
    """
    is_static = all(spec.is_static for spec in signature.inputs)
    failure = ""
    for arrays in _trials(signature.inputs):
        if arrays is None:
            return signature
        try:
            results = run(arrays)
        except StageFailed as error:
            if is_static:
                raise load_error(source, path, f"it does not run on zeros: {error}") from error
            shapes = [array.shape for array in arrays]
            failure = failure or f"shapes {shapes}: {error}"
            continue
        inputs = tuple(map(_tried, signature.inputs, arrays))
        return Signature(inputs, _completed(signature.outputs, results, is_static))
    log.warning("Model file '%s' is not warmed up, %s", path, failure)
    return signature


def _trials(specs: Sequence[TensorSpec]) -> Iterator[list[Array] | None]:
    """Iterate over inputs of zeros: with open dimensions of 1, then with larger ones.

    A size is tried for each open dimension alone, then for all, but never for the first dimensions,
    which are often batches.  None if the model does not describe its inputs.
    """
    yield _zeros(specs, 1, [])
    axes = [
        (i, axis)
        for i, spec in enumerate(specs)
        for axis, size in enumerate(spec.shape or ())
        if size < 0 and axis > 0
    ]
    alone = [[axis] for axis in axes] if 1 < len(axes) <= _MAX_OPEN else []
    for size in _TRIED if axes else ():
        for chosen in (*alone, axes):
            if size ** len(chosen) <= _MAX_TRIED:
                yield _zeros(specs, size, chosen)


def _zeros(
    specs: Sequence[TensorSpec], size: int, axes: Sequence[tuple[int, int]]
) -> list[Array] | None:
    """Return zeros with `size` for the open dimensions `axes`, (input, axis), 1 for the others.

    An input of unknown rank is a scalar.  None if a dtype is unknown.
    """
    arrays: list[Array] = []
    for i, spec in enumerate(specs):
        shape = [
            dim if dim >= 0 else size if (i, axis) in axes else 1
            for axis, dim in enumerate(spec.shape or ())
        ]
        array = spec.zeros(shape)
        if array is None:
            return None
        arrays.append(array)
    return arrays


def _tried(spec: TensorSpec, array: Array) -> TensorSpec:
    is_known = spec.shape is not None and array.ndim == len(spec.shape)
    return replace(spec, trial=array.shape) if is_known and not spec.is_static else spec


def _completed(
    specs: tuple[TensorSpec, ...], results: Sequence[Array], is_static: bool
) -> tuple[TensorSpec, ...]:
    if len(specs) != len(results):  # the file does not have the number of outputs
        specs = tuple(TensorSpec(f"output{i}", None, None) for i in range(len(results)))
    return tuple(
        replace(
            spec,
            dtype=spec.dtype if spec.dtype is not None else result.dtype,
            shape=result.shape if spec.shape is None and is_static else spec.shape,
        )
        for spec, result in zip(specs, results, strict=True)
    )
