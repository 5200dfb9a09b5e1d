r"""State of an answer in its grammar, and the masks of the tokens that may come next.

A mask takes up to milliseconds, so masks are computed on threads of their own while the model
computes its step:

    engine thread   begin --> runner.run(step) --------------> wait --> sample with masks
    mask threads      \---> mask of each row, in `SampleRow.mask` --^

Knows neither requests nor logits.
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

MASK_SECONDS = 10.0  # timeout of a step's masks; probed grammars take milliseconds
_MAX_THREADS = 4


class GrammarState:
    """State of one answer.  Must not be used while its masks are being computed."""

    __slots__ = ("_banned", "matcher", "num_words")

    def __init__(self, matcher: Any, num_tokens: int, banned: Sequence[int] = ()) -> None:
        self.matcher = matcher  # of llguidance, not shared
        self.num_words = -(-num_tokens // 32)  # of a mask
        self._banned = banned  # end tokens that must not be sampled

    @property
    def error(self) -> str | None:
        """Reason why no token can follow, None if one can."""
        if not self.matcher.is_error():
            return None
        reason = self.matcher.get_error().replace("<non-verbose/>", "").strip()
        return f"the grammar failed: {reason}"

    @property
    def is_finished(self) -> bool:
        """True if the answer is complete and nothing may follow."""
        return bool(self.matcher.is_stopped()) and not self.matcher.is_error()

    @property
    def is_complete(self) -> bool:
        """True if the answer may end here."""
        return bool(self.matcher.is_accepting())

    def advance(self, token_id: int) -> None:
        """Take the next token; `error` is set if the grammar does not allow it."""
        self.matcher.consume_token(token_id)

    def forced(self, limit: int) -> list[int]:
        """Return up to `limit` tokens that must follow."""
        forced: list[int] = self.matcher.compute_ff_tokens()
        return forced[:limit]

    def valid_prefix(self, tokens: list[int]) -> list[int]:
        """Return the longest prefix of `tokens` that could follow."""
        return tokens[: self.matcher.validate_tokens(tokens)]

    def ban_end_tokens(self, masks: Words) -> None:
        """Forbid the banned end tokens in each of `masks` [count, words]."""
        clear_bits(masks, self._banned)


def clear_bits(masks: Words, token_ids: Sequence[int]) -> None:
    """Forbid tokens in each of `masks` [count, words]."""
    for token_id in token_ids:
        masks[:, token_id // 32] &= np.uint32(0xFFFFFFFF ^ (1 << token_id % 32))


@dataclass(slots=True)
class ConstrainedRows:
    """Rows of a step that are sampled for one answer with a grammar.

    They are for its next token, and for the token after each of `draft_tokens`.
    """

    state: GrammarState
    rows: list[SampleRow]
    draft_tokens: list[int]
    error: str | None = None  # why there is no mask
    blames_request: bool = True  # its grammar is the cause


class MaskThread:
    """Computes masks while its owner computes something else.  Used by one thread.

    Its threads start with the first grammar.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._executor: Any = None

    def run_with_masks(
        self, constrained: list[ConstrainedRows], run: Callable[[Step], Logits], step: Step
    ) -> Logits:
        """Return the result of `run(step)`, and meanwhile compute the masks of `constrained`.

        Afterwards each row has its mask, or its `ConstrainedRows` an error.
        """
        if not constrained:
            return run(step)
        pending = self._begin(constrained)
        try:
            return run(step)
        finally:
            self._wait(pending, constrained)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _wait(self, pending: Future[None], constrained: list[ConstrainedRows]) -> None:
        """Wait for the masks.  After the timeout all of `constrained` get an error.

        The library still uses their states, so its threads are abandoned with them.
        """
        try:
            pending.result(MASK_SECONDS)
        except FutureTimeout:
            log.error("masks of grammars took over %g s", MASK_SECONDS)
            for answer in constrained:
                answer.error = f"the masks of a step's grammars took over {MASK_SECONDS:g} s"
                answer.blames_request = not any(
                    row.mask is not None and row.mask.any() for row in answer.rows
                )
            assert self._pool is not None
            self._pool.shutdown(wait=False)
            self._pool = None

    def _begin(self, constrained: list[ConstrainedRows]) -> Future[None]:
        if self._pool is None:
            from llguidance import LLExecutor

            self._pool = ThreadPoolExecutor(1, "masks")
            self._executor = LLExecutor(min(_MAX_THREADS, os.cpu_count() or 1))
        count = sum(len(answer.rows) for answer in constrained)
        masks = np.zeros((count, constrained[0].state.num_words), np.uint32)
        rows = (row for answer in constrained for row in answer.rows)
        for row, mask in zip(rows, masks, strict=True):
            row.mask = mask
        return self._pool.submit(_fill, self._executor, constrained, masks)


def _fill(executor: Any, constrained: list[ConstrainedRows], masks: Words) -> None:
    """Compute the masks of `constrained`.

    A failure is the error of the answer that caused it if that is known, otherwise of all.
    """
    plain, drafted, begin = [], [], 0
    for answer in constrained:
        if answer.draft_tokens:
            drafted.append((answer.state.matcher, begin, answer.draft_tokens))
        else:
            plain.append((answer.state.matcher, begin))
        begin += len(answer.rows)
    address, size = masks.ctypes.data, masks.shape[1] * masks.itemsize
    try:
        if plain:
            executor.unsafe_compute_mask_ptr(plain, address, size, len(masks))
        if drafted:
            executor.unsafe_compute_mask_ptr_with_draft_token(drafted, address, size, len(masks))
    except BaseException as error:  # a Rust panic is no Exception
        for answer in constrained:
            answer.error = f"the grammar failed: {error}"
        return
    begin = 0
    for answer in constrained:
        answer.error = answer.state.error
        answer.state.ban_end_tokens(masks[begin : begin + len(answer.rows)])
        begin += len(answer.rows)
