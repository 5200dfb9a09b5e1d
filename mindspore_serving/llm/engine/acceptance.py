"""How likely guesses are right, and how many of them are worth a step: numbers only.

How likely a guess from an earlier text is right depends most on how many tokens before it are the
same at the place that it was taken from, so that is what is counted.  A guess behind one that was
right is likelier than that: the place was not sought for it, so a token that agrees there says as
much as `_SAYS` of those that it was found by.  The guesses of a draft model are all of one kind
(`Rate`).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from mindspore_serving.llm.engine.suffix_index import Draft

_GREEDY = (0.1, 0.3, 0.7, 0.85, 0.92, 0.97, 0.95)  # of 1, 2-3, 4-7, 8-15, 16-31, more; of forced
_SAMPLED = (0.05, 0.2, 0.5, 0.75, 0.9, 0.95, 0.95)
_FORCED = len(_GREEDY) - 1
_SAYS = 4
_WEIGHT = 4.0  # of a prior, in guesses
_KEPT = 0.95  # of what was counted, with each guess of a sequence that is counted
_KEPT_OF_ALL = 0.97  # the same of all sequences together
_LEAST_GAIN = 1.05  # in tokens per second, for which guesses are made
_LEAST_CHANCE = 0.03  # of a guess that is considered
_LEAST_FIRST = 0.1  # of the first of a draft: such drafts gain nothing, and take time
_MODEL_PRIOR = 0.7  # that a guess of a draft model is right
_FADED = 0.99  # of what was counted, with each step that counts nothing


class Acceptance:
    """The guesses of one sequence, right and wrong; older ones count less.  Before there are any,
    those of an answer that `is_sampled` are thought to be right less often.
    """

    __slots__ = ("_priors", "_right", "_tried")

    def __init__(self, *, is_sampled: bool = False) -> None:
        self._priors = _SAMPLED if is_sampled else _GREEDY
        self._right = [0.0] * len(self._priors)
        self._tried = [0.0] * len(self._priors)

    def observe(self, draft: Draft, tokens: Sequence[int]) -> None:
        """What followed was `tokens`, whether `draft` was computed or not."""
        for place, (guess, token) in enumerate(zip(draft.tokens, tokens, strict=False)):
            kind = _kind(draft, place)
            self._right[kind] = _KEPT * self._right[kind] + (guess == token)
            self._tried[kind] = _KEPT * self._tried[kind] + 1
            if guess != token:
                return

    def chances(self, draft: Draft) -> list[float]:
        """For each token of `draft`: that it and all before it are right; as far as that is likely
        enough to be considered.
        """
        chances, chance = [], 1.0
        for place in range(len(draft.tokens)):
            kind = _kind(draft, place)
            right = self._right[kind] + _WEIGHT * self._priors[kind]
            chance *= right / (self._tried[kind] + _WEIGHT)
            if draft.shares is not None:
                chance *= draft.shares[place]
            if chance < (_LEAST_CHANCE if place else _LEAST_FIRST):
                break
            chances.append(chance)
        return chances


def _kind(draft: Draft, place: int) -> int:
    if draft.is_forced:
        return _FORCED
    return min(_FORCED - 1, (draft.agreed + _SAYS * place).bit_length() - 1)


class Rate:
    """The share of a draft model's guesses that are right, as far as those before them are: in one
    sequence, which begins with that of `all_sequences`, or in all.
    """

    __slots__ = ("_all", "_right", "_tried")

    def __init__(self, all_sequences: "Rate | None" = None) -> None:
        self._all = all_sequences
        self._right = self._tried = 0.0

    def fork(self) -> "Rate":
        """For another answer to the same prompt."""
        return Rate(self._all)

    def observe(self, guesses: Iterable[int], tokens: Iterable[int]) -> None:
        """What followed was `tokens`."""
        for guess, token in zip(guesses, tokens, strict=False):
            self._count(guess == token)
            if guess != token:
                return

    def chances(self, count: int) -> list[float]:
        """For each of `count` guesses: that it and all before it are right."""
        self._right, self._tried = _FADED * self._right, _FADED * self._tried
        chance = self._chance()
        return [chance ** (place + 1) for place in range(count)]

    def _count(self, is_right: bool) -> None:
        kept = _KEPT_OF_ALL if self._all is None else _KEPT
        self._right = kept * self._right + is_right
        self._tried = kept * self._tried + 1
        if self._all is not None:
            self._all._count(is_right)

    def _chance(self) -> float:
        prior = _MODEL_PRIOR if self._all is None else self._all._chance()
        return (self._right + _WEIGHT * prior) / (self._tried + _WEIGHT)


@dataclass(frozen=True, slots=True)
class GuessPlan:
    """How many guesses each sequence makes, and the tokens that this gives in a unit of time."""

    counts: list[int]
    rate: float


def worthwhile(
    chances: Sequence[Sequence[float]],
    num_rows: int,
    cost: Callable[[int], float],
    modelled: Collection[int] = (),
    *,
    pass_cost: float = 0.0,
    sizes: Collection[int] | None = None,
) -> GuessPlan:
    """The guesses that give the most tokens per unit of time; none if they give little more.

    `chances` of a sequence do not rise.  The step has `num_rows` rows without guesses, each of
    which gives a token; one of n rows takes `cost(n)`.  The guesses of the sequences at the places
    `modelled` are still to be made, the first ones of all in a pass that takes `pass_cost`, and so
    on.  A step with guesses has one of `sizes` rows, if they are given.
    """
    counts, deepest = [0] * len(chances), 0
    if not num_rows:
        return GuessPlan(counts, 0.0)
    ranked = sorted(
        (
            (-chance, place)
            for place, own in enumerate(chances)
            for chance in own
            if chance > _LEAST_CHANCE
        ),
        key=itemgetter(0),
    )
    tokens = float(num_rows)
    best, best_rate = 0, _LEAST_GAIN * tokens / cost(num_rows)
    depths = [0] * len(chances)
    for count, (chance, place) in enumerate(ranked, 1):
        tokens -= chance
        depths[place] += 1
        if place in modelled:
            deepest = max(deepest, depths[place])
        rate = tokens / (cost(num_rows + count) + pass_cost * deepest)
        if rate > best_rate and (sizes is None or num_rows + count in sizes):
            best, best_rate = count, rate
    for _, place in ranked[:best]:
        counts[place] += 1
    return GuessPlan(counts, best_rate)
