"""Acceptance rates of draft tokens, and how many of them a step should verify.  Knows no model.

A draft token that continues an earlier text is accepted the more often, the more tokens before it
agree with that text (`Draft.match_length`), so acceptance is counted by that number, in buckets:

    agreed     1    2-3   4-7   8-15  16-31  32 and more   forced by a grammar
    bucket     0     1     2     3      4        5              6

The next token of a draft counts as a longer match: no search chose it, so a token that is accepted
says as much as `_MATCH_PER_ACCEPTED` tokens of the match that the search looked for.  Draft tokens
of a draft model all count alike (`ModelAcceptance`).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from mindspore_serving.llm.engine.suffix_index import Draft

_GREEDY = (0.1, 0.3, 0.7, 0.85, 0.92, 0.97, 0.95)  # prior acceptance rates of the buckets
_SAMPLED = (0.05, 0.2, 0.5, 0.75, 0.9, 0.95, 0.95)
_FORCED = len(_GREEDY) - 1
_MATCH_PER_ACCEPTED = 4
_PRIOR_WEIGHT = 4.0  # in draft tokens
_DECAY = 0.95  # of the counts of a sequence, with each draft token that is counted
_DECAY_OF_ALL = 0.97  # the same for all sequences together
_MIN_GAIN = 1.05  # factor of tokens per second from which on a step has draft tokens
_MIN_PROBABILITY = 0.03  # of a draft token to be considered
_MIN_FIRST = 0.1  # of the first token: drafts below it gain nothing, and take time
_MODEL_PRIOR = 0.7  # acceptance rate of a draft model before anything is counted
_DECAY_PER_CALL = 0.99  # of the counts, with each call of `ModelAcceptance.probabilities`


class MatchAcceptance:
    """Acceptance rates of the draft tokens that one sequence takes from text; old ones fade.

    Before anything is counted, an answer that `is_sampled` is assumed to accept fewer of them.
    """

    __slots__ = ("_priors", "_accepted", "_tried")

    def __init__(self, *, is_sampled: bool = False) -> None:
        self._priors = _SAMPLED if is_sampled else _GREEDY
        self._accepted = [0.0] * len(self._priors)
        self._tried = [0.0] * len(self._priors)

    def observe(self, draft: Draft, tokens: Sequence[int]) -> None:
        """Count which tokens of `draft` the text went on with; it need not have been verified."""
        for index, (draft_token, token) in enumerate(zip(draft.tokens, tokens, strict=False)):
            bucket = _bucket(draft, index)
            self._accepted[bucket] = _DECAY * self._accepted[bucket] + (draft_token == token)
            self._tried[bucket] = _DECAY * self._tried[bucket] + 1
            if draft_token != token:
                return

    def probabilities(self, draft: Draft) -> list[float]:
        """Return for each token of `draft` how likely it and all before it are accepted.

        The list ends before the first token that is too unlikely to be considered.
        """
        probabilities, probability = [], 1.0
        for index in range(len(draft.tokens)):
            bucket = _bucket(draft, index)
            accepted = self._accepted[bucket] + _PRIOR_WEIGHT * self._priors[bucket]
            probability *= accepted / (self._tried[bucket] + _PRIOR_WEIGHT)
            if draft.shares is not None:
                probability *= draft.shares[index]
            if probability < (_MIN_PROBABILITY if index else _MIN_FIRST):
                break
            probabilities.append(probability)
        return probabilities


def _bucket(draft: Draft, index: int) -> int:
    """Return the bucket of the token `index` of `draft`."""
    if draft.is_forced:
        return _FORCED
    return min(_FORCED - 1, (draft.match_length + _MATCH_PER_ACCEPTED * index).bit_length() - 1)


class ModelAcceptance:
    """Acceptance rate of a draft model's tokens: of one sequence, or of all sequences together.

    The rate of a sequence starts at that of `all_sequences`.
    """

    __slots__ = ("_all", "_accepted", "_tried")

    def __init__(self, all_sequences: "ModelAcceptance | None" = None) -> None:
        self._all = all_sequences
        self._accepted = self._tried = 0.0

    def fork(self) -> "ModelAcceptance":
        """Return the rate of another answer to the same prompt."""
        return ModelAcceptance(self._all)

    def observe(self, draft_tokens: Iterable[int], tokens: Iterable[int]) -> None:
        """Count the accepted ones of `draft_tokens`, the draft tokens that `tokens` followed."""
        for draft_token, token in zip(draft_tokens, tokens, strict=False):
            self._count(draft_token == token)
            if draft_token != token:
                return

    def probabilities(self, count: int) -> list[float]:
        """Return for each of `count` draft tokens how likely it and all before it are accepted.

        Each call fades what was counted, so that a model that is not asked is trusted again some
        time.
        """
        self._accepted, self._tried = (
            _DECAY_PER_CALL * self._accepted,
            _DECAY_PER_CALL * self._tried,
        )
        probability = self._probability()
        return [probability ** (index + 1) for index in range(count)]

    def _count(self, is_accepted: bool) -> None:
        decay = _DECAY_OF_ALL if self._all is None else _DECAY
        self._accepted = decay * self._accepted + is_accepted
        self._tried = decay * self._tried + 1
        if self._all is not None:
            self._all._count(is_accepted)

    def _probability(self) -> float:
        prior = _MODEL_PRIOR if self._all is None else self._all._probability()
        return (self._accepted + _PRIOR_WEIGHT * prior) / (self._tried + _PRIOR_WEIGHT)


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """Number of draft tokens of each sequence, and the tokens per unit of time that they give."""

    counts: list[int]
    rate: float


def plan_drafts(
    probabilities: Sequence[Sequence[float]],
    num_rows: int,
    cost: Callable[[int], float],
    by_model: Collection[int] = (),
    *,
    pass_cost: float = 0.0,
    sizes: Collection[int] | None = None,
) -> DraftPlan:
    """Return the draft tokens that give the most tokens per unit of time; none if they gain little.

    Args:
        probabilities: of each sequence, for its draft tokens in order; they never rise.
        num_rows: rows of the step without draft tokens, each of which gives a token.
        cost: seconds of a step by its number of rows, up to a common factor.
        by_model: indices of the sequences whose draft tokens the draft model has yet to compute:
            the first tokens of all of them in one pass, then the second ones, and so on.
        pass_cost: what such a pass takes, in the unit of `cost`.
        sizes: numbers of rows that a step with draft tokens may have; None allows any.
    """
    # Probabilities of a sequence never rise, so the n likeliest draft tokens of all sequences are
    # always leading ones of each: it is enough to rank them once and to try every n.  The search
    # does not end at the first n that gains nothing, as `cost` may rise in steps (kernels that
    # compute 8 rows at once).  The sort is stable and looks at probabilities alone.
    counts, deepest = [0] * len(probabilities), 0
    if not num_rows:
        return DraftPlan(counts, 0.0)
    ranked = sorted(
        (
            (-probability, index)
            for index, row in enumerate(probabilities)
            for probability in row
            if probability > _MIN_PROBABILITY
        ),
        key=itemgetter(0),
    )
    tokens = float(num_rows)
    best, best_rate = 0, _MIN_GAIN * tokens / cost(num_rows)
    depths = [0] * len(probabilities)
    for count, (negated, index) in enumerate(ranked, 1):
        tokens -= negated
        depths[index] += 1
        if index in by_model:
            deepest = max(deepest, depths[index])
        rate = tokens / (cost(num_rows + count) + pass_cost * deepest)
        if rate > best_rate and (sizes is None or num_rows + count in sizes):
            best, best_rate = count, rate
    for _, index in ranked[:best]:
        counts[index] += 1
    return DraftPlan(counts, best_rate)
