"""A stage of a model whose layers are cut over ranks: a runner that takes hidden states from the
stage before and gives them to the next one.

Where each stage has cores of its own, a step is computed in pieces, micro-batches, so that stages
work at the same time: while one computes a piece, the stage before it computes the next one.  Steps
of few tokens are one piece, since each piece reads all weights again; so are all steps where stages
share cores, since they would wait for each other's threads.  Rank 0, the first stage, gets the
logits.
"""

import os
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.group import Grid
from mindspore_serving.llm.parallel.ring import Ring, rows_at_once
from mindspore_serving.llm.runtimes.layout import LimitedRunner, RunnerLimits, lay_out
from mindspore_serving.llm.step import EmbeddingRunner, Logits, Row, Step, Vectors

LEAST_TOKENS = 64  # of a micro-batch, unless the step has fewer
MOST_TOKENS = 128


class LayerStage(EmbeddingRunner, Protocol):
    """A runner of some of the layers.  `width` is of the hidden states between stages;
    `hidden_size` is 0 if it computes no vectors.
    """

    width: int

    def compute(self, step: Step, given: Vectors | None = None, *, embeds: bool = False) -> Vectors:
        """The hidden state of all tokens after these layers; of the last stage logits, or with
        `embeds` vectors.  `given`, [tokens, width], is what the stage before has computed;
        None for the first, and to try the stage by itself.
        """
        ...


class StageRunner(LimitedRunner):
    """An `EmbeddingRunner` over `own`, which every rank of `grid` calls with the same steps.  With
    `overlaps` large steps are computed in pieces, if all ranks say so.
    """

    def __init__(self, own: LayerStage, grid: Grid, *, overlaps: bool) -> None:
        super().__init__(
            RunnerLimits(own.block_size, own.num_blocks, own.vocab_size, own.max_model_len)
        )
        self.hidden_size = own.hidden_size
        self._own, self._width = own, own.width
        stages = grid.stages
        self._ring, self._size = Ring(stages), stages.size
        self._is_first, self._is_last = stages.rank == 0, stages.rank == stages.size - 1
        self._has_result = grid.peers.rank == 0  # as the others would have the same
        self._overlaps = bool(grid.everyone.minimum(overlaps))

    def run(self, step: Step) -> Logits:
        """As `Runner.run` on rank 0; on others nothing."""
        return self._compute(step, self.vocab_size, embeds=False)

    def embed(self, step: Step) -> Vectors:
        if not self.hidden_size:
            raise ServingError("the runtime has no embeddings; take openvino or torch")
        return self._compute(step, self.hidden_size, embeds=True)

    def close(self) -> None:
        self._own.close()

    def _compute(self, step: Step, width: int, *, embeds: bool) -> Vectors:
        lay_out(step, self._limits)  # what is wrong is refused before anything is sent
        ring = self._ring
        ring.begin()
        pieces = list(self._pieces(step))
        last: list[Vectors] = []
        for piece in pieces:
            shape = (piece.num_tokens, self._width)
            given = None if self._is_first else ring.receive(shape)
            found = self._own.compute(piece, given, embeds=embeds)
            if self._is_last:
                last.append(found.copy() if len(pieces) > 1 else found)
            else:
                ring.send(found)
        ring.release()
        ring.flush()
        if self._is_last and self._has_result:
            self._send_back(np.concatenate(last), width)
        if not (self._is_first and self._has_result):
            return np.empty((0, width), np.float32)
        return self._received(sum(row.num_logits for row in step.rows), width)

    def _pieces(self, step: Step) -> Iterator[Step]:
        total, size = step.num_tokens, rows_at_once(self._width)
        if self._overlaps:
            count = max(-(-total // MOST_TOKENS), min(self._size, total // LEAST_TOKENS), 1)
            size = min(size, -(-total // count))
        return micro_batches(step, size)

    def _send_back(self, rows: Vectors, width: int) -> None:
        most = rows_at_once(width)
        for begin in range(0, len(rows), most):
            self._ring.send(rows[begin : begin + most])
        self._ring.flush()

    def _received(self, num_rows: int, width: int) -> Vectors:
        found = np.empty((num_rows, width), np.float32)
        most = rows_at_once(width)
        for begin in range(0, num_rows, most):
            rows = found[begin : begin + most]
            rows[...] = self._ring.receive((len(rows), width))
        self._ring.release()
        return found


def has_own_cores(config: EngineConfig) -> bool:
    """Whether each stage has: the option `num_threads` says so."""
    threads = config.num_threads
    cores = len(os.sched_getaffinity(0))
    return threads is not None and threads * config.pipeline_parallel <= cores


def micro_batches(step: Step, size: int) -> Iterator[Step]:
    """`step` as steps of `size` tokens, in order; the last has what is left."""
    rows: list[Row] = []
    room, copies = size, step.copies
    for row in step.rows:
        while row.tokens:
            own, row = _cut(row, room)
            rows.append(own)
            room -= len(own.tokens)
            if not room:
                yield Step(tuple(rows), copies)
                rows, room, copies = [], size, ()
    if rows:
        yield Step(tuple(rows), copies)


def _cut(row: Row, count: int) -> tuple[Row, Row]:
    """Its first `count` tokens, and the others, which may be none."""
    tokens, rest = row.tokens[:count], row.tokens[count:]
    after = min(row.num_logits, len(rest))
    return (
        Row(tokens, row.start, row.blocks, row.num_logits - after, row.adapter),
        Row(rest, row.start + len(tokens), row.blocks, after, row.adapter),
    )
