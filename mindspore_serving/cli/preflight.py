"""Checks of libraries and interpreters, before `serve` opens a port or starts a process."""

import os
from importlib.util import find_spec

from mindspore_serving import backends, extras, file_check
from mindspore_serving.backends import formats
from mindspore_serving.core.model_card import UPSTREAM
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.catalog import AUTO, ENGINES, NAMES, OPENVINO, OURS
from mindspore_serving.process.interpreter import CURRENT, find_base_python, find_interpreter
from mindspore_serving.servable import bare, repository
from mindspore_serving.servable.backend_choice import check_backend
from mindspore_serving.servable.loader import CONFIG_FILE

# Library of a runtime, where its name is another.
_LIBRARIES = {"mindir": "mindspore", "native": "llvmlite", "combined": "llvmlite", AUTO: OPENVINO}
_LANGUAGE = ("tokenizers", "jinja2")


def check_interpreter(python: str, environment: str) -> None:
    """Check that `python` can run workers, or can be the base of an `environment`; "" is ours.

    Raises StartError.
    """
    if environment:
        find_base_python(python or CURRENT.path)
    elif python:
        find_interpreter(python)


def check_library(
    directory: str, name: str, runtime: str | None, backend: str | None, engine: str = ""
) -> None:
    """Check that the library of a servable is installed.

    `runtime` and `engine` are those of language models, None and "" for the default; `backend` is
    that of model files. The libraries of a servable_config.py are unknown before it runs. Raises
    StartError if the library is missing or ambiguous.
    """
    path = os.path.join(directory, name)
    checkpoint = repository.language_model_path(path)
    if checkpoint and file_check.find_voice(checkpoint):
        formats.require("onnx")
    elif checkpoint:
        runtime = _engine(engine) or runtime or AUTO
        for module in (*_LANGUAGE, _LIBRARIES.get(runtime, runtime)):
            _check(module)
    elif not os.path.isfile(os.path.join(path, CONFIG_FILE)):
        version = max(bare.versions(path), default=1)
        spec = repository.bare_model(path, version, allow_pickle=True)
        formats.require(backends.resolve(spec.format, check_backend(backend, spec.format)))


def _engine(name: str) -> str:
    """Return the library of another engine; "" for ours."""
    if name and name not in NAMES:
        raise InvalidInputs(f"engine is {name!r}, expected one of {', '.join(NAMES)}")
    if name == UPSTREAM:
        raise InvalidInputs(
            f"engine {name!r} serves no files: use --upstream URL instead of a PATH"
        )
    return ENGINES[name].library if name and name != OURS else ""


def _check(module: str) -> None:
    if find_spec(module) is None:
        error = ModuleNotFoundError(name=module)
        raise StartError(extras.missing(error, "a language model"))
