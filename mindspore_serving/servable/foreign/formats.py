"""Table of the formats of other servers, by the file that describes a model.

What of each has an effect is in docs/from_triton.md and the pages beside it.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

from mindspore_serving.core.servable_options import SERVABLE, ServableOptions
from mindspore_serving.errors import StartError
from mindspore_serving.servable.foreign import (
    mindformers,
    mlflow,
    mlserver,
    modelfile,
    peft,
    torchserve,
)
from mindspore_serving.servable.foreign.model import ForeignModel
from mindspore_serving.servable.loader import CONFIG_FILE

TRITON = "config.pbtxt"


def _find_triton(path: str) -> str:
    """Return the config.pbtxt in the directory `path`; "" if there is none."""
    file = os.path.join(path, TRITON)
    return file if os.path.isfile(file) else ""


def _read_triton(file: str) -> ForeignModel:
    from mindspore_serving.servable.foreign import triton  # Triton's schema: slow to import

    return triton.read(file)


FORMATS: tuple[tuple[Callable[[str], str], Callable[[str], ForeignModel]], ...] = (
    (_find_triton, _read_triton),
    (modelfile.find, modelfile.read),
    (peft.find, peft.read),
    (mlserver.find, mlserver.read),
    (torchserve.find, torchserve.read),
    (mindformers.find, mindformers.read),
    (mlflow.find, mlflow.read),
)
"""For each server: find the description of a model at a path, "" if there is none; and read it."""


def is_described(path: str) -> bool:
    """Return whether something at `path` describes a model of another server; reads nothing."""
    return any(find(path) for find, _ in FORMATS)


def read(path: str) -> ForeignModel | None:
    """Return the model of another server at `path`; None if nothing there describes one.

    A servable_config.py beside the description replaces it.  Raises StartError for a description
    that is wrong, or that asks for what this server does not do.
    """
    if os.path.isfile(os.path.join(path, CONFIG_FILE)):
        return None
    for find, reader in FORMATS:
        if file := find(path):
            model = reader(file)
            _check_options(model)
            return model
    return None


def language_model(path: str) -> ForeignModel | None:
    """Return the language model that another server's file at `path` describes; None if none does.

    Only such a file is read.  Raises StartError as `read`.
    """
    return read(path) if is_language_model(path) else None


def is_language_model(path: str) -> bool:
    """Return whether another server's file at `path` describes a language model; reads nothing."""
    return any(module.find(path) for module in (modelfile, mindformers, peft))


def note(deployment: ServableOptions) -> str:
    """Return a line about what has no effect in the description of a servable; "" for none."""
    path = os.path.join(deployment.servable_directory, deployment.servable_name)
    model = read(path)
    return "" if model is None else model.note(deployment.name)


def complete(model: ForeignModel | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `model` that replace values of `options`, which have the default."""
    if model is None:
        return {}
    return {
        name: value
        for name, value in model.options.items()
        if options[name] in (SERVABLE[name].default, None, ())
    }


def _check_options(model: ForeignModel) -> None:
    for name, value in model.options.items():
        row = SERVABLE[name]
        if row.kind in (int, float) and not row.has(value):
            raise StartError(
                f"{model.file}: {name} would be {value}, expected {row.accepted}; set it by serve"
            )
