"""Beam search in an engine: the answers that are followed, chosen by the logits behind each.

Scores, candidates and the end are those of `generate` of transformers, so that answers are equal:
of twice as many candidates as beams (more with several end tokens) the best that go on are
followed, and those that end are set aside if they are among the first.  Knows no cache and no text.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.core.sampling_params import SamplingParams, TokenLogprob
from mindspore_serving.llm.sampling.sampler import token_logprobs

Floats: TypeAlias = npt.NDArray[np.float32]
Entries: TypeAlias = tuple[tuple[TokenLogprob, ...], ...]


@dataclass(frozen=True, slots=True)
class Beam:
    """Answer with its score: the sum of its tokens' log-probabilities.

    Of a complete one the sum is divided by a power of the length.  `gains` are what each token has
    added to it, `logprobs` the model's for the tokens, if requested.
    """

    tokens: tuple[int, ...]
    score: np.float32
    gains: tuple[float, ...] = ()
    logprobs: Entries = ()


class Edits(Protocol):
    """Changes of the log-probabilities behind a beam."""

    def has_edits(self) -> bool: ...

    def edit(self, logits: Floats, /) -> None: ...


class BeamSearch:
    """Search for the answers of a request.

    Args:
        params: of the request.
        end_ids: tokens that end an answer.
        max_tokens: of an answer.
        num_forced: tokens behind the decoder's first that belong to no answer, but to its length.
        edits_of: returns the edits behind some tokens.
        max_ended: complete answers that end the search; 0: as many as beams.

    `tokens` are the last ones of the beams, which the next step computes; `parents` are the
    numbers of the beams of the step before that each continues.  Both are empty at the start.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        end_ids: Collection[int],
        max_tokens: int,
        num_forced: int,
        edits_of: Callable[[Sequence[int]], Edits],
        max_ended: int = 0,
    ) -> None:
        self._params, self._ends, self._max_tokens = params, frozenset(end_ids), max_tokens
        self._num_forced, self._edits_of = num_forced, edits_of
        self._max_ended = max_ended or params.num_beams
        self._num_candidates = max(2, 1 + len(self._ends)) * params.num_beams
        self.restart()

    def restart(self) -> None:
        """Begin anew, as the beams are not in the cache any more."""
        self._beams = [Beam((), np.float32(0))]
        self._ended: list[Beam] = []
        self._may_improve = True
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.is_done = False
        self.problem = ""  # why there are no answers

    @property
    def width(self) -> int:
        """Number of answers that are followed at most."""
        return self._params.num_beams

    @property
    def length(self) -> int:
        """Number of tokens of each answer that is followed."""
        return len(self._beams[0].tokens)

    def advance(self, logits: Floats) -> None:
        """Continue the beams by the logits [beams, V] behind each."""
        if not np.isfinite(logits.max(1)).all():
            self.problem, self.is_done = "the model's logits are NaN or infinite", True
            return
        totals = np.concatenate(
            [self._totals(beam, row) for beam, row in zip(self._beams, logits, strict=True)]
        )
        running: list[tuple[Beam, int]] = []
        ended: list[Beam] = []
        for rank, index in enumerate(_largest(totals, self._num_candidates)):
            parent, token = divmod(int(index), logits.shape[1])
            if totals[index] == -np.inf:
                break
            beam = self._extended(self._beams[parent], token, totals[index], logits[parent])
            if token in self._ends or len(beam.tokens) == self._max_tokens:
                ended += [beam] if rank < self.width else []
            elif len(running) < self.width:
                running.append((beam, parent))
        self._set_aside(ended)
        self._beams = [beam for beam, _ in running]
        self.tokens = [beam.tokens[-1] for beam in self._beams]
        self.parents = [parent for _, parent in running]
        self._look_ahead()

    def best(self, count: int) -> list[Beam]:
        """Return the best complete answers, best first; fewer if there are not so many."""
        return self._ended[:count]

    def _totals(self, beam: Beam, logits: Floats) -> Floats:
        """Return the scores of a beam with each of the tokens."""
        shifted = logits - logits.max()
        logprobs: Floats = shifted - np.log(np.exp(shifted).sum())
        edits = self._edits_of(beam.tokens)
        if edits.has_edits():
            edits.edit(logprobs)
        return logprobs + beam.score

    def _extended(self, beam: Beam, token: int, total: np.float32, logits: Floats) -> Beam:
        logprobs, count = beam.logprobs, self._params.logprobs
        if count is not None:
            logprobs = (*logprobs, token_logprobs(logits, token, count))
        gains = (*beam.gains, float(total - beam.score))
        return Beam((*beam.tokens, token), total, gains, logprobs)

    def _set_aside(self, ended: Iterable[Beam]) -> None:
        """Keep the best of the complete answers."""
        is_full = len(self._ended) == self._max_ended
        if not self._may_improve or (is_full and self._params.early_stopping):
            return
        for beam in ended:
            score = self._score(beam.score, len(beam.tokens))
            self._ended.append(replace(beam, score=score))
        self._ended = sorted(self._ended, key=lambda beam: -beam.score)[: self._max_ended]

    def _look_ahead(self) -> None:
        """Set whether the search is done, as no beam can become better."""
        is_full = len(self._ended) == self._max_ended
        if self._beams and is_full:
            best = self._beams[0]
            possible = self._score(best.score, len(best.tokens))
            self._may_improve = self._may_improve and bool(possible > self._ended[-1].score)
        is_enough = is_full and (self._params.early_stopping or not self._may_improve)
        self.is_done = not self._beams or is_enough

    def _score(self, total: np.float32, length: int) -> np.float32:
        divisor = float(self._num_forced + length) ** self._params.length_penalty
        return np.float32(total / np.float32(divisor))


def _largest(values: Floats, count: int) -> npt.NDArray[np.int64]:
    """Return the indices of the largest values, the largest first, of equal ones the first."""
    count = min(count, len(values))
    chosen = np.argpartition(-values, count - 1)[:count]
    order: npt.NDArray[np.int64] = chosen[np.lexsort((chosen, -values[chosen]))]
    return order
