"""Guessing the next tokens, so that more of them come per second: how many guesses each answer
makes in each step, and from where.

Guesses are tokens that a grammar forces, tokens that followed in a text that was the same before
(`suffix_drafter`), or those of a draft model.  How many are made follows from how often they were
right and from what steps take.  Guesses from text that a sequence does not make are compared with
its text as well, so it begins again when they would have been right; those of a draft model are
tried again now and then.  A wrong guess costs a row of a step; no guess changes the answer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.acceptance import Acceptance, Rate, worthwhile
from mindspore_serving.llm.engine.draft_model import Clock, DraftModel
from mindspore_serving.llm.engine.sequence import Sequence
from mindspore_serving.llm.engine.step_cost import SIZES, StepCost
from mindspore_serving.llm.engine.suffix_drafter import RecentAnswers, Scope, SuffixDrafter
from mindspore_serving.llm.engine.suffix_index import NOTHING, Draft
from mindspore_serving.llm.grammar.state import GrammarState
from mindspore_serving.llm.step import Runner, Step

_TRIED = 4  # guesses of a draft model that finds out how good it is now


class Guesser:
    """The guesses of one answer: what it would guess, and how often that was right."""

    __slots__ = (
        *("_acceptance", "_drafter", "_is_sampled", "draft", "modelled", "num_guesses"),
        *("num_right", "rate"),
    )

    def __init__(self, drafter: SuffixDrafter, rate: Rate, *, is_sampled: bool) -> None:
        self._drafter = drafter
        self._is_sampled = is_sampled
        self._acceptance = Acceptance(is_sampled=is_sampled)
        self.rate = rate  # of the draft model
        self.draft = NOTHING
        self.modelled: list[int] = []  # what the draft model has guessed
        self.num_guesses = self.num_right = 0  # of those that were computed

    def fork(self) -> "Guesser":
        """For another answer to the same prompt."""
        return Guesser(self._drafter.fork(), self.rate.fork(), is_sampled=self._is_sampled)

    def extend(self, new: tuple[int, ...]) -> None:
        """These tokens were chosen."""
        if self.draft.tokens:
            self._acceptance.observe(self.draft, new)
        if self.modelled:
            self.rate.observe(self.modelled, new)
        self.draft, self.modelled = NOTHING, []
        self._drafter.extend(new)

    def look(self, most: int, grammar: GrammarState | None) -> list[float]:
        """Make a draft of at most `most` tokens: for each, that it and all before are right."""
        self.draft = self._drafter.propose(most)
        if grammar is not None:
            self.draft = _within(self.draft, grammar, most)
        return self._acceptance.chances(self.draft) if self.draft.tokens else []


def _within(draft: Draft, grammar: GrammarState, most: int) -> Draft:
    """What the grammar leaves of `draft`, or what must follow if that is something else."""
    forced = grammar.forced(most)
    if forced and draft.tokens[: len(forced)] != forced:
        return Draft(forced, is_forced=True)
    return Draft(grammar.valid_prefix(draft.tokens), draft.agreed, draft.shares)


class Guessing(Protocol):
    """An answer that goes on, as `Speculation` sees it."""

    guesser: Guesser | None
    grammar: GrammarState | None


@dataclass(slots=True)
class _Candidate:
    """A sequence that may guess, and how many tokens of its draft, or by the draft model.

    `chances` are of its draft: that each token and all before it are right; `modelled` those of
    the draft model, [] if its guesses are not likelier.
    """

    sequence: Sequence
    guesser: Guesser
    grammar: GrammarState | None
    chances: list[float]
    modelled: list[float]
    num_drafted: int = 0
    num_modelled: int = 0

    def give(self, modelled: list[int]) -> None:
        """Let the next step verify `modelled`, or else the draft."""
        self.guesser.modelled = modelled
        if modelled and self.grammar is not None:
            modelled = self.grammar.valid_prefix(modelled)
        self.sequence.draft = modelled or self.guesser.draft.tokens[: self.num_drafted]


class Speculation:
    """Decides how many tokens of each answer a step guesses, and counts what was right.

    `runner` is what verifies them, `draft` a model that guesses, timed by `clock`.
    """

    def __init__(
        self, config: EngineConfig, runner: Runner, draft: Runner | None, clock: Clock
    ) -> None:
        self.most = config.most_guesses(has_states=runner.num_slots > 0)
        self.num_guesses = self.num_right = 0
        self._config = config
        self._model: DraftModel | None = None
        if draft is not None:
            self._model = DraftModel(draft, config, runner.vocab_size, clock)
        self._recent = RecentAnswers(config)
        self._cost = StepCost()

    def begin(self, prompt: list[int], scope: Scope, params: SamplingParams) -> Guesser | None:
        """Of an answer to `prompt`; None if nothing is guessed: as long as the operator has not
        asked for guesses, not where log-probabilities are shown, whose last digits change.
        """
        shows_numbers = params.logprobs is not None
        if not self.most or (shows_numbers and not self._config.asks_for_guesses):
            return None
        shared = self._recent.of(scope) if self._config.enable_prefix_caching else ()
        rate = Rate(self._model.rate if self._model else None)
        drafter = SuffixDrafter(self._config, prompt, shared)
        return Guesser(drafter, rate, is_sampled=params.temperature > 0)

    def end(self, scope: Scope, answer: list[int]) -> None:
        """An answer ended: others may go on as it did."""
        if self.most and self._config.enable_prefix_caching:
            self._recent.add(scope, answer)

    def count(self, answer: Guessing, num_guesses: int, num_right: int) -> None:
        """So many guesses of `answer` were computed, and right; -1 if the step gave no token."""
        num_right = max(0, num_right)
        self.num_guesses += num_guesses
        self.num_right += num_right
        if answer.guesser is not None:
            answer.guesser.num_guesses += num_guesses
            answer.guesser.num_right += num_right

    def guess(self, running: Iterable[Sequence], answers: Mapping[Sequence, Guessing]) -> None:
        """Give those of `running` that decode the tokens that the next step verifies."""
        if not self.most:
            return
        found, num_rows = list[_Candidate](), 0
        for sequence in running:
            if not sequence.is_decoding:
                continue
            num_rows += 1
            answer = answers[sequence]
            one = answer.guesser and self._look(sequence, answer.guesser, answer.grammar)
            if one:
                found.append(one)
        if found:
            self._decide(found, num_rows)
        proposed: Mapping[Sequence, list[int]] = {}
        if self._model is not None:
            wanted = {one.sequence: one.num_modelled for one in found if one.num_modelled}
            proposed = self._model.propose(wanted)
        for one in found:
            one.give(proposed.get(one.sequence, []))

    def observe(self, step: Step, seconds: float) -> None:
        """A step took `seconds`, from the first guess to the last token."""
        seconds -= self._model.seconds if self._model else 0.0
        is_alike = not step.copies
        for row in step.rows:
            if row.num_logits != len(row.tokens):
                is_alike = False
        if is_alike:
            self._cost.observe(step.num_tokens, seconds)
        else:
            self._cost.interrupt(step.num_tokens)
        if self._model is not None:
            unit = seconds / self._cost.of(step.num_tokens)
            self._model.observe(seconds, (lambda n: unit * self._cost.of(n)) if is_alike else None)

    def close(self) -> None:
        """Close the draft model."""
        if self._model is not None:
            self._model.close()

    def _look(
        self, sequence: Sequence, guesser: Guesser, grammar: GrammarState | None
    ) -> _Candidate | None:
        """None if there is nothing to guess."""
        sequence.draft = []
        most = min(self.most, max(0, sequence.room))
        chances, modelled = guesser.look(most, grammar), list[float]()
        if not self._config.adaptive_speculation:  # also those that are unlikely
            chances += [0.0] * (len(guesser.draft.tokens) - len(chances))
        if self._model is not None and not guesser.draft.is_forced:
            modelled = guesser.rate.chances(min(most, self._model.room(sequence)))
        if not (chances or modelled):
            return None
        is_likelier = sum(modelled) > sum(chances)
        return _Candidate(sequence, guesser, grammar, chances, modelled if is_likelier else [])

    def _decide(self, found: list[_Candidate], num_rows: int) -> None:
        """How many guesses each sequence makes, in a step of `num_rows` rows without them."""
        if not self._config.adaptive_speculation:
            for one in found:
                one.num_drafted, one.num_modelled = len(one.chances), len(one.modelled)
            return
        if self._cost.wants_plain(num_rows):
            return
        cost = partial(self._cost.of_next, plain=num_rows)
        plan = worthwhile([one.chances for one in found], num_rows, cost, sizes=SIZES)
        for one, count in zip(found, plan.counts, strict=True):
            one.num_drafted = count
        if any(one.modelled for one in found):
            self._use_model(found, num_rows, plan.rate)

    def _use_model(self, found: list[_Candidate], num_rows: int, rate: float) -> None:
        """Let the draft model guess if that gives more than `rate`, or is to be tried."""
        assert self._model is not None
        places = [place for place, one in enumerate(found) if one.modelled]
        each = [one.modelled or one.chances for one in found]
        pass_cost = self._model.cost * self._cost.of(len(places))
        cost = partial(self._cost.of_next, plain=num_rows)
        plan = worthwhile(each, num_rows, cost, frozenset(places), pass_cost=pass_cost, sizes=SIZES)
        if plan.rate > rate and any(plan.counts[place] for place in places):
            for one, count in zip(found, plan.counts, strict=True):
                if one.modelled:
                    one.num_modelled = count
                else:
                    one.num_drafted = count
        elif self._model.is_to_try:
            one = min((found[place] for place in places), key=self._missing)
            one.num_modelled = min(_TRIED, len(one.modelled))

    def _missing(self, one: _Candidate) -> int:
        return self._model.behind(one.sequence) if self._model else 0
