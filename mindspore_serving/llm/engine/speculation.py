"""Speculative decoding: how many draft tokens each answer gets in each step, and from where.

Draft tokens are tokens that a grammar forces, tokens that followed the same text before (prompt
lookup, `suffix_drafter`), or those of a draft model.  Their number follows from how often they were
accepted (`acceptance`) and from what steps take (`step_cost`).  A draft that is not verified is
compared with the text as well, so drafting resumes when it would have been accepted; a draft model
is tried again now and then.  A rejected draft token costs a row of a step; no draft token changes
the answer.

    grammar, suffix_drafter --> draft --.
                                        +--> plan_drafts --> Sequence.draft --> verified by the step
    draft model's acceptance rate ------'         ^                                     |
                                              step_cost <--- seconds, accepted tokens --'
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.acceptance import MatchAcceptance, ModelAcceptance, plan_drafts
from mindspore_serving.llm.engine.draft_model import DraftModel
from mindspore_serving.llm.engine.draft_source import Clock, DraftSource
from mindspore_serving.llm.engine.prediction_head import PredictionHead
from mindspore_serving.llm.engine.sequence import Scheduled, Sequence
from mindspore_serving.llm.engine.step_cost import SIZES, StepCost
from mindspore_serving.llm.engine.suffix_drafter import RecentAnswers, Scope, SuffixDrafter
from mindspore_serving.llm.engine.suffix_index import NO_DRAFT, Draft
from mindspore_serving.llm.grammar.state import GrammarState
from mindspore_serving.llm.step import HeadRunner, HiddenRunner, Runner

_NUM_TRIED = 4  # draft tokens of a draft model, to find out how good it is now


class DraftState:
    """Draft of one completion, and how often its draft tokens were accepted."""

    __slots__ = (
        *("_acceptance", "_drafter", "_is_sampled", "draft", "model_draft", "num_draft_tokens"),
        *("num_accepted", "num_forced", "rate"),
    )

    def __init__(self, drafter: SuffixDrafter, rate: ModelAcceptance, *, is_sampled: bool) -> None:
        self._drafter = drafter
        self._is_sampled = is_sampled
        self._acceptance = MatchAcceptance(is_sampled=is_sampled)
        self.rate = rate  # acceptance of the draft model's tokens
        self.draft = NO_DRAFT
        self.model_draft: list[int] = []  # tokens of the draft model
        self.num_draft_tokens = self.num_accepted = 0  # verified, and accepted
        self.num_forced = 0  # first tokens of the present draft that the grammar forces

    def fork(self) -> "DraftState":
        """Return the state of another answer to the same prompt."""
        return DraftState(self._drafter.fork(), self.rate.fork(), is_sampled=self._is_sampled)

    def extend(self, new: tuple[int, ...]) -> None:
        """Append the tokens that were generated, and compare them with the last draft."""
        if self.draft.tokens:
            self._acceptance.observe(self.draft, new)
        if self.model_draft:
            self.rate.observe(self.model_draft, new)
        self.draft, self.model_draft = NO_DRAFT, []
        self._drafter.extend(new)

    def propose(self, limit: int, grammar: GrammarState | None) -> list[float]:
        """Make a draft of at most `limit` tokens.

        Returns for each token how likely it and all before it are accepted.
        """
        self.draft, self.num_forced = self._drafter.propose(limit), 0
        if grammar is not None:
            forced = grammar.forced(limit)
            self.draft, self.num_forced = _constrain(self.draft, grammar, forced), len(forced)
        return self._acceptance.probabilities(self.draft) if self.draft.tokens else []


def _constrain(draft: Draft, grammar: GrammarState, forced: list[int]) -> Draft:
    """Return the part of `draft` that the grammar allows, or what it forces if that differs."""
    if forced and draft.tokens[: len(forced)] != forced:
        return Draft(forced, is_forced=True)
    return Draft(grammar.valid_prefix(draft.tokens), draft.match_length, draft.shares)


class SpeculativeCompletion(Protocol):
    """Parts of a completion that `Speculation` needs."""

    draft_state: DraftState | None
    grammar: GrammarState | None


@dataclass(slots=True)
class _Candidate:
    """A sequence that may get draft tokens.

    `probabilities` say how likely each token of its draft and all before it are accepted;
    `model_probabilities` say so for the draft model's tokens, [] if they are not likelier.
    `num_drafted` and `num_modelled` are how many of either the next step verifies.
    """

    sequence: Sequence
    draft_state: DraftState
    grammar: GrammarState | None
    probabilities: list[float]
    model_probabilities: list[float]
    num_drafted: int = 0
    num_modelled: int = 0

    def set_draft(self, modelled: list[int]) -> None:
        """Let the next step verify the draft model's tokens `modelled`, or else the draft."""
        self.draft_state.model_draft = modelled
        if modelled and self.grammar is not None:
            modelled = self.grammar.valid_prefix(modelled)
        self.sequence.draft = modelled or self.draft_state.draft.tokens[: self.num_drafted]


