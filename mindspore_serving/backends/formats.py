"""Registry of model formats; a backend is imported when a model of its format is opened.

A table for the built-in formats and an entry-point group for other packages.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindspore_serving.backends.base import Backend, ModelSource
from mindspore_serving.errors import StartError
from mindspore_serving.file_check import OFFLINE_MODEL

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "mindspore_serving.backends"
"""Name = format in lower case, value = "module:Class".  It overrides a name of the table below."""


_CPU = (("cpu", ""),)
_MINDSPORE_BUILDS = (("ascend", "lib/plugin/*ascend*"), ("gpu", "lib/plugin/*gpu*"), *_CPU)
_TORCH_BUILDS = (("gpu", "lib/libtorch_cuda.so"), *_CPU)


@dataclass(frozen=True, slots=True)
class ModelFormat:
    """A built-in format.

    `target` is a class of this package.  `library` is the runtime's import name (None: none is
    needed), `extra` our extra that installs it, `distributions` the names it may be installed
    under, by default that of the library.  `builds` maps a device type to a glob of files below the
    library that only a build for that device has; "" is in every build.
    """

    target: str
    library: str | None = None
    extra: str | None = None
    distributions: tuple[str, ...] = ()
    builds: tuple[tuple[str, str], ...] = _CPU


FORMATS = {
    "mindir": ModelFormat(
        "mindir:MindirBackend",
        "mindspore",
        "mindspore",
        builds=_MINDSPORE_BUILDS,
    ),
    "mindir_openvino": ModelFormat("mindir_openvino:MindirOpenvinoBackend", "openvino", "lite"),
    "mindir_lite": ModelFormat(
        "mindir_lite:MindirLiteBackend",
        "mindspore_lite",
        distributions=("mindspore-lite", "mindspore_lite"),
        builds=(("ascend", "lib/*ascend*"), ("gpu", "lib/*tensorrt*"), *_CPU),
    ),
    "mindir_lite_openvino": ModelFormat("lite_openvino:LiteOpenvinoBackend", "openvino", "lite"),
    "openvino": ModelFormat("openvino:OpenvinoBackend", "openvino", "lite"),
    "onnx_openvino": ModelFormat("openvino:OpenvinoBackend", "openvino", "lite"),
    "sklearn": ModelFormat("sklearn:SklearnBackend", "sklearn", "sklearn", ("scikit-learn",)),
    "xgboost": ModelFormat(
        "xgboost:XgboostBackend", "xgboost", "xgboost", ("xgboost", "xgboost-cpu")
    ),
    "lightgbm": ModelFormat("lightgbm:LightgbmBackend", "lightgbm", "lightgbm"),
    "catboost": ModelFormat("catboost:CatboostBackend", "catboost", "catboost"),
    "om": ModelFormat("", builds=(("ascend", ""),)),  # not supported, but its declaration is
    "onnx": ModelFormat(
        "onnx:OnnxBackend",
        "onnxruntime",
        "onnx",
        ("onnxruntime", "onnxruntime-gpu", "onnxruntime-cann"),
        (
            ("ascend", "capi/libonnxruntime_providers_cann.so"),
            ("gpu", "capi/libonnxruntime_providers_cuda.so"),
            *_CPU,
        ),
    ),
    "pytorch": ModelFormat("torch:TorchBackend", "torch", "torch", builds=_TORCH_BUILDS),
    "mindspore": ModelFormat(
        "cell:CellBackend", "mindspore", "mindspore", builds=_MINDSPORE_BUILDS
    ),
    "pytorch_module": ModelFormat(
        "torch_module:ModuleBackend", "torch", "torch", builds=_TORCH_BUILDS
    ),
    "python": ModelFormat("python:PythonBackend", builds=(("ascend", ""), ("gpu", ""), *_CPU)),
}

BACKENDS = {
    "mindir": {"mindspore": "mindir", "openvino": "mindir_openvino"},
    "mindir_lite": {"mindspore_lite": "mindir_lite", "openvino": "mindir_lite_openvino"},
    "onnx": {"onnxruntime": "onnx", "openvino": "onnx_openvino"},
}
"""Format -> backend, as a model declares them -> the row that runs it; the first is preferred."""


def resolve(name: str, backend: str = "") -> str:
    """Return the row that runs a model declared as format `name`, with `backend` if it names one.

    Without a backend, MindIR is run by MindSpore and ONNX by ONNX Runtime if that is installed:
    they support every operator and device.  Otherwise OpenVINO runs them, if that is installed.
    """
    rows = BACKENDS.get(name, {})
    if backend:
        return rows[backend]
    if name in _entry_points():
        return name
    return next((row for library, row in rows.items() if _folder(library) is not None), name)


def open_backend(source: ModelSource) -> Backend:
    """Load the model of `source`.  Raises StartError: unknown format, no library, failed load."""
    if source.spec.format == "om" and "om" not in _entry_points():
        raise StartError(
            f"Load model '{source.spec.key}' failed: it {OFFLINE_MODEL}; or install a package that "
            "registers a backend for 'om'"
        )
    backend = backend_class(source.spec.format)
    try:
        loaded: Backend = backend.load(source)
    except ImportError as error:
        raise StartError(
            f"Model '{source.spec.key}' of format '{source.spec.format}' needs a library that "
            f"cannot be imported: {error}{_advice(source.spec.format)}"
        ) from error
    return loaded


def backend_class(name: str) -> Any:
    """Return the class for format `name`.  Raises StartError if nothing runs it here."""
    entry = _entry_points().get(name)
    if entry is not None:
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            raise StartError(
                f"The backend of model format '{name}', entry point '{entry.value}' of package "
                f"'{_owner(entry)}', cannot be imported: {error}"
            ) from error
    require(name)
    module, _, attribute = FORMATS[name].target.partition(":")
    return getattr(importlib.import_module(f"{__package__}.{module}"), attribute)


def require(name: str) -> None:
    """Raise StartError if format `name` is unknown or its library is not installed."""
    if name in _entry_points():
        return
    if name not in FORMATS:
        known = sorted(set(FORMATS) | set(_entry_points()))
        raise StartError(f"Model format '{name}' is unknown, known are: {', '.join(known)}")
    library = FORMATS[name].library
    if library is not None and _folder(library) is None:
        raise StartError(
            f"Model format '{name}' needs the package '{library}', which is not installed"
            f"{_advice(name)}"
        )


def builds(name: str) -> tuple[str, ...]:
    """Return the device types for which the installed library of format `name` was built.

    The best is first.  Another package's format is assumed to run anywhere; its load fails where it
    does not.
    """
    if name in _entry_points():
        return ("ascend", "gpu", "cpu")
    row = FORMATS.get(name)
    if row is None:
        return ()
    folder = _folder(row.library) if row.library else Path()
    if folder is None:
        return ()
    return tuple(device for device, proof in row.builds if not proof or any(folder.glob(proof)))


def names() -> list[str]:
    """Return every known format, sorted."""
    return sorted(set(FORMATS) | set(_entry_points()))


def installed(name: str) -> tuple[str, str]:
    """Return (library, version) of format `name`; version is "" if not installed or not needed."""
    entry = _entry_points().get(name)
    if entry is not None:
        return _owner(entry), entry.dist.version if entry.dist else ""
    row = FORMATS[name]
    library = row.library or ""
    return library, _version(row.distributions or (library,) * bool(library))


def _version(distributions: Sequence[str]) -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import, seldom needed

    for distribution in distributions:
        with suppress(PackageNotFoundError):
            return version(distribution)
    return ""


def _folder(library: str) -> Path | None:
    """Return the directory in which `library` is installed, without importing it."""
    spec = importlib.util.find_spec(library)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _advice(name: str) -> str:
    row = FORMATS.get(name)
    if row is None or row.library is None:
        return ""
    if row.extra is None:
        return f"; install {row.library} from the vendor's download page"
    return f"; install it with: pip install 'mindspore-serving[{row.extra}]'"


def _entry_points() -> "dict[str, EntryPoint]":
    return _entry_points_in(tuple((directory, _changed_at(directory)) for directory in sys.path))


def _changed_at(directory: str) -> int:
    """Return when a package was last added to or removed from a directory of `sys.path`."""
    try:
        return os.stat(directory or ".").st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=1)
def _entry_points_in(directories: tuple[tuple[str, int], ...]) -> "dict[str, EntryPoint]":
    """Return the entry points of all packages, by name.

    Reading the metadata of hundreds of packages takes as long as compiling a small model.
    """
    from importlib.metadata import entry_points  # slow to import, seldom needed

    entries: dict[str, EntryPoint] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        other = entries.setdefault(entry.name.lower(), entry)
        if other.value != entry.value:
            raise StartError(
                f"Two packages register a backend for model format '{entry.name}': "
                f"'{_owner(other)}' and '{_owner(entry)}'; uninstall one of them"
            )
    return entries


def _owner(entry: "EntryPoint") -> str:
    return entry.dist.name if entry.dist else entry.value
