"""Runner over stateless graphs: those of MindIR files, or compiled in this process.

Keys and values are kept here in blocks.  Those of a call's sequences are gathered into its inputs,
and its outputs are written back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
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
    runner_limits,
)
from mindspore_serving.llm.runtimes.layout import Layout, LimitedRunner, RunnerLimits, lay_out
from mindspore_serving.llm.runtimes.main_memory import read_main_memory
from mindspore_serving.llm.runtimes.mindir.cache import F32, I32, BlockCache, GraphCall
from mindspore_serving.llm.runtimes.mindir.cut import check_cut, check_not_split, rank_directory
from mindspore_serving.llm.runtimes.mindir.export_weights import load_exportable_spec
from mindspore_serving.llm.runtimes.mindir.graphs import Graphs
from mindspore_serving.llm.runtimes.mindir.library import CPU, use_device
from mindspore_serving.llm.runtimes.mindir.paged import PagedRunner, open_paged
from mindspore_serving.llm.runtimes.mindir.paged_files import find_paged_files
from mindspore_serving.llm.step import Logits, Row, Step, Vectors


class DenseGraphs(Protocol):
    """Graphs of `export_cell.DecoderCell`, for the shapes that they accept."""

    def calls(self, layout: Layout) -> Iterable[GraphCall]:
        """Return the calls that compute `layout`.  Raises ServingError if no graph fits."""
        ...

    def run(self, inputs: Sequence[I32 | F32]) -> tuple[F32, F32, F32]:
        """Return (logits, new keys, new values) of a call.  Raises ServingError."""
        ...


class DenseRunner(LimitedRunner):
    """A `Runner`, or a `LayerStage` of one; its cache is allocated when it is created."""

    def __init__(self, spec: ModelSpec, graphs: DenseGraphs, limits: RunnerLimits) -> None:
        super().__init__(limits)
        self.received_width = self.sent_width = spec.hidden_size
        self._window = spec.windows[0]
        self._is_first, self._is_last = spec.is_first, spec.is_last
        self._graphs: DenseGraphs | None = graphs
        self._cache = BlockCache(spec, limits.num_blocks, limits.block_size)
        self.cache_memory = replace(limits.memory, can_release=True)

    def run(self, step: Step) -> Logits:
        """Run a step as `Runner.run` does.  Raises ServingError, also for MindSpore's errors.

        No row may read from the cache what another row of the same step writes.
        """
        return self.compute(step)

    def compute(
        self, step: Step, hidden_states: Vectors | None = None, *, embeds: bool = False
    ) -> Vectors:
        """Run a step as `LayerStage.compute` does, without `embeds`: the graphs have no vectors."""
        if self._graphs is None:
            raise ServingError("the runner is closed")
        layout = lay_out(step, self._limits)
        calls = list(self._graphs.calls(layout))
        if step.copies:
            self._cache.copy(step.copies)
        values: I32 | F32 = layout.token_ids.astype(np.int32)
        if not self._is_first:
            values = (
                np.zeros((len(values), self.received_width), np.float32)
                if hidden_states is None
                else hidden_states
            )
        rows = layout.rows if self._is_last else np.arange(len(values))
        width = self.vocab_size if self._is_last else self.sent_width
        output = np.zeros((len(rows), width), np.float32)
        for call in calls:
            graph_rows, indices = call.locate(rows)
            output[indices] = self._call(layout, call, values, graph_rows)[: len(graph_rows)]
        return output

    def release_blocks(self, blocks: Sequence[int]) -> None:
        """Return the memory of `blocks` to the system."""
        self._cache.release(blocks)

    def close(self) -> None:
        """Drop cache and weights.  A closed runner refuses every step."""
        self._graphs = None
        self._cache.clear()

    def _call(self, layout: Layout, call: GraphCall, values: I32 | F32, rows: I32) -> F32:
        """Return the graph's output for `rows` of the call's tokens, or for one row if none."""
        assert self._graphs is not None
        inputs: list[I32 | F32] = [
            call.pick(values),
            call.pick(layout.positions.astype(np.int32)),
            # The graph needs a row: if no logits are requested, those of one row are dropped.
            rows if len(rows) else np.zeros(1, np.int32),
            call.mask(self.block_size, self._window),
            *self._cache.gather(call.blocks(self.block_size)),
        ]
        try:
            output, keys, new_values = self._graphs.run(inputs)
        except ServingError as error:
            raise ServingError(f"a call of {len(call.spans)} sequences failed: {error}") from error
        self._cache.write(layout.slots, call, keys, new_values)
        return output


def open_runner(directory: str | Path, config: EngineConfig) -> DenseRunner | PagedRunner:
    """Open the MindIR files in `directory`, of export_mindir or llm-serving, loaded and compiled.

    Of `config`: `device` "auto" or "cpu", or "ascend" for files of llm-serving; `dtype` and
    `kv_cache_dtype` "auto" or "f32".

    Raises StartError: an unknown option, files that are missing, broken or do not fit, not enough
    memory.
    """
    directory = Path(directory)
    check_not_split(directory)
    if files := find_paged_files(directory):
        return open_paged(directory, files, config)
    if config.device == "ascend":
        raise StartError(
            "device is 'ascend', but the files of export_mindir compute on CPUs: on Ascend serve "
            "the checkpoint with the runtime mindspore"
        )
    spec = load_exportable_spec(read_json(directory / CONFIG), config.max_model_len)
    return _open(directory, spec, config)


def open_rank(directory: str | Path, config: EngineConfig, grid: Grid) -> DenseRunner:
    """Open the stage of this rank of `grid`, from files that are split over as many ranks.

    Raises StartError as `open_runner`.
    """
    directory = Path(directory)
    if config.tensor_parallel > 1:
        raise StartError(
            f"tensor_parallel is {config.tensor_parallel}, but MindIR files are split by layers: "
            f"give only pipeline_parallel={config.num_ranks}"
        )
    stages = grid.stages
    check_cut(directory, stages.size)
    full_spec = load_exportable_spec(read_json(directory / CONFIG), config.max_model_len)
    spec = cut_layers(full_spec, stages.rank, stages.size)
    rank_files = rank_directory(directory, stages.rank)
    return _open(rank_files, spec, rank_options(config), grid)


def _open(
    directory: Path, spec: ModelSpec, config: EngineConfig, grid: Grid | None = None
) -> DenseRunner:
    """Open the files in `directory`, which compute `spec`."""
    use_device(CPU)
    graphs = Graphs(directory, spec)
    _compile(spec, graphs)
    block_bytes = cache_block_bytes(config, spec, element_size=4)
    num_ranks = grid.everyone.size if grid else 1
    limits = runner_limits(config, spec, block_bytes, read_main_memory(), num_ranks)
    if grid:
        limits = limits.agreed(grid.everyone.minimum)
    return DenseRunner(spec, graphs, limits)


def _compile(spec: ModelSpec, graphs: Graphs) -> None:
    """Compile both graphs by computing a text.  Raises StartError if they do not fit."""
    runner = DenseRunner(spec, graphs, RunnerLimits(2, 2, spec.vocab_size, 3))
    steps: Sequence[Row] = (Row([0, 0], 0, [0], 1), Row([0], 2, [0, 1], 1))
    for row in steps:
        try:
            runner.run(Step((row,)))
        except (ServingError, ValueError) as error:
            raise StartError(f"the MindIR files do not fit config.json: {error}") from error
