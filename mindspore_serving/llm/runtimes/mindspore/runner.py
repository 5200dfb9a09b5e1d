"""The two graphs of a model, compiled once, and the runner of their steps."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from mindspore_serving import log
from mindspore_serving.backends.mindir import LOCK  # one for the process
from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.models import Decoder
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.progress import progress
from mindspore_serving.llm.runtimes.adapters import Changes
from mindspore_serving.llm.runtimes.capacity import (
    check_logits,
    first_step,
)
from mindspore_serving.llm.runtimes.layout import (
    Layout,
    LimitedRunner,
    RunnerLimits,
    TokenSpan,
    lay_out,
)
from mindspore_serving.llm.runtimes.mindir.library import ASCEND, CPU, mindspore
from mindspore_serving.llm.runtimes.mindspore import nodes, recording
from mindspore_serving.llm.runtimes.mindspore.best import BestChoices
from mindspore_serving.llm.runtimes.mindspore.cache import DeviceCache
from mindspore_serving.llm.runtimes.mindspore.cell import CacheShape, compile_graph
from mindspore_serving.llm.runtimes.mindspore.inputs import (
    GraphInputs,
    graph_inputs,
    kernel_mask,
    similar_spans,
)
from mindspore_serving.llm.runtimes.mindspore.lora import (
    AdapterUses,
    DeviceAdapters,
    adapter_columns,
)
from mindspore_serving.llm.runtimes.mindspore.primitives.contracts import SOC_310P
from mindspore_serving.llm.runtimes.mindspore.weights import GraphWeights
from mindspore_serving.llm.step import BestLogits, Logits, Row, Step, Vectors

T = TypeVar("T")

LOGITS, HIDDEN = 0, 1  # outputs of a graph
CACHED = frozenset({"reshape_and_cache", "paged_attention"})


@dataclass(frozen=True, slots=True)
class GraphTarget:
    """A device: MindSpore's name, the operators of its graphs, and the dtype of its weights.

    The operators in `composed` are composed of plain ones.
    """

    name: str
    filling: str
    dtype: str
    composed: frozenset[str] = frozenset()
    soc: str = ""

    @property
    def is_fractal(self) -> bool:
        """True for a SoC that reads weights and cache in tiles, and complete masks."""
        return self.soc == SOC_310P


TARGETS = {
    "cpu": GraphTarget(CPU, nodes.COMPOSED, "float32"),
    "ascend": GraphTarget(ASCEND, nodes.ASCEND, "bfloat16"),
}


class PhaseGraphs:
    """The graphs of all phases over one set of parameters.

    With `keeps_latent` the cache of latent attention has latent vectors.
    """

    def __init__(
        self, spec: ModelSpec, decoder: Decoder, weights: GraphWeights, target: GraphTarget, *,
        keeps_latent: bool = False,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.target = target
        self.dtype = getattr(mindspore, target.dtype)
        self.weights = weights
        self.layers = tuple(spec.attention_layers)
        self.keeps_latent = keeps_latent
        self.has_chunks = keeps_latent and target.filling == nodes.ASCEND
        self._decoder = decoder
        self._uses: AdapterUses = {}
        self._graphs: dict[tuple[str, bool], recording.RecordedGraph] = {}
        self._cells: dict[tuple[str, bool], Any] = {}
        self.make_ops: Callable[..., recording.GraphOps] = recording.GraphOps

    def shapes(self, block_size: int) -> list[CacheShape]:
        latent = self.spec.latent if self.keeps_latent else None
        if latent is not None:
            return [CacheShape(block_size, 1, latent.kv_rank, latent.rotated)] * len(self.layers)
        is_flat = self.target.is_fractal and not CACHED & self.target.composed
        heads = [self.spec.heads[layer] for layer in self.layers]
        return [CacheShape(block_size, *each, is_flat=is_flat) for each in heads]

    def phase(self, inputs: GraphInputs) -> str:
        """Return the phase of the graph that computes `inputs`."""
        if self.has_chunks and not inputs.is_prefill and inputs.q_seq_lens.max() > 1:
            return nodes.CHUNKS
        return inputs.phase

    def adapter_uses(self, block_size: int) -> AdapterUses:
        """Return the weights that adapters can change, with their shapes."""
        self._graph(nodes.INCREMENT, block_size, adapts=True)
        return self._uses

    def cell(self, phase: str, block_size: int, *, adapts: bool = False) -> Any:
        """Return the compiled graph of `phase`, made at its first use; that of adapters apart."""
        key = (phase, adapts)
        if key not in self._cells:
            graph = self._graph(phase, block_size, adapts=adapts)
            self._cells[key] = compile_graph(
                graph, self.weights.parameters, phase, self.shapes(block_size)
            )
        return self._cells[key]

    def _graph(self, phase: str, block_size: int, *, adapts: bool) -> recording.RecordedGraph:
        key = (phase, adapts)
        if key not in self._graphs:
            ops = self.make_ops(
                self.weights,
                phase,
                self.target.filling,
                block_size,
                self.layers,
                uses=self._uses if adapts else None,
                keeps_latent=self.keeps_latent,
            )
            ops.composed = self.target.composed
            self._graphs[key] = recording.record(self.spec, self._decoder, ops)
        return self._graphs[key]

    def warm_up_rows(self) -> list[Row]:
        """Return a row for each phase."""
        rows = [Row([0], 0, [0], 1), Row([0], 1, [0], 1)]
        return [*rows, Row([0, 0], 1, [0], 1)] if self.has_chunks else rows

    def clear(self) -> None:
        self._graphs.clear()
        self._cells.clear()
        self.weights.clear()


class GraphRunner(LimitedRunner):
    """An `EmbeddingRunner`, a `ChoosingRunner`, and an `AdaptedRunner` if it has a `base`.

    Its cache is allocated when it is created.  Steps without adapters have graphs of their own, so
    that adapters cost them nothing.
    """

    def __init__(
        self, graphs: PhaseGraphs, limits: RunnerLimits, adapters: DeviceAdapters | None = None
    ) -> None:
        self.base = None if adapters is None else adapters.base
        self.max_best = 0
        self._choices: BestChoices | None = None
        self._adapters = adapters
        if adapters is not None:
            limits = replace(limits, adapters=adapters.loaded)
        super().__init__(limits)
        self.hidden_size = graphs.spec.hidden_size
        self.rope_switch = graphs.spec.rope.switch
        is_on_cpu = graphs.target.name == CPU
        self.cache_memory = replace(limits.memory, can_release=is_on_cpu)
        self._graphs: PhaseGraphs | None = graphs
        # Composed attention pads queries to the longest of a call.
        self._splits_steps = is_on_cpu or graphs.has_chunks
        self._cache = DeviceCache(
            limits.num_blocks, graphs.shapes(limits.block_size), graphs.target.name, graphs.dtype
        )
        # Composed attention reads only the dtype of the mask.
        self._no_mask = as_tensor(np.zeros((1, 1), np.float32)).astype(graphs.dtype)

    def warm_up(self) -> None:
        """Compile all graphs by computing a token each, and those of adapters if there may be any.

        Raises StartError if weights or graphs do not fit.
        """
        graphs = self._opened()
        for row in progress(graphs.warm_up_rows(), "graphs"):
            with first_step():
                logits = self.run(Step((row,)))
            check_logits(logits, graphs.spec)
        if self._adapters is not None:
            for phase in progress((nodes.PREFILL, nodes.INCREMENT), "graphs of adapters"):
                with first_step(), _failing("compiling the graphs of adapters"):
                    graphs.cell(phase, self.block_size, adapts=True)
        if graphs.target.name != CPU:
            self.choose_on_device()

    def run(self, step: Step) -> Logits:
        """Run a step as `Runner.run` does.  Raises ServingError, also for MindSpore's errors."""
        return self._computed(step, LOGITS, join_rows)

    def embed(self, step: Step) -> Vectors:
        return self._computed(step, HIDDEN, join_rows)

    def run_best(self, step: Step, count: int) -> BestLogits:
        choices = self._choices
        assert choices is not None

        def choose(parts: list[Any], width: int) -> BestLogits:
            values, ids = zip(*(choices.choose(part, count) for part in parts), strict=True)
            return BestLogits(
                join_rows(values, count), join_rows(ids, count), lambda: join_rows(parts, width)
            )

        return self._computed(step, LOGITS, choose)

    def choose_on_device(self) -> None:
        """Compile what `run_best` computes; until then, and if the device fails, `max_best` is 0.

        On a CPU nothing has to be copied, and a choice takes 70 times as long as NumPy's argmax.
        """
        try:
            choices = BestChoices(self.vocab_size, self._opened().dtype)
            choices.check()
        except (RuntimeError, ValueError, TypeError) as error:
            log.warning(
                "the device does not choose the likeliest tokens (%s): all logits are copied "
                "in each step, which is slower", error_text(error),
            )  # fmt: skip
            return
        self._choices, self.max_best = choices, choices.max_best

    def load_adapter(self, adapter: int, changes: Changes) -> None:
        assert self._adapters is not None
        self._adapters.load(adapter, changes)

    def unload_adapter(self, adapter: int) -> None:
        assert self._adapters is not None
        self._adapters.unload(adapter)

    def _computed(self, step: Step, output: int, read: Callable[[list[Any], int], T]) -> T:
        """Return what `read` makes of an output of the graphs: tensors of rows, and their width."""
        graphs = self._opened()
        layout = lay_out(step, self._limits)
        if step.copies:
            source, target = np.array(step.copies).T
            self._cache.copy(source, target)
        calls: Iterable[tuple[TokenSpan, ...]] = [layout.spans] if layout.spans else []
        if self._splits_steps and layout.spans:
            calls = similar_spans(layout.spans)
        with LOCK, _failing(f"a step of {step.num_tokens} tokens"):
            results = [self._call(graphs, layout, spans) for spans in calls]
            width = self.vocab_size if output == LOGITS else self.hidden_size
            return read([result[output] for result in results if result], width)

    def release_blocks(self, blocks: Sequence[int]) -> None:
        """Return the memory of `blocks` to the system."""
        self._cache.release(blocks)

    def release_cache(self) -> None:
        """Drop the cache; no step can follow."""
        self._cache.clear()

    def close(self) -> None:
        """Drop cache and weights.  A closed runner refuses every step."""
        if self._graphs is not None:
            self._graphs.clear()
        if self._adapters is not None:
            self._adapters.clear()
        self._graphs = None
        self._cache.clear()

    def _opened(self) -> PhaseGraphs:
        if self._graphs is None:
            raise ServingError("the runner is closed")
        return self._graphs

    def _mask(self, graphs: PhaseGraphs, inputs: GraphInputs) -> Any:
        if graphs.target.filling != nodes.ASCEND or graphs.phase(inputs) == nodes.CHUNKS:
            return self._no_mask
        is_bf16 = graphs.dtype == mindspore.bfloat16
        mask = kernel_mask(
            inputs, is_bf16=is_bf16, is_prefill=inputs.is_prefill,
            is_complete=graphs.target.is_fractal,
        )  # fmt: skip
        return as_tensor(mask).astype(graphs.dtype)

    def _call(
        self, graphs: PhaseGraphs, layout: Layout, spans: tuple[TokenSpan, ...]
    ) -> tuple[Any, ...]:
        """Return the outputs of a graph, tensors of the requested rows; none without these."""
        inputs = graph_inputs(layout, spans)
        outputs = self._run_graph(graphs, inputs, spans)
        if not inputs.num_logits:
            outputs[LOGITS].asnumpy()  # waits for the step
            return ()
        return outputs

    def _run_graph(
        self, graphs: PhaseGraphs, inputs: GraphInputs, spans: tuple[TokenSpan, ...]
    ) -> tuple[Any, ...]:
        """Return the outputs of a graph for `inputs`, which are those of `spans`."""
        flat = {name: as_tensor(array) for name, array in inputs.arrays().items()}
        columns: list[Any] = []
        if self._adapters is not None and any(span.adapter for span in spans):
            columns = [as_tensor(each) for each in adapter_columns(spans, inputs.logit_rows)]
            columns += self._adapters.inputs
        cell = graphs.cell(graphs.phase(inputs), self.block_size, adapts=bool(columns))
        outputs = cell.compile_and_run(
            self._first_input(inputs, spans), flat["positions"],
            self._cache.keys, self._cache.values, flat["slot_mapping"],
            self._mask(graphs, inputs), flat["batch_valid_length"], flat["q_seq_lens"],
            flat["block_tables"], flat["logit_rows"], flat["uses_long_rope"],
            *columns,
        )  # fmt: skip
        return tuple(outputs)

    def _first_input(self, inputs: GraphInputs, spans: tuple[TokenSpan, ...]) -> Any:
        """Return the ids of the tokens."""
        return as_tensor(inputs.input_ids)


@contextmanager
def _failing(subject: str) -> Iterator[None]:
    """Raise ServingError for MindSpore's errors."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if isinstance(error, ServingError):
            raise
        raise ServingError(f"{subject} failed: {error_text(error)}") from error


def join_rows(parts: Sequence[Any], width: int) -> Any:
    """Return the rows of tensors, [rows, width], as an array; floats are float32."""
    if not parts:
        return np.zeros((0, width), np.float32)
    arrays = [
        (part if part.dtype == mindspore.int32 else part.astype(mindspore.float32)).asnumpy()
        for part in parts
    ]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def as_tensor(array: Any) -> Any:
    """Return a tensor that shares the memory of `array`."""
    return mindspore.Tensor.from_numpy(np.ascontiguousarray(array))
