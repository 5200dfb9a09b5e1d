"""MindFormers' `predict_*.yaml`: a language model whose files are where the settings say.

The engine reads the model's sizes, paths and sampling from it
(`llm.checkpoint.mindformers.settings`).  Here it is only found, and what has no effect is named.
"""

import os
from fnmatch import fnmatch
from typing import Any

from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.servable.foreign.model import ForeignModel
from mindspore_serving.servable.foreign.reading import read_text

PATTERN = "predict_*.yaml"
MAX_SIZE = 1 << 20  # bytes
_CHECKPOINTS = ("config.json", "servable_config.py")  # a directory with one is a model by itself
_DEVICES = ("data_parallel", "model_parallel", "pipeline_stage", "expert_parallel")


def find(path: str) -> str:
    """Return the settings at `path`, or the only ones in a directory that is no checkpoint."""
    if fnmatch(os.path.basename(path), PATTERN):
        return path if os.path.isfile(path) else ""
    if not os.path.isdir(path):
        return ""
    names = os.listdir(path)
    files = [name for name in names if fnmatch(name, PATTERN)]
    is_checkpoint = any(name in names for name in _CHECKPOINTS)
    return os.path.join(path, files[0]) if len(files) == 1 and not is_checkpoint else ""


def read(path: str) -> ForeignModel:
    """Return the model of the settings at `path`.

    Raises StartError for a file that cannot be read, or one of several in its directory.
    """
    from mindspore_serving.core.yaml_text import load  # a worker's environment may lack PyYAML

    directory, name = os.path.split(os.path.abspath(path))
    several = sorted(file for file in os.listdir(directory) if fnmatch(file, PATTERN))
    if len(several) > 1:
        raise StartError(
            f"{directory} has several {PATTERN} ({', '.join(several)}): put the one to serve into "
            "a directory of its own"
        )
    try:
        settings = load(read_text(path, MAX_SIZE), path)
    except InvalidInputs as error:
        raise StartError(str(error)) from None
    parallel = settings.get("parallel_config") if isinstance(settings, dict) else None
    return ForeignModel(
        "MindFormers",
        name,
        {"alias": os.path.splitext(name)[0].removeprefix("predict_")},
        without_effect=_without_effect(parallel),
        language_path=directory,
    )


def _without_effect(parallel: Any) -> tuple[str, ...]:
    sizes = parallel if isinstance(parallel, dict) else {}
    split = [f"{name} {sizes[name]}" for name in _DEVICES if sizes.get(name) not in (None, 1)]
    advice = "(--llm-option tensor_parallel and pipeline_parallel split a model)"
    return (f"parallel_config: {', '.join(split)} {advice}",) if split else ()
