"""How likely guesses are right, and how many of them are worth a step: numbers only.

How likely a guess is right depends most on how many tokens before it are the same at the place that
it was taken from, so that is what is counted.  The second guess of a draft, if the first is right,
agrees with one more: the position is counted in the same way.
"""

from collections.abc import Callable, Sequence

from mindspore_serving.llm.engine.suffix_index import Draft

_PRIORS = (0.1, 0.2, 0.4, 0.7, 0.85, 0.92, 0.95)  # of 1, 2-3, 4-7, 8-15, 16-31, more; of forced
_FORCED = len(_PRIORS) - 1
_WEIGHT = 2.0  # of a prior, in guesses
_KEPT = 0.9  # of what was counted, with each guess that is counted
_LEAST_GAIN = 1.05  # in tokens per second, for which guesses are made


class Acceptance:
    """The guesses of one sequence, right and wrong; older ones count less."""

    __slots__ = ("_right", "_tried")

    def __init__(self) -> None:
        self._right = [0.0] * len(_PRIORS)
        self._tried = [0.0] * len(_PRIORS)

    def observe(self, draft: Draft, tokens: Sequence[int]) -> None:
        """What followed was `tokens`, whether `draft` was computed or not."""
        for place, (guess, token) in enumerate(zip(draft.tokens, tokens, strict=False)):
            kind = _kind(draft, place)
            self._right[kind] = _KEPT * self._right[kind] + (guess == token)
            self._tried[kind] = _KEPT * self._tried[kind] + 1
            if guess != token:
                return

    def chances(self, draft: Draft) -> list[float]:
        """For each token of `draft`: that it and all before it are right."""
        chances, chance = [], 1.0
        for place in range(len(draft.tokens)):
            kind = _kind(draft, place)
            right = self._right[kind] + _WEIGHT * _PRIORS[kind]
            chance *= right / (self._tried[kind] + _WEIGHT)
            if draft.shares is not None:
                chance *= draft.shares[place]
            chances.append(chance)
        return chances


def _kind(draft: Draft, place: int) -> int:
    if draft.is_forced:
        return _FORCED
    return min(_FORCED - 1, (draft.agreed + place).bit_length() - 1)


def worthwhile(
    chances: Sequence[Sequence[float]], num_rows: int, cost: Callable[[int], float]
) -> list[int]:
    """How many guesses of each sequence give the most tokens per second; all 0 if none do.

    `chances` of a sequence do not rise.  The step has `num_rows` rows without guesses, each of
    which gives a token; one of n rows takes `cost(n)`.
    """
    ranked = sorted(
        ((-chance, place) for place, own in enumerate(chances) for chance in own),
        key=lambda pair: pair[0],
    )
    tokens = float(num_rows)
    best, best_rate = 0, _LEAST_GAIN * tokens / cost(num_rows)
    for count, (chance, _) in enumerate(ranked, 1):
        tokens -= chance
        rate = tokens / cost(num_rows + count)
        if rate > best_rate:
            best, best_rate = count, rate
    counts = [0] * len(chances)
    for _, place in ranked[:best]:
        counts[place] += 1
    return counts
