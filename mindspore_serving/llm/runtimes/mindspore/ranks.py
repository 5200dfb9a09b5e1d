"""Graphs and runner of one rank: its part of every layer, with sums over ranks in the graph.

The graph is the same on Ascend and on a CPU, but for the group of its collectives.  All ranks have
the complete logits, so that each of them can choose tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from mindspore_serving.llm.models.expert_block import ExpertBlock
from mindspore_serving.llm.models.stage_arrays import received_width, sent_width
from mindspore_serving.llm.parallel.group import RankGroup
from mindspore_serving.llm.parallel.shards import Range, Shard
from mindspore_serving.llm.parallel.watching import WatchedThread
from mindspore_serving.llm.progress import progress
from mindspore_serving.llm.runtimes.capacity import check_logits, first_step
from mindspore_serving.llm.runtimes.layout import Layout, RunnerLimits, TokenSpan
from mindspore_serving.llm.runtimes.mindir.library import CPU
from mindspore_serving.llm.runtimes.mindspore.experts import record_experts
from mindspore_serving.llm.runtimes.mindspore.inputs import GraphInputs, graph_inputs
from mindspore_serving.llm.runtimes.mindspore.nodes import Node
from mindspore_serving.llm.runtimes.mindspore.recording import GraphOps
from mindspore_serving.llm.runtimes.mindspore.runner import (
    HIDDEN,
    GraphRunner,
    PhaseGraphs,
    as_tensor,
    join_rows,
)
from mindspore_serving.llm.step import Step, Vectors

T = TypeVar("T")
_abandoned: list[PhaseGraphs | None] = []  # kept until the process ends


@dataclass(frozen=True, slots=True)
class Collectives:
    """MindSpore's group of the ranks that share every layer, and the vocabulary's rows of each."""

    group: str
    shard: Shard
    rows: tuple[Range, ...]
    splits_experts: bool

    @classmethod
    def of(
        cls, group: str, shard: Shard, vocab_size: int, *, splits_experts: bool = True
    ) -> "Collectives":
        """Return those of the rank that has `shard`.

        Without `splits_experts` a rank has some of the experts, not a part of each.
        """
        shards = (Shard(rank, shard.size) for rank in range(shard.size))
        rows = tuple(each.of(vocab_size) for each in shards)
        return cls(group, shard, rows, splits_experts)


class RankGraphOps(GraphOps):
    """`Ops` that record the graph of one rank; embedding and head have its rows."""

    def __init__(self, *arguments: Any, collectives: Collectives, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._collectives = collectives

    def embedding(self, ids: Node, table: str) -> Node:
        """Record a row of zeros for a token of another rank, and the sum over ranks."""
        rows = self._collectives.rows[self._collectives.shard.rank]
        local = self.emit(f"{ids.name} - {rows.begin}", 0).name
        inside = self.emit(f"ops.logical_and({local} >= 0, {local} < {rows.count})", 0).name
        index = self.emit(f"{local} * {inside}.astype(mindspore.int32)", 0)
        x = super().embedding(index, table)
        column = f"ops.expand_dims({inside}.astype({self.dtype}), 1)"
        return self.all_reduce(self.emit(f"{x.name} * {column}", x.width))

    def whole_embedding(self, ids: Node, table: str) -> Node:
        return super().embedding(ids, table)

    def spanning_rms_norm(self, x: Node, weight: str, num_groups: int, eps: float) -> Node:
        """Record the norm of one group; models with several are refused."""
        wide = self.emit(f"{x.name}.astype(mindspore.float32)", x.width)
        mean = self.mean_of_ranks(self.mul(wide, wide))
        inverse = f"ops.rsqrt({mean.name} + {eps})"
        return self.gain(
            self.emit(f"({wide.name} * {inverse}).astype({self.dtype})", x.width), weight
        )

    def mean_of_ranks(self, x: Node) -> Node:
        return self.scale(self.all_reduce(self.mean(x)), 1 / self._collectives.shard.size)

    def all_reduce(self, x: Node) -> Node:
        operator = self.operator("all_reduce", group=self._collectives.group)
        return self.emit(f"{operator}({x.name})", x.width)

    def logits(self, x: Node, head: str, bias: str | None = None) -> Node:
        """Record the logits of this rank's rows, and those of all ranks beside each other."""
        part = self.linear(x, head, bias)
        rows = self._collectives.rows
        width, count = max(each.count for each in rows), len(rows)
        if part.width < width:  # ranks gather equal shapes
            part = self.emit(self._joined([part.name, self._zeros(part, (1,)).name]), width)
        operator = self.operator("all_gather", group=self._collectives.group)
        parts = self.emit(f"{operator}({part.name})", width).name
        apart = f"ops.reshape({parts}, ({count}, -1, {width}))"
        joined = f"ops.reshape(ops.transpose({apart}, (1, 0, 2)), (-1, {count * width}))"
        logits = self.emit(joined, count * width)
        kept = np.concatenate([
            np.arange(each.count) + rank * width for rank, each in enumerate(rows)
        ])  # fmt: skip
        if len(kept) == logits.width:
            return logits
        indices = self.constant(f"columns of {rows}", lambda: kept.astype(np.float32), exact=True)
        return self.emit(
            f"ops.gather({logits.name}, {indices}.astype(mindspore.int32), 1)", len(kept)
        )

    def moe(self, x: Node, scores: Node, block: ExpertBlock) -> Node:
        if self._collectives.splits_experts:
            return super().moe(x, scores, block)
        held = self._collectives.shard.of(len(block.experts))
        return record_experts(self, x, scores, block, held)


