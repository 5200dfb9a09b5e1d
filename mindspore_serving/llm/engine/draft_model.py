"""A small model that guesses what a large one will say: its cache, and the steps that it computes.

The guesses of all sequences are made together: the first ones in one step, then the second ones.
Before that the model catches up on tokens of a sequence that it has not computed, at most a chunk
of them in each step of the large model.  It has blocks of its own.  Full ones are shared with
sequences that begin alike, as in the large model's cache.  Where there is no room, a sequence that
was not guessed for lately gives its blocks back; the model computes it again when it has to.

It knows neither sampling nor grammars nor adapters: it guesses the likeliest tokens.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import exp, log
from typing import TypeAlias

from mindspore_serving import log as logs
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.acceptance import Rate
from mindspore_serving.llm.engine.blocks import BlockPool
from mindspore_serving.llm.engine.sequence import Sequence, SequenceStatus
from mindspore_serving.llm.step import Row, Runner, Step

Clock: TypeAlias = Callable[[], float]
"""Gives seconds."""

_SHARE_OF_TRIALS = 0.01  # of the time, for guesses that do not seem to be worth theirs
_PRIOR_COST = 0.2  # of a pass, relative to a step of the large model
_RATE = 0.1  # of an error that is corrected at once, when some have been seen


@dataclass(slots=True)
class _Text:
    """What has been computed of a sequence: its first `num_seen` tokens, and behind the first
    `length` of them its `guesses`, all but the last.
    """

    blocks: list[int]
    num_seen: int
    num_registered: int
    length: int = 0
    guesses: list[int] = field(default_factory=list)

    def settle(self, tokens: list[int]) -> None:
        """The sequence has become `tokens`: guesses that were right have been computed."""
        seen = self.num_seen
        for guess, token in zip(self.guesses[:-1], tokens[self.length :], strict=False):
            if guess != token:
                break
            seen += 1
        self.guesses = []
        self.num_seen = min(seen, len(tokens) - 1)  # the logits of the last one are wanted


class DraftModel:
    """Guesses for sequences of a model with `vocab_size` tokens.

    `seconds` are those of the last `propose`, by `clock`; `cost` is what a pass takes, relative to
    a step of the large model with as many rows; `rate` says how many guesses are right.
    """

    def __init__(self, runner: Runner, config: EngineConfig, vocab_size: int, clock: Clock) -> None:
        self.rate = Rate()
        self.cost = _PRIOR_COST
        self.seconds = 0.0
        self._runner = runner
        self._longest = runner.rope_switch or runner.max_model_len
        self._vocab_size = min(vocab_size, runner.vocab_size)
        self._most_tokens = config.max_num_batched_tokens
        self._shares = config.enable_prefix_caching
        self._clock = clock
        self._pool = BlockPool(runner.num_blocks)
        self._texts: dict[Sequence, _Text] = {}  # used last comes last
        self._is_lost = False
        self._spent = 0.0  # seconds since guesses were made
        self._unpaid = 0.0  # seconds of a trial that are over its share of the time
        self._num_compared = 0
        self._passes: tuple[int, float] | None = None  # rows and seconds of one

    def room(self, sequence: Sequence) -> int:
        """How many tokens it could guess."""
        if self._is_lost or sequence.images is not None:
            return 0
        return max(0, self._longest - len(sequence.tokens) + 1)

    def behind(self, sequence: Sequence) -> int:
        """How many tokens it has not computed, as far as that is known."""
        text = self._texts.get(sequence)
        return len(sequence.tokens) - (text.num_seen if text else 0)

    @property
    def is_to_try(self) -> bool:
        """Whether there is time to find out if guesses are worth theirs now."""
        return self._unpaid <= 0

    def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """Guesses for what follows each sequence, at least 1 and so many as are wanted; no entry
        for one with which it has not caught up, or for which there is no room.
        """
        self._free(
            one
            for one in self._texts
            if one.status in (SequenceStatus.FINISHED, SequenceStatus.ABORTED)
        )
        self.seconds, self._passes = 0.0, None
        if not wanted:
            return {}
        began = self._clock()
        try:
            found = self._guess(wanted)
        except Exception as error:  # guesses change no answer, so the answers go on
            logs.error("the draft model failed and guesses no more: %s", error, exc_info=True)
            self._is_lost, found = True, {}
            self._free(self._texts)
        self.seconds = self._clock() - began
        self._spent += self.seconds
        if found:
            self._unpaid, self._spent = self._spent, 0.0
        return found

    def observe(self, seconds: float, plain: Callable[[int], float] | None) -> None:
        """The large model took `seconds` for a step, and `plain(n)` for one of n rows, if known."""
        self._unpaid -= _SHARE_OF_TRIALS * seconds
        if plain is None or self._passes is None:
            return
        rows, own = self._passes
        if min(own, plain(rows)) > 0:
            self._num_compared += 1
            error = log(own / plain(rows)) - log(self.cost)
            self.cost *= exp(max(_RATE, 1 / self._num_compared) * error)

    def close(self) -> None:
        self._runner.close()

    def _guess(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        began = self._clock()
        found, num_tokens = self._catch_up(wanted)
        caught_up, deepest = self._clock(), max((wanted[one] for one in found), default=0)
        for depth in range(1, deepest):
            going = [one for one in found if wanted[one] > depth]
            rows = [self._next_row(one, found[one]) for one in going]
            self._choose([found[one] for one in going], rows)
        for sequence, guesses in found.items():
            text = self._texts[sequence]
            text.length, text.guesses = len(sequence.tokens), guesses
        if found and num_tokens <= 2 * len(found):  # the first pass was like the others
            self._passes = len(found), (self._clock() - began) / deepest
        elif deepest > 1:
            self._passes = len(found), (self._clock() - caught_up) / (deepest - 1)
        return found

    def _catch_up(self, wanted: Mapping[Sequence, int]) -> tuple[dict[Sequence, list[int]], int]:
        """Compute what is missing of each sequence, as far as it fits a step; the first guess of
        each of which nothing is missing, and how many tokens there were.
        """
        rows: dict[Sequence, Row] = {}
        budget = self._most_tokens
        for sequence, count in wanted.items():
            row = self._first_row(sequence, count, budget, wanted)
            if row is not None:
                rows[sequence] = row
                budget -= len(row.tokens)
            if budget <= 0:
                break
        found: dict[Sequence, list[int]] = {one: [] for one, row in rows.items() if row.num_logits}
        self._choose(list(found.values()), list(rows.values()))
        for sequence, row in rows.items():
            self._register(sequence, row.start + len(row.tokens))
        return found, self._most_tokens - budget

    def _first_row(
        self, sequence: Sequence, count: int, most: int, kept: Mapping[Sequence, int]
    ) -> Row | None:
        """At most `most` of the tokens that are missing, with room for `count` guesses behind them;
        None if there is none.
        """
        text = self._texts.pop(sequence, None) or self._begin(sequence)
        self._texts[sequence] = text
        text.settle(sequence.tokens)
        start = text.num_seen
        new = sequence.tokens[start : start + most]
        end = start + len(new)
        if max(new) >= self._vocab_size or not self._reserve(text, end + count - 1, kept):
            return None
        return Row(new, start, text.blocks, int(end == len(sequence.tokens)))

    def _next_row(self, sequence: Sequence, guesses: list[int]) -> Row:
        place = len(sequence.tokens) + len(guesses) - 1
        return Row(guesses[-1:], place, self._texts[sequence].blocks, 1)

    def _choose(self, guesses: list[list[int]], rows: list[Row]) -> None:
        """Compute `rows`, and add a token to each of `guesses`."""
        if not rows:
            return
        logits = self._runner.run(Step(tuple(rows)))
        if guesses:
            likeliest = logits[:, : self._vocab_size].argmax(axis=1).tolist()
            for own, token in zip(guesses, likeliest, strict=True):
                own.append(token)

    def _begin(self, sequence: Sequence) -> _Text:
        """With the blocks that hold the beginning of `sequence` already."""
        size, blocks = self._runner.block_size, list[int]()
        if self._shares:
            most = (len(sequence.tokens) - 1) // size
            blocks = self._pool.find(sequence.hash_blocks(most, size))
            self._pool.share(blocks)
        return _Text(blocks, len(blocks) * size, len(blocks))

    def _reserve(self, text: _Text, num_tokens: int, kept: Mapping[Sequence, int]) -> bool:
        """Give `text` blocks for so many tokens, those of sequences that are not `kept` if none are
        free.  False if there are too few.
        """
        missing = -(-num_tokens // self._runner.block_size) - len(text.blocks)
        while self._pool.num_free < missing:
            other = next((one for one in self._texts if one not in kept), None)
            if other is None:
                return False
            self._free([other])
        text.blocks += [self._pool.allocate() for _ in range(missing)]
        return True

    def _register(self, sequence: Sequence, num_seen: int) -> None:
        """The first `num_seen` tokens are computed: let others share the full blocks."""
        text = self._texts[sequence]
        text.num_seen = num_seen
        full = num_seen // self._runner.block_size
        if self._shares and full > text.num_registered:
            hashes = sequence.hash_blocks(full, self._runner.block_size)
            for index in range(text.num_registered, full):
                self._pool.register(text.blocks[index], hashes[index])
            text.num_registered = full

    def _free(self, sequences: Iterable[Sequence]) -> None:
        for sequence in list(sequences):
            self._pool.free(self._texts.pop(sequence).blocks)
