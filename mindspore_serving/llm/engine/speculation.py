"""Guessing the next tokens: of each answer from texts that went on in the same way before, and how
many in each step, so that more tokens come per second.

The texts are the request's own and recent answers of the model (`suffix_index`).  That, and to
continue the longest match with the most frequent tokens, is suffix decoding: Oliaro et al.,
"SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications", NeurIPS 2025.  Guesses
that a sequence does not make are compared with its text as well, so it begins again when they would
have been right.  A wrong guess costs a row of a step; no guess changes the answer.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeAlias

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.acceptance import Acceptance, worthwhile
from mindspore_serving.llm.engine.sequence import Sequence
from mindspore_serving.llm.engine.step_cost import StepCost
from mindspore_serving.llm.engine.suffix_index import END, Draft, SuffixIndex
from mindspore_serving.llm.grammar.state import GrammarState
from mindspore_serving.llm.step import Runner, Step

MAX_SHARED_TOKENS = 1 << 16  # of recent answers of one scope, twice at most; 130 bytes each
MAX_SCOPES = 16

Scope: TypeAlias = tuple[str, int]  # cache salt and adapter, as cached prompts are shared


class Drafter(Protocol):
    """Guesses what follows one sequence.  Another kind, such as a small model, implements this."""

    def extend(self, new: Iterable[int]) -> None:
        """These tokens were chosen; guesses that were wrong are not among them."""
        ...

    def propose(self, most: int) -> Draft:
        """Up to `most` tokens that may follow, or none.  Must be quick: it is in the step loop."""
        ...

    def fork(self) -> "Drafter":
        """For another answer to the same prompt; called before `extend`."""
        ...


MakeDrafter: TypeAlias = Callable[[list[int], Scope], Drafter]
"""Makes the drafter of a sequence, of its prompt and of who may share answers with it."""


class RecentAnswers:
    """What was answered lately, by scope.  Of the oldest answers the older half is forgotten."""

    def __init__(self, config: EngineConfig) -> None:
        self._sizes = (config.max_ngram, config.min_ngram)
        self._scopes: dict[Scope, list[SuffixIndex]] = {}  # used last comes last

    def of(self, scope: Scope) -> list[SuffixIndex]:
        """The indexes of a scope, the newer first; the list stays up to date."""
        found = self._scopes.pop(scope, None) or [SuffixIndex(*self._sizes)]
        self._scopes[scope] = found
        if len(self._scopes) > MAX_SCOPES:
            del self._scopes[next(iter(self._scopes))]
        return found

    def add(self, scope: Scope, answer: list[int]) -> None:
        found = self.of(scope)
        if found[0].tokens and len(found[0].tokens) + len(answer) >= MAX_SHARED_TOKENS:
            found[:] = [SuffixIndex(*self._sizes), found[0]]
        found[0].extend([*answer[-MAX_SHARED_TOKENS:], END])


class SuffixDrafter:
    """Continues a text as it, or one of `shared`, went on where it was the same for longest."""

    __slots__ = ("_config", "_last", "_own", "_prompt", "_shared")

    def __init__(
        self, config: EngineConfig, prompt: list[int], shared: Iterable[SuffixIndex] = ()
    ) -> None:
        self._config = config
        self._prompt = prompt
        self._shared = shared
        self._own: SuffixIndex | None = None  # made when the prompt has been computed
        self._last: tuple[SuffixIndex | None, list[int], int] = (None, [], 0)

    def fork(self) -> "SuffixDrafter":
        other = SuffixDrafter(self._config, self._prompt, self._shared)
        other._own = self._begun().copy()
        return other

    def extend(self, new: Iterable[int]) -> None:
        self._begun().extend(new)

    def _begun(self) -> SuffixIndex:
        if self._own is None:
            self._own = SuffixIndex(self._config.max_ngram, self._config.min_ngram, self._prompt)
        return self._own

    def propose(self, most: int) -> Draft:
        own = self._own
        if own is None:
            return Draft([])
        length, text = len(own.tokens), own.tokens[-self._config.max_ngram :]
        last, places, before = self._last
        best: SuffixIndex | None = None
        agreed, found = 0, list[int]()
        for index in (own, *self._shared):
            # A place that was continued is tried again, also when it is not among the latest.
            known = [place + length - before for place in places] if index is last else ()
            count, here = index.find(text, known)
            if count > agreed:
                best, agreed, found = index, count, here
        self._last = best, found, length
        return Draft([]) if best is None else Draft(*_arranged(best, found, most, agreed))


def _arranged(
    index: SuffixIndex, places: list[int], most: int, agreed: int
) -> tuple[list[int], int, list[float]]:
    tokens, shares = index.draft(places, most)
    return tokens, agreed, shares


class Guesser:
    """The guesses of one answer: what it would guess, and how often that was right."""

    __slots__ = ("_acceptance", "_drafter", "draft", "num_guesses", "num_right")

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._acceptance = Acceptance()
        self.draft = Draft([])
        self.num_guesses = self.num_right = 0  # of those that were computed

    def fork(self) -> "Guesser":
        """For another answer to the same prompt."""
        return Guesser(self._drafter.fork())

    def extend(self, new: tuple[int, ...]) -> None:
        """These tokens were chosen."""
        self._acceptance.observe(self.draft, new)
        self.draft = Draft([])
        self._drafter.extend(new)

    def look(self, most: int, grammar: GrammarState | None) -> list[float]:
        """Make a draft of at most `most` tokens: for each, that it and all before are right."""
        self.draft = self._drafter.propose(most)
        if grammar is not None:
            self.draft = _within(self.draft, grammar, most)
        return self._acceptance.chances(self.draft)


def _within(draft: Draft, grammar: GrammarState, most: int) -> Draft:
    """What the grammar leaves of `draft`, or what must follow if that is something else."""
    forced = grammar.forced(most)
    if forced and draft.tokens[: len(forced)] != forced:
        return Draft(forced, is_forced=True)
    return Draft(grammar.possible(draft.tokens), draft.agreed, draft.shares)


class Guessing(Protocol):
    """An answer that goes on, as `Speculation` sees it."""

    guesser: Guesser | None
    grammar: GrammarState | None


def can_guess(runner: Runner) -> bool:
    """Whether guesses change nothing: neither last digits, nor a state that remembers them."""
    return not (runner.is_rounded or runner.num_slots)


class Speculation:
    """Decides how many tokens of each answer a step guesses, and counts what was right."""

    def __init__(
        self,
        config: EngineConfig,
        make_drafter: MakeDrafter | None = None,
        *,
        can_guess: bool = True,
    ) -> None:
        self.most = config.most_guesses(can_guess=can_guess)
        self.num_guesses = self.num_right = 0
        self._config = config
        self._make_drafter = make_drafter or self._make_suffix_drafter
        self._recent = RecentAnswers(config)
        self._cost = StepCost()

    def begin(self, prompt: list[int], scope: Scope, *, shows_numbers: bool) -> Guesser | None:
        """Of an answer to `prompt`; None if nothing is guessed: as long as the operator has not
        asked for guesses, not where log-probabilities are shown, whose last digits change."""
        if not self.most or (shows_numbers and self._config.num_speculative_tokens is None):
            return None
        return Guesser(self._make_drafter(prompt, scope))

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
        sequences, chances = list[Sequence](), list[list[float]]()
        for sequence in running:
            answer = answers[sequence]
            if sequence.is_decoding and answer.guesser is not None:
                most = min(self.most, max(0, sequence.room))
                sequences.append(sequence)
                chances.append(answer.guesser.look(most, answer.grammar))
        for sequence, count in zip(sequences, self._counts(chances), strict=True):
            guesser = answers[sequence].guesser
            sequence.draft = guesser.draft.tokens[:count] if guesser and count else []

    def _counts(self, chances: list[list[float]]) -> list[int]:
        """How many guesses each sequence makes."""
        counts = [len(own) for own in chances]
        if not self._config.adaptive_speculation or not any(counts):
            return counts
        if self._cost.wants_plain(len(chances)):
            return [0] * len(chances)
        return worthwhile(chances, len(chances), self._cost.of)

    def observe(self, step: Step, seconds: float) -> None:
        """A step took `seconds`, from scheduling to the last token."""
        if all(row.num_logits == len(row.tokens) for row in step.rows) and not step.copies:
            self._cost.observe(step.num_tokens, seconds)
        else:
            self._cost.interrupt()

    def _make_suffix_drafter(self, prompt: list[int], scope: Scope) -> Drafter:
        shared = self._recent.of(scope) if self._config.enable_prefix_caching else ()
        return SuffixDrafter(self._config, prompt, shared)
