"""A draft model: a small model that proposes tokens for a large one, with a cache of its own.

One forward pass computes the first draft token of all sequences, a second pass the second ones, and
so on.  Before that the model catches up on tokens of a sequence that it has not computed, at most a
chunk of them in each step of the large model.  Full blocks are shared with sequences of the same
prefix, as in the large model's cache.  When no block is free, the sequence that has not been
drafted for longest frees its blocks; they are recomputed when it is drafted again.

The model knows neither sampling nor grammars nor adapters: it drafts the likeliest tokens.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.blocks import BlockPool
from mindspore_serving.llm.engine.draft_source import Clock, DraftSource
from mindspore_serving.llm.engine.sequence import Sequence, SequenceStatus
from mindspore_serving.llm.sampling.best import likeliest_below
from mindspore_serving.llm.step import ChoosingRunner, Row, Runner, Step


@dataclass(slots=True)
class _Progress:
    """Progress of the draft model in one sequence.

    The first `num_seen` tokens are computed, and behind the first `length` tokens all of
    `draft_tokens` but the last.
    """

    blocks: list[int]
    num_seen: int
    num_registered: int
    length: int = 0
    draft_tokens: list[int] = field(default_factory=list)

    def follow(self, tokens: list[int]) -> None:
        """Follow the sequence, now `tokens`: accepted draft tokens are computed already."""
        seen = self.num_seen
        for draft_token, token in zip(self.draft_tokens[:-1], tokens[self.length :], strict=False):
            if draft_token != token:
                break
            seen += 1
        self.draft_tokens = []
        self.num_seen = min(seen, len(tokens) - 1)  # the logits of the last token are needed


class DraftModel(DraftSource):
    """Draft tokens for sequences of a model with a vocabulary of `vocab_size` tokens."""

    name = "draft model"

    def __init__(self, runner: Runner, config: EngineConfig, vocab_size: int, clock: Clock) -> None:
        super().__init__(runner, clock)
        self._longest = runner.rope_switch or runner.max_model_len
        self._vocab_size = min(vocab_size, runner.vocab_size)
        self._max_tokens = config.max_num_batched_tokens
        self._shares = config.enable_prefix_caching
        self._pool = BlockPool(runner.num_blocks)
        self._progress: dict[Sequence, _Progress] = {}  # the last used one comes last

    def max_draft_tokens(self, sequence: Sequence) -> int:
        """Return the maximum number of tokens that the model can draft for `sequence`."""
        if self.is_lost or sequence.images is not None:
            return 0
        return max(0, self._longest - len(sequence.tokens) + 1)

    def num_missing(self, sequence: Sequence) -> int:
        """Return how many tokens of `sequence` the model has not computed, as far as is known."""
        progress = self._progress.get(sequence)
        return len(sequence.tokens) - (progress.num_seen if progress else 0)

    def propose(self, requested: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """Return for each sequence at least one draft token, and up to as many as `requested` says.

        Sequences that the model has not caught up with, or has no room for, are left out.
        """
        self._free(
            sequence
            for sequence in self._progress
            if sequence.status in (SequenceStatus.FINISHED, SequenceStatus.ABORTED)
        )
        drafts = super().propose(requested)
        if self.is_lost:
            self._free(self._progress)
        return drafts

    def _draft(self, requested: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        began = self.clock()
        drafts, num_tokens = self._catch_up(requested)
        caught_up, deepest = self.clock(), max(map(requested.__getitem__, drafts), default=0)
        for depth in range(1, deepest):
            unfinished = [sequence for sequence in drafts if requested[sequence] > depth]
            rows = [self._next_row(sequence, drafts[sequence]) for sequence in unfinished]
            self._choose([drafts[sequence] for sequence in unfinished], rows)
        for sequence, draft_tokens in drafts.items():
            progress = self._progress[sequence]
            progress.length, progress.draft_tokens = len(sequence.tokens), draft_tokens
        if drafts and num_tokens <= 2 * len(drafts):  # the first pass was like the other passes
            self.passes = len(drafts), (self.clock() - began) / deepest
        elif deepest > 1:
            self.passes = len(drafts), (self.clock() - caught_up) / (deepest - 1)
        return drafts

    def _catch_up(self, requested: Mapping[Sequence, int]) -> tuple[dict[Sequence, list[int]], int]:
        """Compute the missing tokens of the sequences, as many as a step has room for.

        Returns the first draft token of each sequence that is complete, and the number of tokens
        computed.
        """
        rows: dict[Sequence, Row] = {}
        budget = self._max_tokens
        for sequence, count in requested.items():
            row = self._first_row(sequence, count, budget, requested)
            if row is not None:
                rows[sequence] = row
                budget -= len(row.tokens)
            if budget <= 0:
                break
        drafts: dict[Sequence, list[int]] = {
            sequence: [] for sequence, row in rows.items() if row.num_logits
        }
        self._choose(list(drafts.values()), list(rows.values()))
        for sequence, row in rows.items():
            self._register(sequence, row.start + len(row.tokens))
        return drafts, self._max_tokens - budget

    def _first_row(
        self, sequence: Sequence, count: int, limit: int, kept: Mapping[Sequence, int]
    ) -> Row | None:
        """Return a row of at most `limit` missing tokens, with blocks for `count` draft tokens.

        None if there is no room for it.
        """
        progress = self._progress.pop(sequence, None) or self._begin(sequence)
        self._progress[sequence] = progress
        progress.follow(sequence.tokens)
        start = progress.num_seen
        new = sequence.tokens[start : start + limit]
        end = start + len(new)
        if max(new) >= self._vocab_size or not self._reserve(progress, end + count - 1, kept):
            return None
        return Row(new, start, progress.blocks, int(end == len(sequence.tokens)))

    def _next_row(self, sequence: Sequence, draft_tokens: list[int]) -> Row:
        position = len(sequence.tokens) + len(draft_tokens) - 1
        return Row(draft_tokens[-1:], position, self._progress[sequence].blocks, 1)

    def _choose(self, draft_tokens: list[list[int]], rows: list[Row]) -> None:
        """Compute `rows`, and append the likeliest token to each of `draft_tokens`."""
        if not rows:
            return
        step = Step(tuple(rows))
        can_choose: bool = getattr(self.runner, "max_best", 0) > 0
        if can_choose and draft_tokens:
            best = cast(ChoosingRunner, self.runner).run_best(step, 1)
            likeliest = likeliest_below(best, self._vocab_size)
        else:
            likeliest = self.runner.run(step)[:, : self._vocab_size].argmax(axis=1).tolist()
        for draft, token in zip(draft_tokens, likeliest, strict=True):
            draft.append(token)

    def _begin(self, sequence: Sequence) -> _Progress:
        """Return the progress of a new sequence, sharing the cached blocks of its prefix."""
        size, blocks = self.runner.block_size, list[int]()
        if self._shares:
            count = (len(sequence.tokens) - 1) // size
            blocks = self._pool.find(sequence.hash_blocks(count, size))
            self._pool.share(blocks)
        return _Progress(blocks, len(blocks) * size, len(blocks))

    def _reserve(self, progress: _Progress, num_tokens: int, kept: Mapping[Sequence, int]) -> bool:
        """Allocate blocks for `num_tokens` tokens, evicting sequences that are not `kept`.

        Returns False if there are too few.
        """
        missing = -(-num_tokens // self.runner.block_size) - len(progress.blocks)
        while self._pool.num_free < missing:
            victim = next((sequence for sequence in self._progress if sequence not in kept), None)
            if victim is None:
                return False
            self._free([victim])
        progress.blocks += [self._pool.allocate() for _ in range(missing)]
        return True

    def _register(self, sequence: Sequence, num_seen: int) -> None:
        """Record that the first `num_seen` tokens are computed, and share the full blocks."""
        progress = self._progress[sequence]
        progress.num_seen = num_seen
        full = num_seen // self.runner.block_size
        if self._shares and full > progress.num_registered:
            hashes = sequence.hash_blocks(full, self.runner.block_size)
            for index in range(progress.num_registered, full):
                self._pool.register(progress.blocks[index], hashes[index])
            progress.num_registered = full

    def _free(self, sequences: Iterable[Sequence]) -> None:
        for sequence in list(sequences):
            self._pool.free(self._progress.pop(sequence).blocks)
