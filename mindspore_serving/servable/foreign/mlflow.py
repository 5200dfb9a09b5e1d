"""MLflow's MLmodel: the description of a directory that mlflow saves, with its flavours.

The flavour of a library is served from its file.  Loader code of python_function is never run.
"""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.dtype import TEXT
from mindspore_serving.core.value import TensorSpec
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.servable.foreign.model import ForeignModel
from mindspore_serving.servable.foreign.reading import inside, parse_json, read_text

FILE = "MLmodel"
MAX_SIZE = 1 << 20  # bytes
_FLAVOURS = {  # flavour -> format, and the key of its file
    "sklearn": ("sklearn", "pickled_model"),
    "xgboost": ("xgboost", "data"),
    "lightgbm": ("lightgbm", "data"),
    "catboost": ("catboost", "data"),
    "onnx": ("onnx", "data"),
    "pytorch": ("pytorch", "model_data"),
}
_OF_ROWS = ("sklearn", "xgboost", "lightgbm", "catboost")
_PICKLED = (".pkl", ".pickle", ".joblib", ".skops")  # in the place of a library's own file
_TORCH_FILES = ("model.pt2", "model.pth")
_ADVICE = {
    "transformers": "serve the directory of the checkpoint in it, which has a config.json",
    "tensorflow": "serve the SavedModel in it, or the .keras file after model.export(directory)",
    "keras": "write a SavedModel by model.export(directory)",
    "spark": "export the model as ONNX",
    "h2o": "export the model as ONNX",
}
_CODE = (
    "python_function is code, which is never run from a model directory: log the model by the "
    "flavour of its library, or call it in functions of a servable_config.py"
)


def find(path: str) -> str:
    """Return the MLmodel in the directory `path`; "" if there is none."""
    file = os.path.join(path, FILE)
    return file if os.path.isfile(file) else ""


def read(path: str) -> ForeignModel:
    """Return the model that the MLmodel at `path` describes.

    Raises StartError for a file that cannot be read, and for flavours that are not served.
    """
    description = _parse(path)
    flavours = _mapping(description, "flavors")
    name = next((name for name in _FLAVOURS if name in flavours), "")
    if not name:
        raise StartError(_why_not(flavours))
    root, flavour = os.path.dirname(path), _mapping(flavours, name)
    model_format, key = _FLAVOURS[name]
    file = _file(root, name, flavour.get(key))
    if file.lower().endswith(_PICKLED):
        model_format = "sklearn"  # the estimator of the library, by joblib or skops
    signature = description.get("signature")
    inputs, unused = _inputs(signature if isinstance(signature, dict) else {}, model_format)
    examples = _examples(root, description.get("saved_input_example_info"))
    return ForeignModel(
        "MLflow",
        FILE,
        without_effect=(*unused, *_without_effect(flavours, flavour)),
        inputs=tuple(
            TensorSpec(spec.name, spec.dtype, spec.shape, example=examples.get(spec.name))
            for spec in inputs
        ),
        model=DeclaredModel(os.path.basename(file), model_format, (f"../{file}",)),
    )


def _parse(path: str) -> dict[str, Any]:
    from mindspore_serving.core import yaml_text

    try:
        description = yaml_text.load(read_text(path, MAX_SIZE), FILE)
    except InvalidInputs as error:
        raise StartError(str(error)) from None
    if not isinstance(description, dict):
        raise StartError(f"{FILE} is no YAML mapping")
    return description


def _mapping(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = values.get(name)
    if not isinstance(value, dict):
        raise StartError(f"{FILE}: {name} is {value!r:.60}, expected a mapping")
    return value


def _why_not(flavours: Mapping[str, Any]) -> str:
    names = [str(name) for name in flavours if name != "python_function"]
    known = f"served are {', '.join(_FLAVOURS)}"
    if not names:
        return f"{FILE} has no flavour of a library; {known}; {_CODE}"
    advice = next((f"; {_ADVICE[name]}" for name in names if name in _ADVICE), "")
    return f"{FILE}: flavour {', '.join(names):.100} is not served here; {known}{advice}"


def _file(root: str, flavour: str, name: object) -> str:
    """Return the model's file, relative to `root`.  Raises StartError."""
    path = inside(FILE, root, str(name or "model"))
    if flavour == "pytorch" and os.path.isdir(path):
        files = [file for file in _TORCH_FILES if os.path.isfile(os.path.join(path, file))]
        if not files:
            raise StartError(f"{FILE}: '{path}' has none of {', '.join(_TORCH_FILES)}")
        path = os.path.join(path, files[0])
    return os.path.relpath(path, root)


def _inputs(signature: Mapping[str, Any], model_format: str) -> tuple[list[TensorSpec], list[str]]:
    """Return the inputs that apply, and the parts of the signature without effect."""
    unused = ["signature.params"] if signature.get("params") else []
    try:
        rows = json.loads(signature.get("inputs") or "[]")
        specs = [_to_spec(row) for row in rows]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise StartError(
            f"{FILE}: signature.inputs is {signature.get('inputs')!r:.100}, expected the JSON text "
            "of MLflow's signature"
        ) from None
    of_columns = all(spec.shape is None for spec in specs)
    if not all(spec.name for spec in specs) or of_columns != (model_format in _OF_ROWS):
        return [], unused + ["signature.inputs"] * bool(specs and not of_columns)
    return specs, unused


def _to_spec(row: Mapping[str, Any]) -> TensorSpec:
    """Return a column, without dtype and shape, or a tensor; its name is "" if it has none."""
    name = str(row.get("name") or "")
    if row["type"] != "tensor":
        return TensorSpec(name, None, None)
    tensor = row["tensor-spec"]
    dtype = TEXT if tensor["dtype"] in ("object", "str") else np.dtype(str(tensor["dtype"]))
    return TensorSpec(name, dtype, tuple(int(size) for size in tensor["shape"]))


def _examples(root: str, example: object) -> dict[str, Any]:
    """Return the first row of the input example, by column; {} if there is none."""
    if not isinstance(example, dict) or example.get("pandas_orient") != "split":
        return {}
    path = os.path.join(root, str(example.get("artifact_path")))
    if not os.path.isfile(path) or os.path.getsize(path) > MAX_SIZE:
        return {}
    name = os.path.basename(path)
    table = parse_json(name, read_text(inside(FILE, root, os.path.relpath(path, root)), MAX_SIZE))
    rows = table.get("data")
    if not isinstance(rows, list) or not rows or not isinstance(rows[0], list):
        return {}
    pairs = zip(map(str, table.get("columns") or ()), rows[0], strict=False)
    return {name: value for name, value in pairs if type(value) in (str, int, float)}


def _without_effect(flavours: Mapping[str, Any], flavour: Mapping[str, Any]) -> Iterator[str]:
    if flavour.get("code"):
        yield "code"
    function = flavours.get("python_function")
    method = function.get("predict_fn") if isinstance(function, dict) else None
    if method and method != "predict":
        yield f"python_function.predict_fn {method!s:.60}"
