"""Opens runners in the runtimes, each imported when it is asked for."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from mindspore_serving import extras
from mindspore_serving.errors import StartError
from mindspore_serving.llm.catalog import ENCODER_RUNTIMES, RUNTIMES
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.options import check_encoder, check_runtime, check_runtime_name
from mindspore_serving.llm.parallel.group import Grid, open_grid
from mindspore_serving.llm.parallel.links import Links
from mindspore_serving.llm.parallel.runner import open_ranks
from mindspore_serving.llm.runtimes.stages import LayerStage, StageRunner, has_own_cores
from mindspore_serving.llm.step import EmbeddingRunner, EncoderRunner, Runner

Open = Callable[[str | Path, EngineConfig], Runner]
OpenPart = Callable[[str | Path, EngineConfig, Grid], LayerStage]
OpenEncoder = Callable[[str | Path, EngineConfig], EncoderRunner]


def open_runner(directory: str | Path, runtime: str, config: EngineConfig) -> Runner:
    """The model in `directory`, ready to run in `runtime`.

    Raises StartError: an unknown runtime, no library, a model or an option that it cannot use.
    """
    check_runtime_name(runtime)
    check_runtime(config, runtime)
    if config.num_ranks > 1:
        return open_ranks(directory, runtime, config, open_rank)
    opener: Open = _import(runtime, RUNTIMES[runtime].opens)
    return opener(directory, config)


def open_rank(
    directory: str | Path, runtime: str, config: EngineConfig, links: Links
) -> EmbeddingRunner:
    """The part of the model that the rank with `links` holds.  Raises as `open_runner`."""
    opener: OpenPart = _import(runtime, RUNTIMES[runtime].opens_rank)
    grid = open_grid(links, config)
    own = opener(directory, config, grid)
    if config.pipeline_parallel == 1:
        return own
    return StageRunner(own, grid, overlaps=has_own_cores(config))


def open_encoder(directory: str | Path, runtime: str, config: EngineConfig) -> EncoderRunner:
    """The encoder in `directory`, ready to run in `runtime`.  Raises as `open_runner`."""
    check_runtime_name(runtime, ENCODER_RUNTIMES, " for a model that embeds")
    check_encoder(config)
    check_runtime(config, runtime)
    opener: OpenEncoder = _import(runtime, RUNTIMES[runtime].opens_encoder)
    return opener(directory, config)


def _import(runtime: str, place: str) -> Any:
    module, _, function = place.partition(":")
    try:
        return getattr(import_module(module, __name__), function)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mindspore_serving"):
            raise
        raise StartError(extras.missing(error, f"runtime {runtime!r}")) from error
