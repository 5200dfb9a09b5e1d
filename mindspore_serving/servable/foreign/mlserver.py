"""MLServer's model-settings.json: the description of a model of rows of numbers."""

import json
import os
from collections.abc import Iterator
from typing import Any

from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.value import TensorSpec
from mindspore_serving.errors import StartError
from mindspore_serving.servable.foreign.model import ForeignModel
from mindspore_serving.servable.foreign.reading import inside, parse_json, read_text

FILE = "model-settings.json"
MAX_SIZE = 1 << 20  # bytes
_RUNTIMES: dict[str, tuple[str, tuple[str, ...]]] = {  # class -> format, files that it looks for
    "mlserver_sklearn.SKLearnModel": (
        "sklearn",
        ("model.joblib", "model.pickle", "model.pkl", "model.skops"),
    ),
    "mlserver_xgboost.XGBoostModel": ("xgboost", ("model.bst", "model.json", "model.ubj")),
    "mlserver_lightgbm.LightGBMModel": ("lightgbm", ("model.bst", "model.txt")),
    "mlserver_catboost.CatboostModel": ("catboost", ("model.cbm", "model.bin")),
}
_ADVICE = {
    "mlserver_mlflow": "serve the model file in the MLflow directory, such as model.pkl",
    "mlserver_huggingface": "serve the directory of the checkpoint: mindspore-serving serve DIR",
    "mlserver_alibi": "explainers and detectors are Python: call them in a servable_config.py",
}
_READ = ("name", "implementation", "max_batch_size", "max_batch_time", "parallel_workers")
_SERVER_FILE = "settings.json"
_SERVER = {  # of the server's settings, by our options
    "host": "--host",
    "http_port": "--http-port",
    "grpc_port": "--grpc-port",
    "parallel_workers": "--num-parallel-workers",
}
_READ_PARAMETERS = ("uri", "version")
_IDLE = ("platform", "versions", "inputs", "outputs", "parameters")  # read below, or for people


def find(path: str) -> str:
    """Return the model-settings.json in the directory `path`; "" if there is none."""
    file = os.path.join(path, FILE)
    return file if os.path.isfile(file) else ""


def read(path: str) -> ForeignModel:
    """Return the model that the model-settings.json at `path` describes.

    Raises StartError for a file that cannot be read, and for runtimes that are Python code.
    """
    settings = parse_json(FILE, read_text(path, MAX_SIZE))
    parameters = settings.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise StartError(f"{FILE}: parameters is not an object")
    model_format, names = _runtime(settings.get("implementation"))
    root = os.path.dirname(path)
    file = _file(root, parameters.get("uri"), names)
    unused = [name for name in settings if name not in (*_READ, *_IDLE)]
    unused += [f"parameters.{name}" for name in parameters if name not in _READ_PARAMETERS]
    unused += _server_settings(root)
    version = parameters.get("version")
    if version and str(version) != "1":
        unused.append(f"parameters.version {str(version)[:60]} (it is version 1 here)")
    return ForeignModel(
        "MLServer",
        FILE,
        _options(settings),
        without_effect=tuple(unused),
        max_batch_size=_number(settings, "max_batch_size"),
        inputs=_tensors(settings, "inputs"),
        model=DeclaredModel(os.path.basename(file), model_format, (f"../{file}",)),
    )


def _server_settings(root: str) -> Iterator[str]:
    """Iterate over the settings of the server beside the model, or beside its directory."""
    for directory in (root, os.path.dirname(root)):
        path = os.path.join(directory, _SERVER_FILE)
        if os.path.isfile(path):
            for name, value in parse_json(_SERVER_FILE, read_text(path, MAX_SIZE)).items():
                option = f" (write {_SERVER[name]} {value})" if name in _SERVER else ""
                yield f"{_SERVER_FILE} {name}{option}"
            return


def _runtime(implementation: object) -> tuple[str, tuple[str, ...]]:
    """Return the format of a runtime, and the names of its files.  Raises StartError."""
    if implementation in _RUNTIMES:
        return _RUNTIMES[str(implementation)]
    package = str(implementation).partition(".")[0]
    advice = next((text for name, text in _ADVICE.items() if package.startswith(name)), "")
    known = f"known are {', '.join(_RUNTIMES)}; other runtimes are Python, which is not run"
    raise StartError(
        f"{FILE}: implementation {implementation!r:.100} is not run here: {advice or known}"
    )


def _file(root: str, uri: object, names: tuple[str, ...]) -> str:
    """Return the model's file, relative to `root`.  Raises StartError."""
    if uri:
        path = inside(FILE, root, str(uri))
        if os.path.isfile(path):
            return os.path.relpath(path, root)
        root_of_files = os.path.relpath(path, root)
    else:
        root_of_files = ""
    for name in names:
        if os.path.isfile(os.path.join(root, root_of_files, name)):
            return os.path.join(root_of_files, name)
    raise StartError(f"{FILE} has no parameters.uri, and there is none of {', '.join(names)}")


def _options(settings: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if settings.get("name"):
        options["alias"] = str(settings["name"])
    if workers := _number(settings, "parallel_workers"):
        options["num_parallel_workers"] = workers
    seconds = settings.get("max_batch_time") or 0
    if type(seconds) not in (int, float) or seconds < 0:
        raise StartError(f"{FILE}: max_batch_time is {seconds!r:.60}, expected seconds")
    if seconds:
        options["max_batch_delay_ms"] = seconds * 1000
    return options


def _number(settings: dict[str, Any], name: str) -> int:
    value = settings.get(name) or 0
    if type(value) is not int or value < 0:
        raise StartError(f"{FILE}: {name} is {value!r:.60}, expected a number >= 0")
    return value


def _tensors(settings: dict[str, Any], name: str) -> tuple[TensorSpec, ...]:
    """Return names of tensors; MLServer converts values whatever their datatypes and shapes."""
    rows = settings.get(name) or []
    try:
        return tuple(TensorSpec(str(row["name"]), None, None) for row in rows)
    except (KeyError, TypeError):
        text = json.dumps(rows)
        raise StartError(f"{FILE}: {name} is {text:.100}, expected objects with a name") from None
