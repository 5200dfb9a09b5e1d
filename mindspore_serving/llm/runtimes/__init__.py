"""Opening of runners in the runtimes, each imported when it is first used."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from mindspore_serving import extras
from mindspore_serving.errors import StartError
from mindspore_serving.llm.catalog import ENCODER_RUNTIMES, RUNTIMES
from mindspore_serving.llm.checkpoint.gguf.projector import choose_projector
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.options import check_encoder, check_runtime
from mindspore_serving.llm.parallel.expert_counts import experts_of
from mindspore_serving.llm.parallel.group import Grid, open_grid
from mindspore_serving.llm.parallel.links import Links
from mindspore_serving.llm.parallel.msrun import check_size
from mindspore_serving.llm.parallel.runner import open_ranks
from mindspore_serving.llm.runtimes.fitting import check_fits
from mindspore_serving.llm.runtimes.stages import LayerStage, StageRunner, has_dedicated_cores
from mindspore_serving.llm.step import EmbeddingRunner, EncoderRunner, HeadRunner, Runner

Open = Callable[[str | Path, EngineConfig], Runner]
OpenHead = Callable[[str | Path, EngineConfig], HeadRunner]
OpenPart = Callable[[str | Path, EngineConfig, Grid], LayerStage]
OpenEncoder = Callable[[str | Path, EngineConfig], EncoderRunner]


def open_runner(directory: str | Path, runtime: str, config: EngineConfig) -> Runner:
    """Open the model in `directory` in `runtime`.

    Raises StartError: an unknown runtime, a missing library, a model or an option that the runtime
    does not support.
    """
    check_runtime(config, runtime)
    check_size(config.num_ranks)
    if config.num_ranks > 1:
        return open_ranks(directory, runtime, config, open_rank)
    opener: Open = _import(runtime, RUNTIMES[runtime].opens)
    return opener(directory, config)


def open_head(directory: str | Path, runtime: str, config: EngineConfig) -> HeadRunner:
    """Open the prediction head of a model in `runtime`.  Raises as `open_runner`."""
    opener: OpenHead = _import(runtime, RUNTIMES[runtime].opens_head)
    return opener(directory, config)


def open_rank(
    directory: str | Path, runtime: str, config: EngineConfig, links: Links
) -> EmbeddingRunner:
    """Open the part of the model that the rank with `links` holds.  Raises as `open_runner`."""
    opener: OpenPart = _import(runtime, RUNTIMES[runtime].opens_rank)
    choose_projector(Path(directory), config.mmproj)
    if links.num_local < links.size:
        check_fits(directory, links.num_local / links.size)
    grid = open_grid(links, config)
    stage = opener(directory, config, grid)
    experts = experts_of(stage)
    if experts is not None:
        experts.forget()
    if config.pipeline_parallel == 1:
        return stage
    return StageRunner(stage, grid, overlaps=has_dedicated_cores(config, links.num_local))


def open_encoder(directory: str | Path, runtime: str, config: EngineConfig) -> EncoderRunner:
    """Open the encoder in `directory` in `runtime`.  Raises as `open_runner`."""
    check_encoder(config)
    check_runtime(config, runtime, ENCODER_RUNTIMES, " for a model that embeds")
    opener: OpenEncoder = _import(runtime, RUNTIMES[runtime].opens_encoder)
    return opener(directory, config)


def open_seq2seq(directory: str | Path, runtime: str, config: EngineConfig) -> Runner:
    """Open the encoder and the decoder in `directory` in `runtime`.  Raises as `open_runner`."""
    able = {name: row for name, row in RUNTIMES.items() if row.opens_seq2seq}
    check_runtime(config, runtime, able, " for a model with an encoder and a decoder")
    opener: Open = _import(runtime, RUNTIMES[runtime].opens_seq2seq)
    return opener(directory, config)


def _import(runtime: str, path: str) -> Any:
    module, _, function = path.partition(":")
    try:
        return getattr(import_module(module, __name__), function)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mindspore_serving"):
            raise
        raise StartError(extras.missing(error, f"runtime {runtime!r}")) from error
