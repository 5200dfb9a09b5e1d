"""Language models as MindIR files, on CPUs in float32: what `llm.export_mindir` writes.

The graphs have no state.  Keys and values are kept here in blocks, and those of a call's sequences
are gathered from their blocks into its inputs: sequences with one new token go into one call of
the decode graph, the others into calls of the prefill graph, by their number of new tokens.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.runtimes.capacity import capacity, free_main_memory
from mindspore_serving.llm.runtimes.layout import Layout, Limits, check_copies, lay_out
from mindspore_serving.llm.runtimes.mindir_cache import F32, I32, BlockCache, Call, calls
from mindspore_serving.llm.runtimes.mindir_graphs import Graphs
from mindspore_serving.llm.runtimes.mindspore_library import use_cpu
from mindspore_serving.llm.step import Logits, Row, Step
from mindspore_serving.llm.weights import read_json

ACCEPTED = {
    "device": ("auto", "cpu"),
    "dtype": ("auto", "f32"),
    "kv_cache_dtype": ("auto", "f32"),
    "quantization": (None,),
    "num_threads": (None,),
}


def open_runner(directory: str | Path, config: EngineConfig) -> "MindirRunner":
    """The MindIR files in `directory`, loaded and compiled, ready to run.

    Of `config`: `device` "auto" or "cpu"; `dtype` and `kv_cache_dtype` "auto" or "f32".
    Raises StartError: an option it has not, files that are missing, broken or not of config.json,
    no memory.
    """
    from mindspore_serving.llm.export_mindir import exportable

    for option, accepted in ACCEPTED.items():
        value = getattr(config, option)
        if value not in accepted:
            names = " or ".join(map(repr, accepted))
            raise StartError(f"{option} is {value!r}, but the mindir runtime accepts {names}")
    directory = Path(directory)
    spec = exportable(read_json(directory / "config.json"))
    use_cpu()
    graphs = Graphs(directory, spec)
    _compile(spec, graphs)
    held = capacity(config, spec, element_size=4, free_memory=free_main_memory())
    limits = Limits(config.block_size, held.num_blocks, spec.vocab_size, held.max_model_len)
    return MindirRunner(spec, graphs, limits)


class MindirRunner:
    """A `Runner`.  Its cache is allocated when it is made."""

    def __init__(self, spec: ModelSpec, graphs: Graphs, limits: Limits) -> None:
        self._limits = limits
        self._window = spec.windows[0]
        self._graphs: Graphs | None = graphs
        self._cache = BlockCache(spec, limits.num_blocks, limits.block_size)
        self.block_size = limits.block_size
        self.num_blocks = limits.num_blocks
        self.vocab_size = limits.vocab_size
        self.max_model_len = limits.max_model_len

    def run(self, step: Step) -> Logits:
        """As `Runner.run`.  Raises ServingError, also for what MindSpore raises.

        No row may read from the cache what another row of the same step writes.
        """
        if self._graphs is None:
            raise ServingError("the runner is closed")
        layout = lay_out(step, self._limits)
        check_copies(step, self.num_blocks)
        if step.copies:
            self._cache.copy(step.copies)
        logits = np.zeros((len(layout.rows), self.vocab_size), np.float32)
        for call in calls(layout):
            self._compute(self._graphs, layout, call, logits)
        return logits

    def close(self) -> None:
        """Drop cache and weights.  A closed runner refuses every step."""
        self._graphs = None
        self._cache.clear()

    def _compute(self, graphs: Graphs, layout: Layout, call: Call, logits: Logits) -> None:
        rows, places = call.wanted(layout.rows)
        inputs: list[I32 | F32] = [
            call.pick(layout.token_ids),
            call.pick(layout.positions),
            # The graph wants a row, so where no logits are wanted, those of one are dropped.
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


def _compile(spec: ModelSpec, graphs: Graphs) -> None:
    """Compile both graphs by computing a text; StartError if they do not fit config.json."""
    runner = MindirRunner(spec, graphs, Limits(2, 2, spec.vocab_size, 3))
    steps: Sequence[Row] = (Row([0, 0], 0, [0], 1), Row([0], 2, [0, 1], 1))
    for row in steps:
        try:
            runner.run(Step((row,)))
        except (ServingError, ValueError) as error:
            raise StartError(f"the MindIR files do not fit config.json: {error}") from error
