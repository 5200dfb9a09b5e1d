"""Penalties of tokens that go on with a repeated sequence: DRY, "don't repeat yourself".

A token that followed the last tokens of the text before gets a penalty which grows with the length
of the repetition.  Method and names of parameters are those of llama.cpp's sampler.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mindspore_serving.core.sampling_params import SamplingParams

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

MAX_LENGTH = 64
"""Longest repetition that is told apart: a longer one has the same penalty."""
_MAX_PENALTY = 1e30  # the largest logit it is subtracted from stays finite


class RepetitionPenalty:
    """DRY penalty of one prompt's completions.

    `token_bytes` returns the bytes of a token, in which sequence breakers are looked for; None for
    a model without a tokenizer, whose sequences nothing breaks.
    """

    __slots__ = ("_breakers", "_is_breaker", "_params", "_prompt", "_token_bytes")

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        token_bytes: Callable[[int], bytes] | None,
    ) -> None:
        self._params = params
        self._prompt = np.array(list(prompt_ids), np.int64)
        self._token_bytes = token_bytes
        self._breakers = [text.encode() for text in params.dry_sequence_breakers]
        self._is_breaker: dict[int, bool] = {}

    def penalise(self, logits: Logits, output_ids: Sequence[int]) -> None:
        """Subtract the penalties behind `output_ids` from `logits` [V], in place."""
        params = self._params
        context = np.concatenate((self._prompt, np.array(list(output_ids), np.int64)))
        if params.dry_penalty_last_n >= 0:
            context = context[len(context) - min(params.dry_penalty_last_n, len(context)) :]
        ids, lengths = _repetitions(context, self._unbroken_length(context))
        is_long = (lengths >= params.dry_allowed_length) & (ids >= 0) & (ids < len(logits))
        is_long[is_long] = [not self._breaks(int(token_id)) for token_id in ids[is_long]]
        excess = (lengths[is_long] - params.dry_allowed_length).astype(np.float64)
        penalties = params.dry_multiplier * params.dry_base**excess
        logits[ids[is_long]] -= np.minimum(penalties, _MAX_PENALTY).astype(np.float32)

    def _unbroken_length(self, context: Ids) -> int:
        """Return the number of tokens at the end that no breaker is among."""
        length = 0
        for token_id in context[: -MAX_LENGTH - 1 : -1]:
            if self._breaks(int(token_id)):
                break
            length += 1
        return length

    def _breaks(self, token_id: int) -> bool:
        if self._token_bytes is None:
            return False
        if token_id not in self._is_breaker:
            data = self._token_bytes(token_id)
            self._is_breaker[token_id] = any(breaker in data for breaker in self._breakers)
        return self._is_breaker[token_id]


def _repetitions(context: Ids, longest: int) -> tuple[Ids, Ids]:
    """Return tokens that followed the end of `context` before, and the lengths of what repeats.

    Each token has the length of its longest repetition, at most `longest`.
    """
    if not longest:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    ends = np.flatnonzero(context[:-1] == context[-1])
    lengths = np.ones(len(ends), np.int64)
    equal = np.arange(len(ends))
    for back in range(1, longest):
        equal = equal[ends[equal] >= back]
        equal = equal[context[ends[equal] - back] == context[-1 - back]]
        lengths[equal] = back + 1
    ids, index = np.unique(context[ends + 1], return_inverse=True)
    longest_of = np.zeros(len(ids), np.int64)
    np.maximum.at(longest_of, index, lengths)
    return ids, longest_of
