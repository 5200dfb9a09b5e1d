"""Changes to a row of logits before sampling: penalties, biases and bans.

They are made in place, to the tokens concerned only.  Knows no probabilities.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.core.sampling_params import SAMPLING, SamplingParams
from mindspore_serving.errors import InvalidField
from mindspore_serving.llm.sampling.dry import RepetitionPenalty
from mindspore_serving.llm.sampling.mirostat import SurpriseLimit

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
_NAMES = [name for name, row in SAMPLING.items() if row.kind in (list[int], dict[int, float])]

Mask = npt.NDArray[Any]  # bool [V], or 32-bit words whose bit i % 32 of word i // 32 allows token i


@dataclass(slots=True)
class SampleRow:
    """Input to sample the next token of one sequence.

    A row may be kept while its `output_ids` grow: penalised tokens are not counted anew.

    Args:
        params: of the request.
        prompt_ids: tokens of the prompt.
        output_ids: tokens of the answer so far.
        end_ids: tokens that may not come before `params.min_tokens`.
        position: number of tokens sampled before; the random number depends on it and on `seed`.
        seed: 0 to 2**64 - 1.
        mask: tokens that a grammar allows; those past its end are forbidden.  None allows all.
        bad_words_ids: `params.bad_words` as tokens.
        token_bytes: returns the bytes of a token, for `params.dry_sequence_breakers`.
        forced: the only token that may come, whatever else is set; None for no such token.
        start_ids: tokens before the answer that only `no_repeat_ngram_size` counts.
    """

    params: SamplingParams
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    end_ids: Sequence[int]
    position: int
    seed: int
    mask: Mask | None = None
    bad_words_ids: Sequence[Sequence[int]] = ()
    token_bytes: Callable[[int], bytes] | None = None
    forced: int | None = None
    start_ids: Sequence[int] = ()
    _seen: "_TokenCounts" = field(init=False, repr=False, compare=False)
    _allowed: Ids | None = field(default=None, init=False, repr=False, compare=False)
    _dry: RepetitionPenalty | None = field(default=None, init=False, repr=False, compare=False)
    surprise: SurpriseLimit | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._seen = _TokenCounts(self.prompt_ids)
        self.surprise = SurpriseLimit(self.params) if self.params.mirostat else None

    def after(self, draft_tokens: Sequence[int]) -> "SampleRow":
        """Return the row to sample from behind accepted `draft_tokens`; it shares the state."""
        position = self.position + len(draft_tokens)
        row = replace(
            self, output_ids=[*self.output_ids, *draft_tokens], position=position, mask=None
        )
        row._seen, row._allowed, row._dry = self._seen, self._allowed, self._dry
        row.surprise = self.surprise
        return row

    def has_edits(self) -> bool:
        """Return whether `edit` changes anything."""
        params = self.params
        return bool(
            self.mask is not None
            or self.forced is not None
            or params.allowed_token_ids is not None
            or params.logit_bias
            or self.bad_words_ids
            or self.position < params.min_tokens
            or params.no_repeat_ngram_size
            or _is_penalised(params)
        )

    def edit(self, logits: Logits) -> None:
        """Change the row's `logits` [V] in place: penalties, biases, then bans."""
        if self.forced is not None:
            logits.fill(-np.inf)
            logits[self.forced] = 0
            return
        if _is_penalised(self.params):
            self._penalise(logits)
        for token_id, bias in self.params.logit_bias.items():
            if 0 <= token_id < len(logits):
                logits[token_id] += np.float32(bias)
        if self.bad_words_ids:
            _ban_bad_words(logits, self)
        if self.params.no_repeat_ngram_size:
            _ban_repeated(logits, self, self.params.no_repeat_ngram_size)
        if self.position < self.params.min_tokens:
            logits[_inside(self.end_ids, len(logits))] = -np.inf
        if self.params.allowed_token_ids is not None:
            self._keep_allowed(logits, self.params.allowed_token_ids)
        if self.mask is not None:
            logits[~_unpack(self.mask, len(logits))] = -np.inf

    def _penalise(self, logits: Logits) -> None:
        ids, counts = self._seen.count(self.output_ids, len(logits))
        params = self.params
        if params.repetition_penalty != 1.0:
            # A token of both is written twice with the same value.
            both = np.concatenate((self._seen.prompt(len(logits)), ids))
            values = logits[both]
            penalty = np.float32(params.repetition_penalty)
            logits[both] = np.where(values > 0, values / penalty, values * penalty)
        logits[ids] -= counts * np.float32(params.frequency_penalty)
        logits[ids] -= np.float32(params.presence_penalty)
        if params.dry_multiplier:
            if self._dry is None:
                self._dry = RepetitionPenalty(params, self.prompt_ids, self.token_bytes)
            self._dry.penalise(logits, self.output_ids)

    def _keep_allowed(self, logits: Logits, allowed: Sequence[int]) -> None:
        if self._allowed is None:
            self._allowed = _inside(allowed, len(logits))
        kept = logits[self._allowed]
        logits.fill(-np.inf)
        logits[self._allowed] = kept


