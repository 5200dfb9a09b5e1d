"""Beam search: the likeliest answers to a prompt, by the sum of their tokens' log-probabilities.

Each step computes the next token of every beam as a request of its own; the prefix cache keeps the
work of the steps before.  Knows no engine.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from mindspore_serving.core.params import param, rows_of
from mindspore_serving.core.sampling_params import MAX_LOGPROBS, TokenLogprob

MAX_WIDTH = MAX_LOGPROBS // 2

_Scored: TypeAlias = tuple[list[int], float]  # an answer, and its sum of log-probabilities

Likeliest = Callable[[Sequence[list[int]], int], Sequence[Sequence[TokenLogprob]]]
"""Returns the likeliest tokens behind each of some texts, as many as asked for."""


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """Parameters of a beam search.

    Raises InvalidField naming the parameter, its value and what is accepted.
    """

    beam_width: int = param(
        4, "answers that are followed and returned", at_least=1, at_most=MAX_WIDTH
    )
    max_tokens: int = param(16, "max tokens of an answer", at_least=1)
    ignore_eos: bool = param(False, "continue after the model's end tokens")
    length_penalty: float = param(
        1.0,
        "power of an answer's length that divides its sum of log-probabilities",
        at_least=-10.0,
        at_most=10.0,
    )

    def __post_init__(self) -> None:
        for name, row in BEAM_SEARCH.items():
            row.check(getattr(self, name))


BEAM_SEARCH = rows_of(BeamSearchParams)


@dataclass(frozen=True, slots=True)
class BeamSearchSequence:
    """An answer: `tokens` and `text` begin with the prompt; the text has no special tokens.

    `cum_logprob` is the sum of the log-probabilities of the answer's tokens.
    """

    tokens: tuple[int, ...]
    cum_logprob: float
    text: str


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """Answers to a prompt, best first."""

    sequences: tuple[BeamSearchSequence, ...]


@dataclass(slots=True)
class Search:
    """Search from one prompt; `ended` are complete answers, `beams` those that go on."""

    prompt: list[int]
    params: BeamSearchParams
    ends: Collection[int]  # tokens that end an answer
    beams: list[_Scored] = field(init=False)
    ended: list[_Scored] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.beams = [([], 0.0)]

    def texts(self) -> list[list[int]]:
        """Return the texts to follow, with the prompt."""
        return [self.prompt + tokens for tokens, _ in self.beams]

    def advance(self, likeliest: Sequence[Sequence[TokenLogprob]]) -> None:
        """Continue each beam with its likeliest tokens, and keep the best.

        Beams that end are set aside. Of equally likely ones the first stays.
        """
        following: list[_Scored] = []
        for (tokens, total), entries in zip(self.beams, likeliest, strict=True):
            for entry in entries:
                answer = [*tokens, entry.token_id], total + entry.logprob
                is_end = entry.token_id in self.ends and not self.params.ignore_eos
                (self.ended if is_end else following).append(answer)
        following.sort(key=lambda answer: -answer[1])
        self.beams = following[: self.params.beam_width]
        if self.beams and len(self.beams[0][0]) == self.params.max_tokens:
            self.ended += self.beams
            self.beams = []
        self.ended = self.best()
        if len(self.ended) == self.params.beam_width and not self._may_improve():
            self.beams = []

    def best(self) -> list[_Scored]:
        """Return the best of the answers that ended, best first."""
        ranked = sorted(self.ended, key=lambda answer: -self._score(answer[1], len(answer[0])))
        return ranked[: self.params.beam_width]

    def _may_improve(self) -> bool:
        """Return whether a beam may still become better than the last of the answers."""
        tokens, total = self.ended[-1]
        worst = self._score(total, len(tokens))
        power = self.params.length_penalty
        return any(
            self._score(total, self.params.max_tokens if power > 0 else len(tokens) + 1) > worst
            for tokens, total in self.beams
        )

    def _score(self, total: float, length: int) -> float:
        divisor: float = float(length) ** self.params.length_penalty
        return total / divisor


def search(searches: Sequence[Search], likeliest: Likeliest) -> None:
    """Run searches with the same parameters to their end, a token of all of them at a time."""
    while running := [each for each in searches if each.beams]:
        texts = [text for each in running for text in each.texts()]
        entries = iter(likeliest(texts, 2 * running[0].params.beam_width))
        for each in running:
            each.advance([next(entries) for _ in each.beams])
