"""Formats of model files, by their suffixes and first bytes; loads none.

Each file that is not served has the reason and what to do.
"""

import os
import re
from dataclasses import dataclass

from mindspore_serving.file_check import OFFLINE_MODEL

_HEAD = 4096  # bytes, which distinguish files with the same suffix
_SUFFIXES = {
    ".mindir": "mindir",
    ".ms": "mindir_lite",
    ".onnx": "onnx",
    ".pt2": "pytorch",
    ".pt": "pytorch",
    ".pth": "pytorch",
    ".xml": "openvino",
    ".pb": "openvino",
    ".tflite": "openvino",
    ".pdmodel": "openvino",
    ".skops": "sklearn",
    ".ubj": "xgboost",
    ".cbm": "catboost",
}
_TORCHSCRIPT = (".jit", ".torchscript", ".ts", ".ptl")
_MORE = (f"{', '.join(_TORCHSCRIPT)} (TorchScript)", ".json (XGBoost, CatBoost)", ".txt (LightGBM)")
SUFFIXES = ", ".join((*_SUFFIXES, *_MORE, ".gguf"))
SAVED_MODEL = "saved_model.pb"  # its directory is the model
_TORCH = re.compile(rb"\APK\x03\x04.{26}[^/]{1,256}/data(/|\.pkl)", re.DOTALL)  # a zip archive
_CONTENTS = (  # suffix, pattern of the head, format
    (".xml", re.compile(rb"<net\b"), "openvino"),
    (".json", re.compile(rb'\A\s*\{\s*"(learner"\s*:\s*\{|version"\s*:\s*\[)'), "xgboost"),
    (".json", re.compile(rb'\A\s*\{\s*"(ctr_data|features_info)"\s*:'), "catboost"),
    (".json", re.compile(rb'\A\s*\{\s*"base_code"'), ""),
    (".txt", re.compile(rb"\Atree\r?\n"), "lightgbm"),
    *((suffix, _TORCH, "pytorch") for suffix in _TORCHSCRIPT),
)
_PICKLES = (".pkl", ".pickle", ".joblib", ".sav")
PICKLE_TEXT = (
    "is a pickle: loading it runs any code in it.  If you trust its author, allow it by "
    "serve --allow-pickle or declare_model(..., allow_pickle=True); scikit-learn models can be "
    "saved without code by skops.io.dump(model, 'model.skops')"
)
_NOT_SERVED = {
    ".json": "is of Paddle 3: write .pdmodel by FLAGS_enable_pir_api=0, or export ONNX",
    ".om": OFFLINE_MODEL,
    ".ckpt": "is a checkpoint, weights without their network: serve its code by net.py:Net "
    "--weights, or export MindIR by mindspore.export",
    ".safetensors": "is weights without their network: give the directory that has its "
    "config.json, or serve its code by net.py:Net --weights",
    ".h5": "is of Keras: write a SavedModel by model.export(directory)",
    ".keras": "is of Keras: write a SavedModel by model.export(directory)",
    ".mlmodel": "is of Core ML: export the model as ONNX",
    ".engine": "is built by TensorRT for one GPU: serve the ONNX file that it was made of",
    ".pmml": "is PMML, which libraries run with Java or in part: export the model as ONNX",
    ".pdiparams": "is weights of Paddle without their network, which is in a .pdmodel file",
}


@dataclass(frozen=True, slots=True)
class ModelFile:
    """File that contains a model: its `format` as in declare_model, or why it is not served."""

    name: str
    format: str = ""
    why_not: str = ""


def recognize(path: str, *, allow_pickle: bool = False, is_named: bool = False) -> ModelFile | None:
    """Return the model file at `path`; None if it is of no known format.

    If the user names the file (`is_named`), an archive of PyTorch may have any suffix.
    """
    name = os.path.basename(path)
    suffix = os.path.splitext(name)[1].lower()
    if suffix in _PICKLES:
        return ModelFile(name, "sklearn") if allow_pickle else ModelFile(name, "", PICKLE_TEXT)
    model_format = _format(path, suffix)
    if model_format is None and is_named and _TORCH.search(_head(path)):
        model_format = "pytorch"
    if model_format is None:
        return None
    return ModelFile(name, model_format, "" if model_format else _NOT_SERVED[suffix])


def find_models(directory: str, *, allow_pickle: bool = False) -> list[ModelFile]:
    """Return the model files in `directory`, served or not, by name; paths are relative to it.

    A TensorFlow SavedModel is its file saved_model.pb, in `directory` or in one directory below.
    """
    files = []
    for name in sorted(os.listdir(directory)):
        if name.startswith("."):
            continue
        if name == SAVED_MODEL:
            return [ModelFile(SAVED_MODEL, "openvino")]  # other files belong to it
        path = os.path.join(directory, name)
        if os.path.isfile(path):
            file = recognize(path, allow_pickle=allow_pickle)
            files += [file] if file is not None else []
        elif os.path.isfile(os.path.join(path, SAVED_MODEL)):
            files.append(ModelFile(f"{name}/{SAVED_MODEL}", "openvino"))
    return files


def _format(path: str, suffix: str) -> str | None:
    """Return the format of a file, "" if it is known but not served; None if it is no model."""
    tests = [
        (pattern, model_format) for ending, pattern, model_format in _CONTENTS if ending == suffix
    ]
    if tests:
        head = _head(path)
        return next((model_format for pattern, model_format in tests if pattern.search(head)), None)
    return _SUFFIXES.get(suffix, "" if suffix in _NOT_SERVED else None)


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_HEAD)
    except OSError:
        return b""