class _TokenCounts:
    """Tokens of a prompt, and how often each is in its answer."""

    __slots__ = ("_counted", "_counts", "_prompt", "_prompt_ids")

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._prompt_ids = prompt_ids
        self._prompt: Ids | None = None
        self._counted: list[int] = []
        self._counts: dict[int, int] = {}

    def prompt(self, vocab_size: int) -> Ids:
        """Return the tokens of the prompt, each once."""
        if self._prompt is None:
            self._prompt = np.unique(_inside(self._prompt_ids, vocab_size))
        return self._prompt

    def count(self, output_ids: Sequence[int], vocab_size: int) -> tuple[Ids, Logits]:
        """Return the tokens of the answer, each once, and how often they occur."""
        start = len(self._counted)
        if list(output_ids[:start]) != self._counted:  # a draft token was rejected
            self._counted, self._counts, start = [], {}, 0
        for token_id in output_ids[start:]:
            self._counted.append(token_id)
            if 0 <= token_id < vocab_size:
                self._counts[token_id] = self._counts.get(token_id, 0) + 1
        size = len(self._counts)
        return (
            np.fromiter(self._counts.keys(), np.int64, size),
            np.fromiter(self._counts.values(), np.float32, size),
        )


def _is_penalised(params: SamplingParams) -> bool:
    penalties = (params.frequency_penalty, params.presence_penalty, params.dry_multiplier)
    return params.repetition_penalty != 1.0 or penalties != (0.0, 0.0, 0.0)


def _inside(ids: Iterable[int], vocab_size: int) -> Ids:
    """Return those of `ids` that have a logit; a tokenizer can know more tokens than its model."""
    array = np.array(list(ids), np.int64)
    return array[(array >= 0) & (array < vocab_size)]


def _ban_bad_words(logits: Logits, row: SampleRow) -> None:
    longest = max(len(word) for word in row.bad_words_ids) - 1
    tail = [*row.output_ids[-longest:]] if longest > 0 else []
    if len(tail) < longest:  # the word may have begun in the prompt
        tail = [*row.prompt_ids[-(longest - len(tail)) :], *tail]
    for word in row.bad_words_ids:
        start = list(word[:-1])
        is_begun = not start or tail[-len(start) :] == start
        if word and is_begun and 0 <= word[-1] < len(logits):
            logits[word[-1]] = -np.inf


def _ban_repeated(logits: Logits, row: SampleRow, size: int) -> None:
    """Forbid tokens that would end a sequence of `size` tokens that was there before."""
    tokens = np.array([*row.prompt_ids, *row.start_ids, *row.output_ids], np.int64)
    if len(tokens) < size:
        return
    windows = np.lib.stride_tricks.sliding_window_view(tokens, size)
    is_begun = (windows[:, :-1] == tokens[len(tokens) - size + 1 :]).all(1)
    logits[_inside(windows[is_begun, -1], len(logits))] = -np.inf


def _unpack(mask: Mask, vocab_size: int) -> npt.NDArray[np.bool_]:
    if mask.dtype != np.bool_:
        if mask.dtype.itemsize != 4 or mask.dtype.kind not in "iu":
            raise TypeError(f"a mask is of dtype {mask.dtype}: This is a bug in the grammar")
        mask = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), bitorder="little")
    allowed = np.zeros(vocab_size, np.bool_)
    size = min(vocab_size, len(mask))
    allowed[:size] = mask[:size]
    return allowed


def check_ids(params: SamplingParams, vocab_size: int) -> None:
    """Check that the tokens that `params` names exist.

    Raises InvalidField naming the parameter, what was given and what is accepted.
    """
    for name in _NAMES:
        for token_id in getattr(params, name) or ():
            if type(token_id) is not int or not 0 <= token_id < vocab_size:
                accepted = f"an int of 0 to {vocab_size - 1}"
                raise InvalidField(name, f"has token id {token_id!r}, expected {accepted}")
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise InvalidField("allowed_token_ids", "is empty, expected at least one token id")
    for token_id, bias in params.logit_bias.items():
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not is_number or not np.isfinite(bias):
            what = f"of token {token_id} is {bias!r}, expected a finite number"
            raise InvalidField("logit_bias", what)
