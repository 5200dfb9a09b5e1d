"""Pipeline stages: runners that take hidden states from the stage before and send them to the next.

If each stage has cores of its own, a step is computed in micro-batches, so that stages work at the
same time: while one computes a micro-batch, the stage before it computes the next one.

    stage 0   | a | b | c |
    stage 1       | a | b | c |     logits go back to rank 0

A step of few tokens is one micro-batch, since each of them reads all weights again; so is every
step if stages share cores, since they would wait for each other's threads.  Rank 0, the first
stage, gets the logits.  With cores of their own, stages also overlap steps of few tokens: rank 0
begins further ones before it has the logits of the first.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol, cast

import numpy as np

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.expert_counts import experts_of
from mindspore_serving.llm.parallel.group import Grid
from mindspore_serving.llm.parallel.ring import Ring, rows_at_once
from mindspore_serving.llm.runtimes.layout import LimitedRunner, RunnerLimits, lay_out
from mindspore_serving.llm.step import (
    EmbeddingRunner,
    Features,
    Logits,
    Row,
    StatefulRunner,
    StateSlots,
    Step,
    StoringRunner,
    Vectors,
)

MIN_MICRO_BATCH = 64  # tokens, unless the step has fewer
MAX_MICRO_BATCH = 128  # tokens


class LayerStage(EmbeddingRunner, Protocol):
    """A runner of some of the layers.

    `received_width` and `sent_width` are the numbers of a token that it gets from the stage before
    and sends to the next one; `hidden_size` is 0 if it has no embeddings.
    """

    received_width: int
    sent_width: int

    def compute(
        self, step: Step, hidden_states: Vectors | None = None, *, embeds: bool = False
    ) -> Vectors:
        """Return what the next stage gets, [tokens, sent_width]: `models.stage_arrays`.

        The last stage returns logits, or with `embeds` vectors.  `hidden_states`, [tokens,
        received_width], come from the stage before; None for the first stage, and to try a stage by
        itself.
        """
        ...


class StageRunner(LimitedRunner):
    """An `EmbeddingRunner` over `stage`, which every rank of `grid` calls with the same steps.

    With `overlaps`, large steps are computed in micro-batches, if all ranks agree.
    """

    def __init__(self, stage: LayerStage, grid: Grid, *, overlaps: bool) -> None:
        super().__init__(
            RunnerLimits(
                stage.block_size,
                stage.num_blocks,
                stage.vocab_size,
                stage.max_model_len,
                num_slots=stage.num_slots,
                adapters=stage.adapters,
                memory=stage.cache_memory,
            )  # fmt: skip
        )
        self.hidden_size, self.rope_switch = stage.hidden_size, stage.rope_switch
        self._stage = stage
        self.experts = experts_of(stage)
        stages = grid.stages
        self._ring, self._size = Ring(stages), stages.size
        self._is_first, self._is_last = stages.rank == 0, stages.rank == stages.size - 1
        self._has_result = grid.peers.rank == 0  # its peers have the same result
        self._overlaps = bool(grid.everyone.minimum(overlaps))
        # With more, rank 0 could wait for stages that wait for it to read logits in several arrays.
        self.max_in_flight = 2 * self._size - 1 if self._overlaps else 1
        # As many tokens fit an array between any two stages.
        widths = filter(None, (stage.received_width, stage.sent_width))
        self._max_tokens = grid.everyone.minimum(min(map(rows_at_once, widths)))
        self.max_tokens_in_flight = min(self._max_tokens, 2 * MIN_MICRO_BATCH - 1)
        self._begun: deque[tuple[int, int]] = deque()  # number of the step, and of its logits

    def run(self, step: Step) -> Logits:
        """Run a step as `Runner.run` does on rank 0; other ranks return no rows."""
        self.begin(step)
        return self.finish()

    def begin(self, step: Step) -> None:
        """Begin a step as `OverlappingRunner.begin`; ranks other than 0 compute all of it."""
        self._begin(step, self.vocab_size, embeds=False)

    def finish(self) -> Logits:
        """Return the logits of the step begun first, as `run` does."""
        return self._finish(self.vocab_size)

    def embed(self, step: Step) -> Vectors:
        if not self.hidden_size:
            raise ServingError("the runtime has no embeddings; take openvino or torch")
        self._begin(step, self.hidden_size, embeds=True)
        return self._finish(self.hidden_size)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in the layers of this stage."""
        return cast(StoringRunner, self._stage).block_bytes

    @property
    def block_format(self) -> str:
        """Format of the contents in these layers, as of `StoringRunner`."""
        return cast(StoringRunner, self._stage).block_format

    def read_block(self, block: int) -> memoryview:
        return cast(StoringRunner, self._stage).read_block(block)

    def write_block(self, block: int, content: memoryview) -> None:
        cast(StoringRunner, self._stage).write_block(block, content)

    @property
    def state_bytes(self) -> int:
        """Bytes of the state in a slot, of the layers of this stage."""
        return getattr(self._stage, "state_bytes", 0)

    def read_state(self, slot: int) -> memoryview:
        return cast(StatefulRunner, self._stage).read_state(slot)

    def write_state(self, slot: int, content: memoryview) -> None:
        cast(StatefulRunner, self._stage).write_state(slot, content)

    def settle(self) -> None:
        """Wait on rank 0, when all steps have ended, until nothing else is under way to it."""
        self._ring.settle()

    def release_blocks(self, blocks: Sequence[int]) -> None:
        self._stage.release_blocks(blocks)

    def close(self) -> None:
        self._stage.close()

    def _begin(self, step: Step, width: int, *, embeds: bool) -> None:
        """Compute the layers of this stage, and send the result, logits of `width`, if any."""
        lay_out(step, self._limits)  # refuses a wrong step before anything is sent
        ring = self._ring
        self._begun.append((ring.begin(), sum(row.num_logits for row in step.rows)))
        pieces = list(self._pieces(step))
        last: list[Vectors] = []
        for piece in pieces:
            hidden_states = None if self._is_first else self._received_piece(piece.num_tokens)
            output = self._stage.compute(piece, hidden_states, embeds=embeds)
            if self._is_last:
                last.append(output.copy() if len(pieces) > 1 else output)
            else:
                self._send(output, self._stage.sent_width)
        ring.release()
        if self._is_last and self._has_result:
            self._send(np.concatenate(last), width)

    def _finish(self, width: int) -> Vectors:
        self._ring.step, num_logits = self._begun.popleft()
        if not (self._is_first and self._has_result):
            return np.empty((0, width), np.float32)
        return self._received(num_logits, width)

    def _pieces(self, step: Step) -> Iterator[Step]:
        if self.num_slots and any(row.state is None for row in step.rows):
            return iter((step,))  # no state is left from which a second piece would go on
        total, size = step.num_tokens, self._max_tokens
        if self._overlaps:
            count = max(-(-total // MAX_MICRO_BATCH), min(self._size, total // MIN_MICRO_BATCH), 1)
            size = min(size, -(-total // count))
        return micro_batches(step, size)

    def _send(self, rows: Vectors, width: int) -> None:
        max_rows = rows_at_once(width)
        for begin in range(0, len(rows), max_rows):
            self._ring.send(rows[begin : begin + max_rows])

    def _received_piece(self, num_tokens: int) -> Vectors:
        """Return hidden states of the stage before, if they fit an array without a copy."""
        width = self._stage.received_width
        if num_tokens <= rows_at_once(width):
            return self._ring.receive((num_tokens, width))
        return self._received(num_tokens, width)

    def _received(self, num_rows: int, width: int) -> Vectors:
        received = np.empty((num_rows, width), np.float32)
        max_rows = rows_at_once(width)
        for begin in range(0, num_rows, max_rows):
            rows = received[begin : begin + max_rows]
            rows[...] = self._ring.receive((len(rows), width))
        self._ring.release()
        return received


def has_dedicated_cores(config: EngineConfig, num_local: int) -> bool:
    """Return whether each stage has cores of its own, by the option `num_threads`.

    `num_local` is the number of ranks of this machine, those of its stages.
    """
    cores = len(os.sched_getaffinity(0))
    num_stages = max(1, num_local // config.tensor_parallel)
    return (config.num_threads or cores) * num_stages <= cores


def micro_batches(step: Step, size: int) -> Iterator[Step]:
    """Split `step` into steps of `size` tokens, in order; the last has the remainder.

    A step that would end within an image whose tokens see one another ends behind it.
    """
    rows: list[Row] = []
    remaining, copies = size, step.copies
    for row in step.rows:
        while row.tokens:
            part, row = _cut(row, _whole(row.features, remaining))
            rows.append(part)
            remaining -= len(part.tokens)
            if remaining <= 0:
                yield Step(tuple(rows), copies)
                rows, remaining, copies = [], size, ()
    if rows:
        yield Step(tuple(rows), copies)


def _whole(features: Features | None, count: int) -> int:
    """Return `count`, or the tokens up to the end of the bidirectional image that it would cut."""
    if features is None or not features.is_bidirectional:
        return count
    index = int(np.searchsorted(features.positions, count)) - 1  # the last position before the cut
    return count if index < 0 else max(count, int(features.ends()[index]))


def _cut(row: Row, count: int) -> tuple[Row, Row]:
    """Split a row after `count` tokens; the second part may be empty."""
    tokens, rest = row.tokens[:count], row.tokens[count:]
    if not rest:
        return row, replace(row, tokens=())
    after = min(row.num_logits, len(rest))
    state, state_after = (None, None) if row.state is None else _cut_state(row.state, count)
    features, features_after = (None, None) if row.features is None else row.features.cut(count)
    axes = row.rope_positions
    return (
        replace(
            row, tokens=tokens, num_logits=row.num_logits - after, state=state,
            features=features, rope_positions=None if axes is None else axes[:count],
        ),
        replace(
            row, tokens=rest, start=row.start + count, num_logits=after, state=state_after,
            features=features_after, rope_positions=None if axes is None else axes[count:],
        ),
    )  # fmt: skip


def _cut_state(state: StateSlots, count: int) -> tuple[StateSlots, StateSlots]:
    """Split the slots of a row after `count` tokens.

    Until the state to keep is computed, its slot holds the one between the parts.
    """
    if 0 < state.kept < count:
        return state, StateSlots(state.write, state.write)
    if not state.kept:
        return StateSlots(state.read, state.write), StateSlots(state.write, state.write)
    rest = replace(state, read=state.snapshot, kept=state.kept - count)
    if not rest.kept:
        rest = StateSlots(state.snapshot, state.write)
    return StateSlots(state.read, state.snapshot), rest
