"""Which runtimes there are, and their own options.  Imports one when it is asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from mindspore_serving import extras
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.communicator import Grid, open_grid
from mindspore_serving.llm.parallel.links import Links
from mindspore_serving.llm.parallel.runner import open_ranks
from mindspore_serving.llm.runtimes.stages import Stage, StageRunner, has_own_cores
from mindspore_serving.llm.step import EmbeddingRunner, EncoderRunner, Runner

Open = Callable[[str | Path, EngineConfig], Runner]
OpenPart = Callable[[str | Path, EngineConfig, Grid], Stage]
OpenEncoder = Callable[[str | Path, EngineConfig], EncoderRunner]


@dataclass(frozen=True, slots=True)
class Runtime:
    """Where a runtime's functions are, as "module:function"; a module of this package begins with a
    dot.

    `opens_encoder` is "" if it has no models that embed and do not generate, `opens_rank` if it
    cannot compute a part of one.  The flags say whether it takes that option of `EngineConfig`,
    whether it takes pictures, whether quantised weights stay integers, and whether its cache blocks
    can be kept on disk.
    """

    opens: str
    opens_encoder: str = ""
    opens_rank: str = ""
    has_adapters: bool = False
    has_graph_mode: bool = False
    is_deterministic: bool = False
    has_pictures: bool = False
    keeps_integers: bool = False
    has_draft: bool = True
    stores_blocks: bool = False


RUNTIMES: dict[str, Runtime] = {
    "openvino": Runtime(
        ".openvino.opening:open_runner",
        ".openvino.encoder:open_encoder",
        ".openvino.opening:open_rank",
        has_adapters=True,
        has_pictures=True,
        stores_blocks=True,
        keeps_integers=True,
    ),
    "torch": Runtime(
        ".torch.opening:open_runner",
        ".torch.encoder:open_encoder",
        ".torch.opening:open_rank",
        has_adapters=True,
        is_deterministic=True,
        has_pictures=True,
        stores_blocks=True,
    ),
    "mindspore": Runtime(".mindspore.opening:open_runner", has_graph_mode=True),
    "mindir": Runtime(".mindir.runner:open_runner", opens_rank=".mindir.runner:open_rank"),
    "agents": Runtime(".agents:open_runner", has_draft=False),
}
# Options that not every runtime or model takes, and whether a runtime does.
OPTIONS: dict[str, Callable[[Runtime], bool]] = {
    "adapters": lambda row: row.has_adapters,
    "max_loras": lambda row: row.has_adapters,
    "graph_mode": lambda row: row.has_graph_mode,
    "prefix_cache_dir": lambda row: row.stores_blocks,
    "deterministic": lambda row: row.is_deterministic,
    "draft": lambda row: row.has_draft,
    "tensor_parallel": lambda row: bool(row.opens_rank),
    "pipeline_parallel": lambda row: bool(row.opens_rank),
}
ENCODER_RUNTIMES = {name: row for name, row in RUNTIMES.items() if row.opens_encoder}


def open_runner(directory: str | Path, runtime: str, config: EngineConfig) -> Runner:
    """The model in `directory`, ready to run in `runtime`.

    Raises StartError: an unknown runtime, no library, a model or an option that it cannot use.
    """
    row = _find(runtime, RUNTIMES)
    for option, has_it in OPTIONS.items():
        if _is_given(config, option) and not has_it(row):
            accepted = [name for name, row in RUNTIMES.items() if has_it(row)]
            raise StartError(
                f"runtime {runtime!r} has no {option}, expected one of {', '.join(accepted)}"
            )
    if config.num_ranks > 1:
        return open_ranks(directory, runtime, config, open_rank)
    opener: Open = _import(runtime, row.opens)
    return opener(directory, config)


def open_rank(
    directory: str | Path, runtime: str, config: EngineConfig, links: Links
) -> EmbeddingRunner:
    """The part of the model that the rank with `links` holds.  Raises as `open_runner`."""
    opener: OpenPart = _import(runtime, _find(runtime, RUNTIMES).opens_rank)
    grid = open_grid(links, config)
    own = opener(directory, config, grid)
    if config.pipeline_parallel == 1:
        return own
    return StageRunner(own, grid, overlaps=has_own_cores(config))


def open_encoder(directory: str | Path, runtime: str, config: EngineConfig) -> EncoderRunner:
    """The encoder in `directory`, ready to run in `runtime`.  Raises as `open_runner`."""
    row = _find(runtime, ENCODER_RUNTIMES, " for a model that embeds")
    for option in OPTIONS:
        if _is_given(config, option) and option != "max_loras":  # room that nobody needs
            raise StartError(f"{option} is an option of models that generate; this one embeds")
    opener: OpenEncoder = _import(runtime, row.opens_encoder)
    return opener(directory, config)


def _is_given(config: EngineConfig, option: str) -> bool:
    return bool(getattr(config, option) != getattr(EngineConfig(), option))


def _find(name: str, rows: Mapping[str, Runtime], purpose: str = "") -> Runtime:
    if name not in rows:
        raise StartError(f"runtime is {name!r}, expected one of {', '.join(rows)}{purpose}")
    return rows[name]


def _import(runtime: str, place: str) -> Any:
    module, _, function = place.partition(":")
    try:
        return getattr(import_module(module, __name__), function)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mindspore_serving"):
            raise
        raise StartError(extras.missing(error, f"runtime {runtime!r}")) from error
