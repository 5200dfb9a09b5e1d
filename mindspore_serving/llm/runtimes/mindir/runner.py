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
from mindspore_serving.llm.runtimes.capacity import (
    FLOAT32_ALONE,
    cache_block_bytes,
    check_options,
    runner_limits,
)
from mindspore_serving.llm.runtimes.layout import Layout, LimitedRunner, RunnerLimits, lay_out
from mindspore_serving.llm.runtimes.mindir.cache import F32, I32, BlockCache, GraphCall
from mindspore_serving.llm.runtimes.mindir.export_weights import exportable
from mindspore_serving.llm.runtimes.mindir.graphs import Graphs
from mindspore_serving.llm.runtimes.mindir.library import CPU, use_device
from mindspore_serving.llm.step import Logits, Row, Step


class DenseGraphs(Protocol):
    """The graphs of `export_cell.DecoderCell`, for whatever shapes they take."""

    def calls(self, layout: Layout) -> Iterable[GraphCall]:
        """The calls that compute `layout`.  Raises ServingError for what no graph takes."""
        ...

    def run(self, inputs: Sequence[I32 | F32]) -> tuple[F32, F32, F32]:
        """(logits, new keys, new values) of a call.  Raises ServingError."""
        ...


class DenseRunner(LimitedRunner):
    """A `Runner`.  Its cache is allocated when it is made."""

    def __init__(self, spec: ModelSpec, graphs: DenseGraphs, limits: RunnerLimits) -> None:
        super().__init__(limits)
        self._window = spec.windows[0]
        self._graphs: DenseGraphs | None = graphs
        self._cache = BlockCache(spec, limits.num_blocks, limits.block_size)

    def run(self, step: Step) -> Logits:
        """As `Runner.run`.  Raises ServingError, also for what MindSpore raises.

        No row may read from the cache what another row of the same step writes.
        """
        if self._graphs is None:
            raise ServingError("the runner is closed")
        layout = lay_out(step, self._limits)
        calls = list(self._graphs.calls(layout))
        if step.copies:
            self._cache.copy(step.copies)
        logits = np.zeros((len(layout.rows), self.vocab_size), np.float32)
        for call in calls:
            self._compute(self._graphs, layout, call, logits)
        return logits

    def close(self) -> None:
        """Drop cache and weights.  A closed runner refuses every step."""
        self._graphs = None
        self._cache.clear()

    def _compute(
        self, graphs: DenseGraphs, layout: Layout, call: GraphCall, logits: Logits
    ) -> None:
        rows, places = call.wanted(layout.rows)
        inputs: list[I32 | F32] = [
            call.pick(layout.token_ids),
            call.pick(layout.positions),
            # The graph needs a row: where no logits are wanted, those of one are dropped.
            rows if len(rows) else np.zeros(1, np.int32),
            call.mask(self.block_size, self._window),
            *self._cache.gather(call.blocks(self.block_size)),
        ]
        try:
            found, keys, values = graphs.run(inputs)
        except ServingError as error:
            raise ServingError(f"a call of {len(call.spans)} sequences failed: {error}") from error
        self._cache.write(layout.slots, call, keys, values)
        logits[places] = found[: len(rows)]


def open_runner(directory: str | Path, config: EngineConfig) -> DenseRunner:
    """The MindIR files in `directory`, loaded and compiled, ready to run.

    Of `config`: `device` "auto" or "cpu"; `dtype` and `kv_cache_dtype` "auto" or "f32".
    Raises StartError: an unknown option, files that are missing, broken or do not fit, no memory.
    """
    check_options(config, "mindir", FLOAT32_ALONE)
    directory = Path(directory)
    spec = exportable(read_json(directory / CONFIG), config.max_model_len)
    use_device(CPU)
    graphs = Graphs(directory, spec)
    _compile(spec, graphs)
    limits = runner_limits(config, spec, cache_block_bytes(config, spec, element_size=4))
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
