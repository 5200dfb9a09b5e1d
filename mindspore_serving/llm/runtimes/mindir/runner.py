"""A runner over graphs without state: those of MindIR files, or compiled in this process.

Keys and values are kept here in blocks.  Those of a call's sequences are gathered into its inputs,
and its outputs are written back.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.checkpoint.model_files import CONFIG, read_json
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.parallel.group import Grid
from mindspore_serving.llm.parallel.part import cut_layers, rank_options
from mindspore_serving.llm.runtimes.capacity import (
    cache_block_bytes,
    free_main_memory,
    runner_limits,
)
from mindspore_serving.llm.runtimes.layout import Layout, LimitedRunner, RunnerLimits, lay_out
from mindspore_serving.llm.runtimes.mindir.cache import F32, I32, BlockCache, GraphCall
from mindspore_serving.llm.runtimes.mindir.cut import check_cut, check_whole, rank_directory
from mindspore_serving.llm.runtimes.mindir.export_weights import exportable
from mindspore_serving.llm.runtimes.mindir.graphs import Graphs
from mindspore_serving.llm.runtimes.mindir.library import CPU, use_device
from mindspore_serving.llm.step import Logits, Row, Step, Vectors


class DenseGraphs(Protocol):
    """The graphs of `export_cell.DecoderCell`, for whatever shapes they take."""

    def calls(self, layout: Layout) -> Iterable[GraphCall]:
        """The calls that compute `layout`.  Raises ServingError for what no graph takes."""
        ...

    def run(self, inputs: Sequence[I32 | F32]) -> tuple[F32, F32, F32]:
        """(logits, new keys, new values) of a call.  Raises ServingError."""
        ...


class DenseRunner(LimitedRunner):
    """A `Runner`, or a `LayerStage` of one.  Its cache is allocated when it is made."""

    def __init__(self, spec: ModelSpec, graphs: DenseGraphs, limits: RunnerLimits) -> None:
        super().__init__(limits)
        self.width = spec.hidden_size
        self._window = spec.windows[0]
        self._is_first, self._is_last = spec.is_first, spec.is_last
        self._graphs: DenseGraphs | None = graphs
        self._cache = BlockCache(spec, limits.num_blocks, limits.block_size)

    def run(self, step: Step) -> Logits:
        """As `Runner.run`.  Raises ServingError, also for what MindSpore raises.

        No row may read from the cache what another row of the same step writes.
        """
        return self.compute(step)

    def compute(self, step: Step, given: Vectors | None = None, *, embeds: bool = False) -> Vectors:
        """As `LayerStage.compute`, never with `embeds`: the graphs have no vectors."""
        if self._graphs is None:
            raise ServingError("the runner is closed")
        layout = lay_out(step, self._limits)
        calls = list(self._graphs.calls(layout))
        if step.copies:
            self._cache.copy(step.copies)
        values: I32 | F32 = layout.token_ids.astype(np.int32)
        if not self._is_first:
            values = np.zeros((len(values), self.width), np.float32) if given is None else given
        rows = layout.rows if self._is_last else np.arange(len(values))
        width = self.vocab_size if self._is_last else self.width
        found = np.zeros((len(rows), width), np.float32)
        for call in calls:
            wanted, places = call.wanted(rows)
            found[places] = self._call(layout, call, values, wanted)[: len(wanted)]
        return found

    def close(self) -> None:
        """Drop cache and weights.  A closed runner refuses every step."""
        self._graphs = None
        self._cache.clear()

    def _call(self, layout: Layout, call: GraphCall, values: I32 | F32, rows: I32) -> F32:
        """What the graphs compute for `rows` of the call's tokens, for one if there are none."""
        assert self._graphs is not None
        inputs: list[I32 | F32] = [
            call.pick(values),
            call.pick(layout.positions.astype(np.int32)),
            # The graph needs a row: where no logits are wanted, those of one are dropped.
            rows if len(rows) else np.zeros(1, np.int32),
            call.mask(self.block_size, self._window),
            *self._cache.gather(call.blocks(self.block_size)),
        ]
        try:
            found, keys, new_values = self._graphs.run(inputs)
        except ServingError as error:
            raise ServingError(f"a call of {len(call.spans)} sequences failed: {error}") from error
        self._cache.write(layout.slots, call, keys, new_values)
        return found


def open_runner(directory: str | Path, config: EngineConfig) -> DenseRunner:
    """The MindIR files in `directory`, loaded and compiled, ready to run.

    Of `config`: `device` "auto" or "cpu"; `dtype` and `kv_cache_dtype` "auto" or "f32".
    Raises StartError: an unknown option, files that are missing, broken or do not fit, no memory.
    """
    directory = Path(directory)
    check_whole(directory)
    spec = exportable(read_json(directory / CONFIG), config.max_model_len)
    return _open(directory, spec, config)


def open_rank(directory: str | Path, config: EngineConfig, grid: Grid) -> DenseRunner:
    """The stage that this rank of `grid` computes, of files that are cut for as many ranks; as
    `open_runner`.
    """
    directory = Path(directory)
    if config.tensor_parallel > 1:
        raise StartError(
            f"tensor_parallel is {config.tensor_parallel}, but MindIR files are cut by layers: "
            f"give pipeline_parallel={config.num_ranks} alone"
        )
    stages = grid.stages
    check_cut(directory, stages.size)
    whole = exportable(read_json(directory / CONFIG), config.max_model_len)
    spec = cut_layers(whole, stages.rank, stages.size)
    own = rank_directory(directory, stages.rank)
    return _open(own, spec, rank_options(config), grid)


def _open(
    directory: Path, spec: ModelSpec, config: EngineConfig, grid: Grid | None = None
) -> DenseRunner:
    """The files in `directory`, which compute `spec`."""
    use_device(CPU)
    graphs = Graphs(directory, spec)
    _compile(spec, graphs)
    block_bytes = cache_block_bytes(config, spec, element_size=4)
    free = free_main_memory() // (grid.everyone.size if grid else 1)
    limits = runner_limits(config, spec, block_bytes, free_memory=free)
    if grid:
        limits = limits.agreed(grid.everyone.minimum)
    return DenseRunner(spec, graphs, limits)


def _compile(spec: ModelSpec, graphs: Graphs) -> None:
    """Compile both graphs by computing a text; StartError if they do not fit config.json."""
    runner = DenseRunner(spec, graphs, RunnerLimits(2, 2, spec.vocab_size, 3))
    steps: Sequence[Row] = (Row([0, 0], 0, [0], 1), Row([0], 2, [0, 1], 1))
    for row in steps:
        try:
            runner.run(Step((row,)))
        except (ServingError, ValueError) as error:
            raise StartError(f"the MindIR files do not fit config.json: {error}") from error