class Speculation:
    """Decides how many draft tokens of each answer a step verifies, and counts the accepted ones.

    Args:
        runner: verifies the draft tokens.
        draft: a draft model or prediction head, timed by `clock`; None if there is none.
    """

    def __init__(
        self, config: EngineConfig, runner: Runner, draft: Runner | None, clock: Clock
    ) -> None:
        self.limit = config.max_draft_tokens
        self.num_draft_tokens = self.num_accepted = 0
        self.num_forced = 0  # accepted tokens that a grammar forced, which took no step
        self._config = config
        self._model: DraftSource | None = None
        if getattr(draft, "is_head", False):
            head, model = cast(HeadRunner, draft), cast(HiddenRunner, runner)
            self._model = PredictionHead(head, model, clock)
        elif draft is not None:
            self._model = DraftModel(draft, config, runner.vocab_size, clock)
        self._recent = RecentAnswers(config)
        self._cost = StepCost()

    def begin(self, prompt: list[int], scope: Scope, params: SamplingParams) -> DraftState | None:
        """Return the state of an answer to `prompt`; None if it gets no draft tokens.

        An answer that shows log-probabilities gets them only if the operator has asked for
        speculation: they change the last digits.
        """
        shows_numbers = params.logprobs is not None
        if not self.limit or (shows_numbers and not self._config.requests_speculation):
            return None
        shared = self._recent.of(scope) if self._config.enable_prefix_caching else ()
        rate = ModelAcceptance(self._model.rate if self._model else None)
        drafter = SuffixDrafter(self._config, prompt, shared)
        return DraftState(drafter, rate, is_sampled=params.temperature > 0)

    def end(self, scope: Scope, answer: list[int]) -> None:
        """Index an answer that has ended, as other answers may continue as it did."""
        if self.limit and self._config.enable_prefix_caching:
            self._recent.add(scope, answer)

    def count(
        self, answer: SpeculativeCompletion, num_draft_tokens: int, num_accepted: int
    ) -> None:
        """Count the verified and accepted draft tokens of `answer`.

        `num_accepted` is -1 if the step gave no token.
        """
        num_accepted = max(0, num_accepted)
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted += num_accepted
        if answer.draft_state is not None:
            answer.draft_state.num_draft_tokens += num_draft_tokens
            answer.draft_state.num_accepted += num_accepted
            self.num_forced += min(num_accepted, answer.draft_state.num_forced)

    def draft(
        self, running: Iterable[Sequence], answers: Mapping[Sequence, SpeculativeCompletion]
    ) -> None:
        """Set the draft tokens that the next step verifies, in those of `running` that decode."""
        if not self.limit:
            return
        candidates, num_rows = list[_Candidate](), 0
        for sequence in running:
            if not sequence.is_decoding or sequence.is_in_step:
                continue
            num_rows += sequence.num_left
            answer = answers[sequence]
            state = answer.draft_state
            candidate = state and self._find_candidate(sequence, state, answer.grammar)
            if candidate:
                candidates.append(candidate)
        if candidates:
            self._decide(candidates, num_rows)
        proposed: Mapping[Sequence, list[int]] = {}
        if self._model is not None:
            requested = {
                candidate.sequence: candidate.num_modelled
                for candidate in candidates
                if candidate.num_modelled
            }
            proposed = self._model.propose(requested)
        for candidate in candidates:
            candidate.set_draft(proposed.get(candidate.sequence, []))

    def observe(self, scheduled: Scheduled, seconds: float | None) -> None:
        """Learn from a step that took `seconds`, from drafting to the last token; None: unknown."""
        step = scheduled.step
        if seconds is None:
            self._cost.interrupt(step.num_tokens)
            return
        seconds -= self._model.seconds if self._model else 0.0
        is_alike = not step.copies
        for row in step.rows:
            if len(row.tokens) - row.num_logits > (self.limit if row.state else 0):
                is_alike = False
        if is_alike:
            self._cost.observe(step.num_tokens, seconds)
        else:
            self._cost.interrupt(step.num_tokens)
        if self._model is not None:
            unit = seconds / self._cost.estimate(step.num_tokens)
            self._model.follow(scheduled)
            self._model.observe(
                seconds, (lambda n: unit * self._cost.estimate(n)) if is_alike else None
            )

    def close(self) -> None:
        """Close the draft model."""
        if self._model is not None:
            self._model.close()

    def _find_candidate(
        self, sequence: Sequence, draft_state: DraftState, grammar: GrammarState | None
    ) -> _Candidate | None:
        """Return a candidate for draft tokens; None if there are none."""
        sequence.draft = []
        limit = min(self.limit, max(0, sequence.room))
        probabilities, modelled = draft_state.propose(limit, grammar), list[float]()
        if not self._config.adaptive_speculation:  # verify unlikely tokens as well
            probabilities += [0.0] * (len(draft_state.draft.tokens) - len(probabilities))
        if self._model is not None and not draft_state.draft.is_forced:
            modelled = draft_state.rate.probabilities(
                min(limit, self._model.max_draft_tokens(sequence))
            )
        if not (probabilities or modelled):
            return None
        is_likelier = sum(modelled) > sum(probabilities)
        return _Candidate(
            sequence, draft_state, grammar, probabilities, modelled if is_likelier else []
        )

    def _decide(self, candidates: list[_Candidate], num_rows: int) -> None:
        """Set the number of draft tokens of each candidate; the step has `num_rows` other rows."""
        if not self._config.adaptive_speculation:
            for candidate in candidates:
                candidate.num_drafted = len(candidate.probabilities)
                candidate.num_modelled = len(candidate.model_probabilities)
            return
        if self._cost.needs_plain_step(num_rows):
            return
        cost = partial(self._cost.estimate_next, plain=num_rows)
        each = [candidate.probabilities for candidate in candidates]
        plan = plan_drafts(each, num_rows, cost, sizes=SIZES)
        for candidate, count in zip(candidates, plan.counts, strict=True):
            candidate.num_drafted = count
        if any(candidate.model_probabilities for candidate in candidates):
            self._use_model(candidates, num_rows, plan.rate)

    def _use_model(self, candidates: list[_Candidate], num_rows: int, rate: float) -> None:
        """Let the draft model propose tokens if that gives more than `rate`, or is to be tried."""
        assert self._model is not None
        indices = [
            index for index, candidate in enumerate(candidates) if candidate.model_probabilities
        ]
        each = [
            candidate.model_probabilities or candidate.probabilities for candidate in candidates
        ]
        pass_cost = self._model.cost * self._cost.estimate(len(indices))
        cost = partial(self._cost.estimate_next, plain=num_rows)
        plan = plan_drafts(
            each, num_rows, cost, frozenset(indices), pass_cost=pass_cost, sizes=SIZES
        )
        if plan.rate > rate and any(plan.counts[index] for index in indices):
            for candidate, count in zip(candidates, plan.counts, strict=True):
                if candidate.model_probabilities:
                    candidate.num_modelled = count
                else:
                    candidate.num_drafted = count
        elif self._model.may_try:
            candidate = min((candidates[index] for index in indices), key=self._missing)
            candidate.num_modelled = min(_NUM_TRIED, len(candidate.model_probabilities))

    def _missing(self, candidate: _Candidate) -> int:
        return self._model.num_missing(candidate.sequence) if self._model else 0
