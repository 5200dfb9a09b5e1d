"""Directories of servables: `{directory}/{name}/{version}/{model files}`, or model files alone.

It finds and checks versions, files and servables. User code runs only through `loader`.
"""

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from mindspore_serving import errors, file_check
from mindspore_serving.core.declaration import Declaration, DeclaredModel
from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.core.model_card import UPSTREAM
from mindspore_serving.core.network import NetworkCode
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.servable import bare
from mindspore_serving.servable.backend_choice import check_backend
from mindspore_serving.servable.check import check_servable_name
from mindspore_serving.servable.foreign import formats
from mindspore_serving.servable.language import bare_language
from mindspore_serving.servable.loader import CONFIG_FILE, load
from mindspore_serving.servable.model_files import SUFFIXES
from mindspore_serving.servable.network_file import declare_network

MODEL_CONFIG = "config.json"  # in a language model's directory
GGUF = ".gguf"  # a language model in one file
MISTRAL_CONFIG = "params.json"  # of a language model in the format of Mistral
# Names of files and directories with weights of a language model.
_IS_WEIGHTS = re.compile(r".*\.safetensors|rank_\d+|latest_checkpointed_iteration\.txt")


def make_declaration(
    servable_directory: str,
    servable_name: str,
    version: int = 0,
    llm_options: Mapping[str, Any] | None = None,
    *,
    allow_pickle: bool = False,
    backend: str = "",
    with_batch_dim: bool | None = None,
    batch_axis: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
    network: NetworkCode | None = None,
) -> tuple[Declaration, int]:
    """Return the declaration of a servable, and the version to run.

    `version` 0 is the newest version directory; a servable without model files needs none, and is
    version 1. A bare model, and the directory of a language model with its `llm_options`, has no
    method; `predict_method` makes that of a bare model's signature. With `allow_pickle` a bare
    model may be a pickle; `backend`, `with_batch_dim`, `batch_axis` and `states` are as in
    `declare_model`. `network` is that of the operator's Python file.

    Raises StartError if a directory, servable_config.py or model file is missing, or fails, and
    InvalidInputs if an argument does not apply.
    """
    options, axes = dict(llm_options or {}), dict(batch_axis or {})
    set_axes = _batch_arguments(with_batch_dim, axes, states or {})
    changes: Any = {"batch_axis": axes, "with_batch_dim": with_batch_dim, "states": states or {}}
    root = os.path.join(servable_directory, servable_name)
    if network is not None:
        spec = replace(declare_network(root, network), **changes)
        return Declaration(servable_name, models={spec.key: spec}), 1
    check_servable(servable_directory, servable_name, options, allow_pickle=allow_pickle)
    if is_upstream(options) or is_language_model(root):
        if set_axes:
            raise InvalidInputs(
                f"servable '{servable_name}' is a language model, so {set_axes[0]} does not apply"
            )
        location, version = _find_checkpoint(root, version, options)
        return bare_language(location, servable_name, options), version
    if os.path.isfile(os.path.join(root, CONFIG_FILE)):
        for argument in [f"backend='{backend}'"] * bool(backend) + set_axes:
            raise InvalidInputs(
                f"servable '{servable_name}' has a servable_config.py: set this there, by "
                f"declare_model(..., {argument})"
            )
        declaration = load(servable_directory, servable_name)
        has_files = any(spec.files for spec in declaration.models.values())
        version = choose_version(servable_directory, servable_name, version, has_files)
    else:
        has_versions = bool(bare.versions(root))
        version = choose_version(servable_directory, servable_name, version, has_versions)
        spec = bare_model(root, version, allow_pickle=allow_pickle)
        backend = check_backend(backend, spec.format)
        spec = replace(spec, backend=backend, **changes)
        declaration = Declaration(servable_name, models={spec.key: spec})
    for model in declaration.models.values():
        model_paths(servable_directory, servable_name, version, model)
        config_path(servable_directory, servable_name, model)
    return declaration, version


def _find_checkpoint(root: str, version: int, options: Mapping[str, Any]) -> tuple[str, int]:
    """Return the checkpoint of a language model and its version; 0 is the newest.

    Raises StartError if the version has none.
    """
    if is_upstream(options):
        return root, version or 1
    if path := language_model_path(root, version):
        is_newest = path != root and not version
        number = int(os.path.basename(path)) if is_newest else version or 1
        described = formats.language_model(path)
        return path if described is None else described.language_path, number
    available = [number for number in bare.versions(root) if language_model_path(root, number)]
    problem = why_no_language_model(os.path.join(root, str(version)))
    raise StartError(
        f"Version {version} of the language model '{root}' has no checkpoint"
        f"{': ' * bool(problem)}{problem}; versions with one are {', '.join(map(str, available))}"
    )