class RankGraphRunner(GraphRunner):
    """A `GraphRunner` of one of the ranks `peers`, or a `LayerStage`, computing in `thread`.

    Collectives neither time out nor notice that ranks are at different steps, so ranks meet before.
    """

    def __init__(
        self, graphs: PhaseGraphs, limits: RunnerLimits, peers: RankGroup, thread: WatchedThread
    ) -> None:
        super().__init__(graphs, limits)
        spec = graphs.spec
        self.received_width, self.sent_width = received_width(spec), sent_width(spec)
        self._spec, self._dtype = spec, graphs.dtype
        self._is_on_cpu = graphs.target.name == CPU
        self._peers = peers
        self._thread = thread
        self._hidden_states: Vectors | None = None

    def warm_up(self) -> None:
        for row in progress(self._opened().warm_up_rows(), "graphs"):
            with first_step():
                output = self.compute(Step((row,)))
            if self._spec.is_last:
                check_logits(output, self._spec)
        if self._spec.is_last and not self._is_on_cpu:
            self.choose_on_device()

    def compute(
        self, step: Step, hidden_states: Vectors | None = None, *, embeds: bool = False
    ) -> Vectors:
        """Run a step as `LayerStage.compute` does."""
        if not self._spec.is_first and hidden_states is None:  # to warm up
            hidden_states = np.zeros((step.num_tokens, self.received_width), np.float32)
        self._hidden_states = hidden_states
        if not self._spec.is_last:
            return self._computed(step, HIDDEN, join_rows)
        return self.embed(step) if embeds else self.run(step)

    def close(self) -> None:
        if self._thread.is_abandoned:  # to free what it computes with would wait for it
            _abandoned.append(self._graphs)
            self._graphs = None
            return
        super().close()
        self._thread.close()

    def _computed(self, step: Step, output: int, read: Callable[[list[Any], int], T]) -> T:
        return self._thread.call(partial(super()._computed, step, output, read))

    def _call(
        self, graphs: PhaseGraphs, layout: Layout, spans: tuple[TokenSpan, ...]
    ) -> tuple[Any, ...]:
        if self._spec.is_last:
            return super()._call(graphs, layout, spans)
        return self._run_graph(graphs, graph_inputs(layout, spans), spans)

    def _run_graph(
        self, graphs: PhaseGraphs, inputs: GraphInputs, spans: tuple[TokenSpan, ...]
    ) -> tuple[Any, ...]:
        graphs.cell(graphs.phase(inputs), self.block_size)  # ranks may compile for different times
        self._peers.barrier(0)
        return super()._run_graph(graphs, inputs, spans)

    def _first_input(self, inputs: GraphInputs, spans: tuple[TokenSpan, ...]) -> Any:
        """Return the hidden states of the stage before, or the ids of the tokens."""
        if self._spec.is_first:
            return super()._first_input(inputs, spans)
        assert self._hidden_states is not None
        rows = self._hidden_states[spans[0].begin : spans[-1].end]
        return as_tensor(rows).astype(self._dtype)
