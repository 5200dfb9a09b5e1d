"""Graphs and runner of one rank: its part of every layer, with sums over ranks in the graph.

The graph is the same on Ascend and on a CPU, but for the group of its collectives.  All ranks have
the complete logits, so that each of them can choose tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from mindspore_serving.llm.parallel.group import RankGroup
from mindspore_serving.llm.parallel.shards import Range, Shard
from mindspore_serving.llm.parallel.watching import WatchedThread
from mindspore_serving.llm.runtimes.layout import Layout, RunnerLimits, TokenSpan
from mindspore_serving.llm.runtimes.mindspore.nodes import Node
from mindspore_serving.llm.runtimes.mindspore.recording import GraphOps
from mindspore_serving.llm.runtimes.mindspore.runner import GraphRunner, PhaseGraphs
from mindspore_serving.llm.step import Step

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Collectives:
    """MindSpore's group of the ranks that share every layer, and the vocabulary's rows of each."""

    group: str
    rank: int
    rows: tuple[Range, ...]

    @classmethod
    def of(cls, group: str, peers: RankGroup, vocab_size: int) -> "Collectives":
        """Return those of this rank of `peers`."""
        shards = (Shard(rank, peers.size) for rank in range(peers.size))
        return cls(group, peers.rank, tuple(shard.of(vocab_size) for shard in shards))


class RankGraphOps(GraphOps):
    """`Ops` that record the graph of one rank; embedding and head have its rows."""

    def __init__(self, *arguments: Any, collectives: Collectives, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._collectives = collectives

    def embedding(self, ids: Node, table: str) -> Node:
        """Record a row of zeros for a token of another rank, and the sum over ranks."""
        rows = self._collectives.rows[self._collectives.rank]
        local = self.emit(f"{ids.name} - {rows.begin}", 0).name
        inside = self.emit(f"ops.logical_and({local} >= 0, {local} < {rows.count})", 0).name
        index = self.emit(f"{local} * {inside}.astype(mindspore.int32)", 0)
        x = super().embedding(index, table)
        column = f"ops.expand_dims({inside}.astype({self.dtype}), 1)"
        return self.all_reduce(self.emit(f"{x.name} * {column}", x.width))

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


class RankGraphRunner(GraphRunner):
    """A `GraphRunner` of one of the ranks `peers`, computing in `thread`.

    Collectives neither time out nor notice that ranks are at different steps, so ranks meet before.
    """

    def __init__(
        self, graphs: PhaseGraphs, limits: RunnerLimits, peers: RankGroup, thread: WatchedThread
    ) -> None:
        super().__init__(graphs, limits)
        self._peers = peers
        self._thread = thread

    def close(self) -> None:
        super().close()
        self._thread.close()

    def _computed(self, step: Step, output: int, read: Callable[[list[Any], int], T]) -> T:
        return self._thread.call(partial(super()._computed, step, output, read))

    def _call(
        self, graphs: PhaseGraphs, layout: Layout, spans: tuple[TokenSpan, ...]
    ) -> tuple[Any, ...]:
        self._peers.barrier(0)
        return super()._call(graphs, layout, spans)
