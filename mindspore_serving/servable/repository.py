"""Directories of servables: `{directory}/{name}/{version}/{model files}`.

Finds and checks versions, files and servables.  It runs user code only through `loader`.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from mindspore_serving.core.declaration import Declaration, ModelSpec
from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import StartError
from mindspore_serving.servable.check import check_servable_name
from mindspore_serving.servable.language import bare_language
from mindspore_serving.servable.loader import CONFIG_FILE, load

MODEL_CONFIG = "config.json"  # in a language model's directory
GGUF = ".gguf"  # a language model in one file

BARE_MODELS = {  # the file in a version directory that is a servable without servable_config.py
    "model.mindir": "mindir",
    "model.onnx": "onnx",
    "model.pt2": "pytorch",
    "model.pt": "pytorch",
}


def make_declaration(
    servable_directory: str,
    servable_name: str,
    version: int = 0,
    llm_options: Mapping[str, Any] | None = None,
) -> tuple[Declaration, int]:
    """What the servable declares, and the version that is to run.

    `version` 0 is the newest version directory; a servable without model files needs none, and is
    version 1.  A bare model gives a declaration without a method, which `predict_method` makes of
    its signature.  So does the directory of a language model, with `llm_options`.

    Raises StartError if a directory, servable_config.py or model file is missing, or fails.
    """
    check_servable(servable_directory, servable_name)
    options = dict(llm_options or {})
    if is_language_model(os.path.join(servable_directory, servable_name)):
        return bare_language(servable_directory, servable_name, options), version or 1
    if options:
        raise StartError(
            f"servable '{servable_name}' is no bare language model, so the options "
            f"{', '.join(options)} are not for it; give them to declare_llm"
        )
    if os.path.isfile(os.path.join(servable_directory, servable_name, CONFIG_FILE)):
        declaration = load(servable_directory, servable_name)
        has_files = any(spec.files for spec in declaration.models.values())
        version = choose_version(servable_directory, servable_name, version, has_files)
    else:
        declaration = Declaration(servable_name)
        version = choose_version(servable_directory, servable_name, version, has_files=True)
        spec = find_bare_model(servable_directory, servable_name, version)
        if spec is None:
            raise StartError(
                f"Check servable config failed, file '{CONFIG_FILE}' not exist and version "
                f"{version} has none of {', '.join(BARE_MODELS)}, "
                f"{_servable(servable_directory, servable_name)}"
            )
        declaration.models[spec.key] = spec
    for model in declaration.models.values():
        model_paths(servable_directory, servable_name, version, model)
        config_path(servable_directory, servable_name, model)
    return declaration, version


def is_language_model(path: str) -> bool:
    """Whether `path` is a GGUF file, or has no servable_config.py but a config.json that names an
    architecture, or a GGUF file and no config.json."""
    if os.path.isfile(path):
        return path.endswith(GGUF)
    config = os.path.join(path, MODEL_CONFIG)
    if os.path.isdir(path) and not os.path.isfile(config):
        names = os.listdir(path)
        return CONFIG_FILE not in names and any(name.endswith(GGUF) for name in names)
    if not os.path.isfile(config) or os.path.isfile(os.path.join(path, CONFIG_FILE)):
        return False
    try:
        with open(config, encoding="utf-8") as file:
            return "architectures" in json.load(file)
    except (OSError, ValueError):
        return False


def check_servable(servable_directory: str, servable_name: str) -> None:
    """Raise StartError if there is no such servable: no servable_config.py and no bare model."""
    check_servable_name("servable_name", servable_name)
    path = os.path.join(servable_directory, servable_name)
    where = _servable(servable_directory, servable_name)
    if not os.path.exists(path):
        raise StartError(f"Check servable config failed, directory '{path}' not exist, {where}")
    if not _is_servable(path):
        raise StartError(
            f"Check servable config failed, file '{os.path.join(path, CONFIG_FILE)}' not exist, "
            f"{where}; without it, a version directory with one of {', '.join(BARE_MODELS)} is "
            "needed"
        )


def versions(servable_directory: str, servable_name: str) -> list[int]:
    """The version directories, ascending: names that are numbers from 1, without leading zeros."""
    return _versions(os.path.join(servable_directory, servable_name))


def choose_version(
    servable_directory: str, servable_name: str, version: int, has_files: bool
) -> int:
    """The version to run: `version`, or for 0 the newest directory, or 1 if no files are needed."""
    found = versions(servable_directory, servable_name)
    where = _servable(servable_directory, servable_name)
    if version and has_files and version not in found:
        raise StartError(
            "Start servable failed: There is no specified version directory of models, specified "
            f"version number: {version}, {where}"
        )
    if not version and has_files and not found:
        raise StartError(
            "There is no valid version directory of models while there are models declared in "
            f"servable_config.py, {where}"
        )
    return version or (found[-1] if found else 1)


def model_paths(
    servable_directory: str, servable_name: str, version: int, spec: ModelSpec
) -> tuple[str, ...]:
    """The files of a model as absolute paths; links are not resolved, so names stay as declared.

    Raises StartError for a file outside the servable's directory or one that does not exist.
    """
    root = os.path.join(os.path.realpath(servable_directory), servable_name)
    paths = []
    for file in spec.files:
        path = os.path.normpath(os.path.join(root, str(version), file))
        if os.path.isabs(file) or not path.startswith(root + os.sep):
            raise StartError(
                f"Load model failed, {_servable(servable_directory, servable_name)}, model file: "
                f"'{file}' should be a path inside the servable's directory, relative to the "
                f"version directory '{version}'"
            )
        if not os.path.exists(path):
            raise StartError(
                f"Load model failed, {_servable(servable_directory, servable_name)}, model file: "
                f"'{file}', version number {version}, load error details: '{path}' not exist"
            )
        paths.append(path)
    return tuple(paths)


def config_path(servable_directory: str, servable_name: str, spec: ModelSpec) -> str | None:
    """The absolute path of a model's configuration file, which must exist; None if it has none."""
    if spec.config_file is None:
        return None
    root = os.path.join(os.path.realpath(servable_directory), servable_name)
    path = os.path.normpath(os.path.join(root, spec.config_file))
    if not os.path.isfile(path):
        raise StartError(
            f"Load model failed, {_servable(servable_directory, servable_name)}, config file: "
            f"'{spec.config_file}', load error details: '{path}' not exist"
        )
    return path