def _batch_arguments(
    with_batch_dim: bool | None, axes: Mapping[str, int], states: Mapping[str, str]
) -> list[str]:
    """Return the arguments of declare_model that set what the operator did."""
    arguments = [f"batch_axis={axes!r}"] if axes else []
    arguments += [f"states={dict(states)!r}"] if states else []
    is_set = with_batch_dim is not None
    return [*arguments, f"with_batch_dim={with_batch_dim}"] if is_set else arguments


def bare_model(root: str, version: int, *, allow_pickle: bool) -> DeclaredModel:
    """Return the model of `root`, as the description of another server completes it."""
    described = formats.read(root)
    if described is None:
        return bare.find_bare_model(root, version, allow_pickle=allow_pickle)
    if described.model is not None:
        return described.declare(replace(described.model, allow_pickle=allow_pickle))
    spec = bare.find_bare_model(
        root, version, allow_pickle=allow_pickle, file_name=described.model_file
    )
    return described.declare(spec)


def is_language_model(path: str) -> bool:
    """Return whether `path` is a language model without servable_config.py, or has versions of one.

    It is a GGUF file, a file of whisper.cpp, or a directory with a config.json that names an
    architecture, or with a model.bin of Whisper, or without config.json and with a GGUF file or
    Mistral's params.json, or a file of another server that describes one, or a voice. A version is
    such a directory, too.
    """
    return bool(language_model_path(path))


def language_model_path(root: str, version: int = 0) -> str:
    """Return the checkpoint of a version of the language model `root`; "" if there is none.

    A model without version directories is all of its versions. `version` 0 is the newest directory
    that has a checkpoint.
    """
    if os.path.isfile(os.path.join(root, CONFIG_FILE)):
        return ""
    if _is_checkpoint(root):
        return root
    numbers = [version] if version else reversed(bare.versions(root))
    paths = (os.path.join(root, str(number)) for number in numbers)
    return next((path for path in paths if _is_checkpoint(path) and not bare.is_bare(path)), "")


def _is_checkpoint(path: str) -> bool:
    if formats.is_language_model(path) or file_check.find_voice(path):
        return True
    if os.path.isfile(path):
        return path.endswith(GGUF) or file_check.is_speech_file(path)
    if os.path.isdir(path) and not os.path.isfile(os.path.join(path, MODEL_CONFIG)):
        names = os.listdir(path)
        return any(name.endswith(GGUF) for name in names) or MISTRAL_CONFIG in names
    return file_check.is_speech_model(path) or "architectures" in read_model_config(path)


def read_model_config(path: str) -> dict[str, Any]:
    """Return the content of config.json in the directory `path`; {} if it cannot be read."""
    try:
        config = _load_model_config(path)
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def why_no_language_model(path: str) -> str:
    """Return why a directory with a config.json or weights is no language model.

    "" if it has neither, or is a servable of another kind.
    """
    file = os.path.join(path, MODEL_CONFIG)
    if not os.path.isdir(path) or os.path.isfile(os.path.join(path, CONFIG_FILE)):
        return ""
    if not os.path.isfile(file):
        weights = sorted(filter(_IS_WEIGHTS.fullmatch, os.listdir(path)))
        return f"it has {weights[0]}, but no {MODEL_CONFIG}: download that too" if weights else ""
    try:
        config = _load_model_config(path)
    except (OSError, ValueError, RecursionError) as error:
        return f"its {MODEL_CONFIG} {file_check.why_no_model(file) or f'is not JSON: {error}'}"
    if not isinstance(config, dict):
        return f"its {MODEL_CONFIG} holds a {type(config).__name__}, expected an object"
    if "architectures" in config:
        return ""
    return (
        f"its {MODEL_CONFIG} has no 'architectures', which names the model's class, as "
        '["LlamaForCausalLM"]: take the file from the model\'s publisher'
    )


def _load_model_config(path: str) -> Any:
    with open(os.path.join(path, MODEL_CONFIG), encoding="utf-8") as file:
        return json.load(file)


def is_upstream(llm_options: Mapping[str, Any]) -> bool:
    """Return whether these options are of a language model of another server, without files."""
    return llm_options.get("engine") == UPSTREAM


