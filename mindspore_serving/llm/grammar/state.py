"""Where an answer is in its grammar, and the masks of the tokens that may come next.

A mask takes up to milliseconds, so masks are computed on a thread of their own while the model
computes its step.  Knows neither requests nor logits.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving import log
from mindspore_serving.llm.sampling.edits import SampleRow
from mindspore_serving.llm.step import Logits, Step

Words = npt.NDArray[np.uint32]

MASK_SECONDS = 10.0  # of a step; grammars that were tried take milliseconds
_MAX_THREADS = 4


class GrammarState:
    """The state of one answer.  Not to be used while its masks are being computed."""

    __slots__ = ("_banned", "matcher", "num_words")

    def __init__(self, matcher: Any, num_tokens: int, banned: Sequence[int] = ()) -> None:
        self.matcher = matcher  # of llguidance, this answer's own
        self.num_words = -(-num_tokens // 32)  # of a mask
        self._banned = banned  # end tokens that are not to be chosen

    @property
    def error(self) -> str | None:
        """Why nothing can follow; None if something can."""
        if not self.matcher.is_error():
            return None
        reason = self.matcher.get_error().replace("<non-verbose/>", "").strip()
        return f"the grammar failed: {reason}"

    @property
    def is_finished(self) -> bool:
        """Whether the answer is complete and nothing may follow."""
        return bool(self.matcher.is_stopped()) and not self.matcher.is_error()

    @property
    def is_complete(self) -> bool:
        """Whether the answer may end here."""
        return bool(self.matcher.is_accepting())

    def advance(self, token_id: int) -> None:
        """Take the next token; `error` is set if the grammar does not allow it."""
        self.matcher.consume_token(token_id)

    def forced(self, most: int) -> list[int]:
        """Tokens that must follow, if any."""
        forced: list[int] = self.matcher.compute_ff_tokens()
        return forced[:most]

    def possible(self, tokens: list[int]) -> list[int]:
        """As many of `tokens` as could follow."""
        return tokens[: self.matcher.validate_tokens(tokens)]

    def ban_ends(self, masks: Words) -> None:
        clear_bits(masks, self._banned)


def clear_bits(masks: Words, token_ids: Sequence[int]) -> None:
    """Forbid tokens in each of `masks` [count, words]."""
    for token_id in token_ids:
        masks[:, token_id // 32] &= np.uint32(0xFFFFFFFF ^ (1 << token_id % 32))


@dataclass(slots=True)
class Constrained:
    """The rows of a step that are sampled for one answer with a grammar: for its next token, and
    for the token after each of `guesses`.
    """

    state: GrammarState
    rows: list[SampleRow]
    guesses: list[int]
    error: str | None = None  # why there is no mask
    blames_request: bool = True  # its grammar is the cause


class MaskThread:
    """Computes masks while its owner computes something else.  Used by one thread.  Its threads
    are started with the first grammar.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._executor: Any = None

    def beside(
        self, wanted: list[Constrained], run: Callable[[Step], Logits], step: Step
    ) -> Logits:
        """The result of `run(step)`.  Meanwhile every row of `wanted` gets its mask, or its
        `Constrained` an error.
        """
        if not wanted:
            return run(step)
        pending = self._begin(wanted)
        try:
            return run(step)
        finally:
            self._wait(pending, wanted)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _wait(self, pending: Future[None], wanted: list[Constrained]) -> None:
        """Wait for the masks.  If they take too long, all of `wanted` end: the library still uses
        them, on threads that are left to themselves.
        """
        try:
            pending.result(MASK_SECONDS)
        except FutureTimeout:
            log.error("masks of grammars took over %g s", MASK_SECONDS)
            for one in wanted:
                one.error = f"the grammars of a step took over {MASK_SECONDS:g} s"
                one.blames_request = not any(
                    row.mask is not None and row.mask.any() for row in one.rows
                )
            assert self._pool is not None
            self._pool.shutdown(wait=False)
            self._pool = None

    def _begin(self, wanted: list[Constrained]) -> Future[None]:
        if self._pool is None:
            from llguidance import LLExecutor

            self._pool = ThreadPoolExecutor(1, "masks")
            self._executor = LLExecutor(min(_MAX_THREADS, os.cpu_count() or 1))
        count = sum(len(one.rows) for one in wanted)
        masks = np.zeros((count, wanted[0].state.num_words), np.uint32)
        rows = (row for one in wanted for row in one.rows)
        for row, mask in zip(rows, masks, strict=True):
            row.mask = mask
        return self._pool.submit(_fill, self._executor, wanted, masks)


def _fill(executor: Any, wanted: list[Constrained], masks: Words) -> None:
    """A failure is the error of the answer where it happened if that is known, else of all."""
    plain, guessed, place = [], [], 0
    for one in wanted:
        if one.guesses:
            guessed.append((one.state.matcher, place, one.guesses))
        else:
            plain.append((one.state.matcher, place))
        place += len(one.rows)
    address, size = masks.ctypes.data, masks.shape[1] * masks.itemsize
    try:
        if plain:
            executor.unsafe_compute_mask_ptr(plain, address, size, len(masks))
        if guessed:
            executor.unsafe_compute_mask_ptr_with_draft_token(guessed, address, size, len(masks))
    except BaseException as error:  # a panic of the library's is no Exception
        for one in wanted:
            one.error = f"the grammar failed: {error}"
        return
    place = 0
    for one in wanted:
        one.error = one.state.error
        one.state.ban_ends(masks[place : place + len(one.rows)])
        place += len(one.rows)
