"""Draft tokens by a prediction head, which continues from the hidden states of its model's step.

The head has the model's block tables, and a cache of its own for its one layer.  After each step it
computes all tokens of the step: the key and value at a position are those of the hidden state there
and the token after it.  So prefix hits, chunks of prompts, forks and preemption need nothing; where
a shared block ends, or a block came from disk, its entry may be of another token, which costs draft
tokens and changes no answer.  Later draft tokens follow from the head's own hidden states.

The head knows neither sampling nor grammars nor adapters: it drafts the likeliest tokens.
"""

from collections.abc import Mapping

import numpy as np

from mindspore_serving.llm.engine.draft_source import Clock, DraftSource
from mindspore_serving.llm.engine.sequence import Scheduled, Sequence, SequenceStatus
from mindspore_serving.llm.step import HeadRunner, HiddenRunner, Row, Step, Vectors


class PredictionHead(DraftSource):
    """Draft tokens by `head` for the sequences of `model`."""

    name = "prediction head"
    is_always_due = True

    def __init__(self, head: HeadRunner, model: HiddenRunner, clock: Clock) -> None:
        super().__init__(head, clock)
        self._head, self._model = head, model
        self._last: tuple[Scheduled, Vectors] | None = None

    def max_draft_tokens(self, sequence: Sequence) -> int:
        if self.is_lost or self._last is None or sequence not in self._last[0].sequences:
            return 0
        # The position of the last draft token but one is in a block that the sequence has.
        room = len(sequence.blocks) * self.runner.block_size - len(sequence.tokens)
        return max(0, min(room, self.runner.max_model_len - len(sequence.tokens)) + 1)

    def num_missing(self, sequence: Sequence) -> int:
        return 0

    def follow(self, scheduled: Scheduled) -> None:
        self._last = scheduled, self._model.hidden_states().copy()

    def _draft(self, requested: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        last, self._last = self._last, None
        if last is None:
            return {}
        scheduled, hidden = last
        rows, parts, drafted, begin = list[Row](), list[Vectors](), list[Sequence](), 0
        for row, sequence in zip(scheduled.step.rows, scheduled.sequences, strict=True):
            states = hidden[begin : begin + len(row.tokens)]
            begin += len(row.tokens)
            following = sequence.tokens[row.start + 1 : row.start + 1 + len(row.tokens)]
            if not following or not self._can_compute(sequence):
                continue
            is_drafted = sequence in requested
            drafted += [sequence] if is_drafted else []
            rows.append(self._row(sequence, following, row.start, is_drafted=is_drafted))
            parts.append(states[: len(following)])
        if not rows:
            return {}
        drafts: dict[Sequence, list[int]] = {sequence: [] for sequence in drafted}
        states = self._compute(Step(tuple(rows), scheduled.step.copies), parts, drafts)
        self._chain(drafts, states, requested)
        return drafts

    def _chain(
        self, drafts: dict[Sequence, list[int]], states: Vectors, requested: Mapping[Sequence, int]
    ) -> None:
        """Append further draft tokens, each from the head's hidden state of the one before it."""
        began, depth, current = self.clock(), 1, list(drafts)
        while current:
            kept = [i for i, sequence in enumerate(current) if requested[sequence] > depth]
            if not kept:
                break
            states, current = states[kept], [current[i] for i in kept]
            rows = [
                self._row(sequence, drafts[sequence][-1:], len(sequence.tokens) - 2 + depth)
                for sequence in current
            ]
            chosen = {sequence: drafts[sequence] for sequence in current}
            states = self._compute(Step(tuple(rows)), [states], chosen)
            depth += 1
        if depth > 1:
            self.passes = len(drafts), (self.clock() - began) / (depth - 1)

    def _compute(
        self, step: Step, hidden: list[Vectors], drafts: Mapping[Sequence, list[int]]
    ) -> Vectors:
        """Compute `step`, and append the likeliest token to each of `drafts`.

        Returns the hidden states of the rows with logits.
        """
        logits = self._head.compute(step, np.concatenate(hidden))
        if not drafts:
            return logits[:0]
        best = logits.argmax(axis=1)
        best = best if self._head.draft_ids is None else self._head.draft_ids[best]
        for draft, token in zip(drafts.values(), best.tolist(), strict=True):
            draft.append(token)
        return self._head.hidden_states().copy()

    def _row(
        self, sequence: Sequence, tokens: list[int], start: int, *, is_drafted: bool = True
    ) -> Row:
        images, end = sequence.images, start + len(tokens)
        return Row(
            tokens, start, sequence.blocks, int(is_drafted),
            uses_long_rope=sequence.uses_long_rope,
            rope_positions=None if images is None else images.rope_positions(start, end),
        )  # fmt: skip

    def _can_compute(self, sequence: Sequence) -> bool:
        is_short = len(sequence.tokens) <= self.runner.max_model_len
        is_running = sequence.status is SequenceStatus.RUNNING and is_short
        return is_running and max(sequence.blocks) < self.runner.num_blocks