def check_servable(
    servable_directory: str,
    servable_name: str,
    llm_options: Mapping[str, Any],
    *,
    allow_pickle: bool = False,
    network: str = "",
) -> None:
    """Check that a servable exists and takes `llm_options`.

    That of a `network`, which the operator named, is a Python file.

    Raises StartError without servable_config.py and bare model, or for options that do not apply.
    """
    check_servable_name("servable_name", servable_name)
    if is_upstream(llm_options):
        return
    path = os.path.join(servable_directory, servable_name)
    servable = _servable(servable_directory, servable_name)
    if not os.path.exists(path):
        near = errors.did_you_mean(servable_name, _names_in(servable_directory))
        raise StartError(
            f"Check servable config failed, directory '{path}' not exist, {servable}{near}"
        )
    if network and os.path.isfile(path):
        return
    if not is_servable(path, allow_pickle=allow_pickle):
        raise StartError(
            f"Check servable config failed, file '{os.path.join(path, CONFIG_FILE)}' not exist, "
            f"{servable}; without it, one model file ({SUFFIXES}) is needed: "
            f"{why_no_language_model(path) or bare.why_not(path, allow_pickle=allow_pickle)}"
        )
    if llm_options and not is_language_model(path):
        raise StartError(
            f"servable '{servable_name}' has a servable_config.py or is no language model, so the "
            f"options {', '.join(llm_options)} do not apply; pass them to declare_llm"
        )


def is_servable(path: str, *, allow_pickle: bool = False) -> bool:
    """Return whether `path` has a servable_config.py, or a model that needs none."""
    if os.path.isfile(os.path.join(path, CONFIG_FILE)) or formats.is_described(path):
        return True
    return is_language_model(path) or bare.is_bare(path, allow_pickle=allow_pickle)


def versions(servable_directory: str, servable_name: str) -> list[int]:
    """Return the version directories, ascending: numbers from 1, without leading zeros."""
    return bare.versions(os.path.join(servable_directory, servable_name))


def choose_version(
    servable_directory: str, servable_name: str, version: int, has_files: bool
) -> int:
    """Return the version to run: `version`; for 0 the newest, or 1 if no files are needed."""
    available = versions(servable_directory, servable_name)
    servable = _servable(servable_directory, servable_name)
    if version and has_files and version not in available:
        raise StartError(
            "Start servable failed: There is no specified version directory of models, specified "
            f"version number: {version}, {servable}"
        )
    if not version and has_files and not available:
        raise StartError(
            "There is no valid version directory of models while there are models declared in "
            f"servable_config.py, {servable}; put the models' files into "
            f"'{os.path.join(servable_directory, servable_name, '1')}'"
        )
    return version or (available[-1] if available else 1)


def model_paths(
    servable_directory: str, servable_name: str, version: int, spec: DeclaredModel
) -> tuple[str, ...]:
    """Return the files of a model as absolute paths, with links unresolved, as declared.

    Raises StartError for a file outside the servable's directory or one that does not exist.
    """
    root = os.path.join(os.path.realpath(servable_directory), servable_name)
    if os.path.isfile(root):  # a servable that is a model file, or the code of a network
        return spec.files if spec.factory is not None else (root,)
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
            near = errors.did_you_mean(os.path.basename(path), _names_in(os.path.dirname(path)))
            raise StartError(
                f"Load model failed, {_servable(servable_directory, servable_name)}, model file: "
                f"'{file}', version number {version}, load error details: '{path}' not exist{near}"
            )
        paths.append(path)
    return tuple(paths)


def config_path(servable_directory: str, servable_name: str, spec: DeclaredModel) -> str | None:
    """Return the absolute path of a model's configuration file; None if it has none.

    Raises StartError if it does not exist.
    """
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


def predict_method(
    model_key: str, signature: Signature, output_names: Collection[str] = ()
) -> Method:
    """Return the method "predict" of a bare model, with names from the model's signature.

    It returns the outputs `output_names`; all if there are none.
    """
    names = _unique_names(signature.inputs, "x")
    inputs = tuple(range(len(names)))
    outputs = tuple(range(len(inputs), len(inputs) + len(signature.outputs)))
    returned = [
        (name, slot)
        for name, slot, spec in zip(
            _unique_names(signature.outputs, "y"), outputs, signature.outputs, strict=True
        )
        if not output_names or spec.name in output_names
    ]
    stage = Stage(StageKind.MODEL, model_key, inputs, outputs, tag=f"Model '{model_key}'")
    return Method(
        name="predict",
        inputs=names,
        outputs=tuple(name for name, _ in returned),
        stages=(stage,),
        returns=tuple(slot for _, slot in returned),
        defaults={
            name: value
            for name, spec in zip(names, signature.inputs, strict=True)
            if spec.is_optional and (value := spec.zeros(spec.shape)) is not None
        },
    )


def _servable(servable_directory: str, servable_name: str) -> str:
    return f"servable directory: '{servable_directory}', servable name: '{servable_name}'"


def _names_in(directory: str) -> list[str]:
    return os.listdir(directory) if os.path.isdir(directory) else []


def _unique_names(specs: tuple[TensorSpec, ...], prefix: str) -> tuple[str, ...]:
    """Return distinct printable names, which a client can write."""
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