def find_bare_model(servable_directory: str, servable_name: str, version: int) -> ModelSpec | None:
    """The model of a version directory without servable_config.py; None if there is none.

    Raises StartError if there are several, as nothing says which is meant.
    """
    path = os.path.join(servable_directory, servable_name, str(version))
    found = [file for file in BARE_MODELS if os.path.exists(os.path.join(path, file))]
    if len(found) > 1:
        raise StartError(
            f"There is more than one model in '{path}': {', '.join(found)}; keep one, or write a "
            "servable_config.py"
        )
    return ModelSpec(found[0], BARE_MODELS[found[0]], (found[0],)) if found else None


def discover(path: str) -> list[tuple[str, str]]:
    """The servables at `path`, itself one or a directory of them, as (directory, name) by name.

    A servable has a servable_config.py, or a version directory with a bare model.  Raises
    StartError if there is none, InvalidInputs if one has a name that cannot be served.
    """
    path = os.path.abspath(path)
    if not os.path.exists(path):
        raise StartError(f"There is no file or directory '{path}'")
    if _is_servable(path):
        found = [os.path.split(path)]
    elif os.path.isfile(path):
        raise StartError(f"'{path}' is no model file that can be served alone, as {GGUF} files are")
    else:
        names = sorted(name for name in os.listdir(path) if not name.startswith("."))
        found = [(path, name) for name in names if _is_servable(os.path.join(path, name))]
    if not found:
        raise StartError(
            f"There is no servable in '{path}': neither it nor a directory in it has a "
            f"{CONFIG_FILE}, a language model's {MODEL_CONFIG} or {GGUF} file, or a model such as "
            f"1/{' or 1/'.join(BARE_MODELS)}"
        )
    for _, name in found:
        check_servable_name("servable_name", name)
    return found


def file_alias(directory: str, name: str) -> str:
    """What clients call a model file: its name without the ending; "" for a directory."""
    return os.path.splitext(name)[0] if os.path.isfile(os.path.join(directory, name)) else ""


def predict_method(model_key: str, signature: Signature) -> Method:
    """The method "predict" of a bare model, with the names of the model's inputs and outputs."""
    inputs = tuple(range(len(signature.inputs)))
    outputs = tuple(range(len(inputs), len(inputs) + len(signature.outputs)))
    stage = Stage(StageKind.MODEL, model_key, inputs, outputs, tag=f"Model '{model_key}'")
    return Method(
        name="predict",
        inputs=_unique_names(signature.inputs, "x"),
        outputs=_unique_names(signature.outputs, "y"),
        stages=(stage,),
        returns=outputs,
    )


def _servable(servable_directory: str, servable_name: str) -> str:
    return f"servable directory: '{servable_directory}', servable name: '{servable_name}'"


def _versions(path: str) -> list[int]:
    if not os.path.isdir(path):
        return []
    names = [entry.name for entry in os.scandir(path) if entry.is_dir()]
    digits = [name for name in names if name.isascii() and name.isdigit()]
    return sorted(int(name) for name in digits if not name.startswith("0"))


def _is_servable(path: str) -> bool:
    if os.path.isfile(os.path.join(path, CONFIG_FILE)) or is_language_model(path):
        return True
    return any(
        os.path.exists(os.path.join(path, str(version), file))
        for version in _versions(path)
        for file in BARE_MODELS
    )


def _unique_names(specs: tuple[TensorSpec, ...], prefix: str) -> tuple[str, ...]:
    """Names a client can write: printable, not empty, different."""
    names: list[str] = []
    for index, spec in enumerate(specs):
        printable = "".join(char if char.isprintable() else "_" for char in spec.name).strip()
        base = name = printable or f"{prefix}{index}"
        number = 1
        while name in names:
            number += 1
            name = f"{base}_{number}"
        names.append(name)
    return tuple(names)
