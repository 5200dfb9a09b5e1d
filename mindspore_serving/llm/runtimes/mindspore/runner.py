"""The two graphs of a model, compiled once, and the runner of their steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mindspore_serving.backends.mindir import LOCK  # one for the process
from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.models import Decoder
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.progress import progress
from mindspore_serving.llm.runtimes.capacity import (
    check_logits,
    first_step,
)
from mindspore_serving.llm.runtimes.layout import Layout, LimitedRunner, RunnerLimits, lay_out
from mindspore_serving.llm.runtimes.mindir.library import ASCEND, CPU, mindspore
from mindspore_serving.llm.runtimes.mindspore import nodes, recording
from mindspore_serving.llm.runtimes.mindspore.cache import DeviceCache
from mindspore_serving.llm.runtimes.mindspore.cell import CacheShape, compile_graph
from mindspore_serving.llm.runtimes.mindspore.inputs import (
    GraphInputs,
    graph_inputs,
    kernel_mask,
    similar_spans,
)
from mindspore_serving.llm.runtimes.mindspore.weights import GraphWeights
from mindspore_serving.llm.step import Logits, Row, Step


@dataclass(frozen=True, slots=True)
class GraphTarget:
    """A device: MindSpore's name, the operators of its graphs, and the dtype of its weights.

    The operators in `composed` are composed of plain ones.
    """

    name: str
    filling: str
    dtype: str
    composed: frozenset[str] = frozenset()


TARGETS = {
    "cpu": GraphTarget(CPU, nodes.COMPOSED, "float32"),
    "ascend": GraphTarget(ASCEND, nodes.ASCEND, "bfloat16"),
}


class PhaseGraphs:
    """The graphs of both phases over one set of parameters."""

    def __init__(
        self, spec: ModelSpec, decoder: Decoder, weights: GraphWeights, target: GraphTarget
    ) -> None:
        self.spec = spec
        self.target = target
        self.dtype = getattr(mindspore, target.dtype)
        self.weights = weights
        self.layers = tuple(spec.attention_layers)
        self._decoder = decoder
        self._cells: dict[str, Any] = {}
        self.make_ops: Callable[..., recording.GraphOps] = recording.GraphOps

    def shapes(self, block_size: int) -> list[CacheShape]:
        return [CacheShape(block_size, *self.spec.heads[layer]) for layer in self.layers]

    def cell(self, phase: str, block_size: int) -> Any:
        """Return the graph of `phase`, recorded at its first use and compiled at its first call."""
        if phase not in self._cells:
            ops = self.make_ops(self.weights, phase, self.target.filling, block_size, self.layers)
            ops.composed = self.target.composed
            graph = recording.record(self.spec, self._decoder, ops)
            self._cells[phase] = compile_graph(
                graph, self.weights.parameters, phase, self.shapes(block_size)
            )
        return self._cells[phase]

    def clear(self) -> None:
        self._cells.clear()
        self.weights.clear()


class GraphRunner(LimitedRunner):
    """A `Runner` of graphs; its cache is allocated when it is created."""

    def __init__(self, graphs: PhaseGraphs, limits: RunnerLimits) -> None:
        super().__init__(limits)
        self.rope_switch = graphs.spec.rope.switch
        is_on_cpu = graphs.target.name == CPU
        self.cache_memory = replace(limits.memory, can_release=is_on_cpu)
        self._graphs: PhaseGraphs | None = graphs
        self._splits_steps = is_on_cpu  # its attention pads queries to the longest of a call
        self._cache = DeviceCache(
            limits.num_blocks, graphs.shapes(limits.block_size), graphs.target.name, graphs.dtype
        )
        # Composed attention reads only the dtype of the mask.
        self._no_mask = _tensor(np.zeros((1, 1), np.float32)).astype(graphs.dtype)

    def warm_up(self) -> None:
        """Compile both graphs by computing a token each.

        Raises StartError if weights or graphs do not fit.
        """
        graphs = self._opened()
        for start in progress((0, 1), "graphs"):
            with first_step():
                logits = self.run(Step((Row([0], start, [0], 1),)))
            check_logits(logits, graphs.spec)

    def run(self, step: Step) -> Logits:
        """Run a step as `Runner.run` does.  Raises ServingError, also for MindSpore's errors."""
        graphs = self._opened()
        layout = lay_out(step, self._limits)
        if step.copies:
            source, target = np.array(step.copies).T
            self._cache.copy(source, target)
        if not layout.spans:
            return np.zeros((0, self.vocab_size), np.float32)
        try:
            return self._compute(graphs, layout)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            if isinstance(error, ServingError):
                raise
            raise ServingError(
                f"a step of {step.num_tokens} tokens failed: {error_text(error)}"
            ) from error

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
        self._graphs = None
        self._cache.clear()

    def _opened(self) -> PhaseGraphs:
        if self._graphs is None:
            raise ServingError("the runner is closed")
        return self._graphs

    def _compute(self, graphs: PhaseGraphs, layout: Layout) -> Logits:
        calls = similar_spans(layout.spans) if self._splits_steps else (layout.spans,)
        with LOCK:
            parts = [self._call(graphs, graph_inputs(layout, spans)) for spans in calls]
        logits: Logits = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return logits

    def _mask(self, graphs: PhaseGraphs, inputs: GraphInputs) -> Any:
        if graphs.target.filling != nodes.ASCEND:
            return self._no_mask
        is_bf16 = graphs.dtype == mindspore.bfloat16
        mask = kernel_mask(inputs, is_prefill=inputs.is_prefill, is_bf16=is_bf16)
        return _tensor(mask).astype(graphs.dtype)

    def _call(self, graphs: PhaseGraphs, inputs: GraphInputs) -> Logits:
        phase = nodes.PREFILL if inputs.is_prefill else nodes.INCREMENT
        cell = graphs.cell(phase, self.block_size)
        flat = {name: _tensor(array) for name, array in inputs.arrays().items()}
        logits = cell.compile_and_run(
            flat["input_ids"], flat["positions"], self._cache.keys, self._cache.values,
            flat["slot_mapping"], self._mask(graphs, inputs), flat["batch_valid_length"],
            flat["q_seq_lens"], flat["block_tables"], flat["logit_rows"], flat["uses_long_rope"],
        )  # fmt: skip
        result: Logits = logits.astype(mindspore.float32).asnumpy()[: inputs.num_logits]
        return result


def _tensor(array: Any) -> Any:
    return mindspore.Tensor.from_numpy(np.ascontiguousarray(array))
