"""Engines of other libraries for language models, each imported when it is requested."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from mindspore_serving import extras
from mindspore_serving.errors import StartError, did_you_mean
from mindspore_serving.llm.catalog import DIRECTORY, ENGINES, GGUF
from mindspore_serving.llm.checkpoint.gguf.files import is_gguf
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engines.base import AnyEngine, EngineModel


def open_engine(
    name: str, model: EngineModel, config: EngineConfig, options: Mapping[str, Any]
) -> AnyEngine:
    """Open the model in the engine `name`, with `options` of that engine.

    Raises StartError if its library is missing, or if it has no such option.
    """
    row = ENGINES[name]
    if (GGUF if is_gguf(model.directory) else DIRECTORY) not in row.reads:
        raise StartError(
            f"engine {name!r} reads {' or '.join(row.reads)}, and {str(model.directory)!r} is "
            "neither"
        )
    module, _, function = row.opens.partition(":")
    try:
        opener = getattr(import_module(f"{__name__}.{module}"), function)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mindspore_serving"):
            raise
        raise StartError(extras.missing(error, f"engine {name!r}")) from error
    engine: AnyEngine = opener(model, config, options)
    return engine


def check_options(name: str, options: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raise StartError naming an option that the engine does not know."""
    for option in options:
        if option not in known:
            near = did_you_mean(option, known)
            raise StartError(f"engine {name!r} has no option {option!r} (engine_options){near}")
