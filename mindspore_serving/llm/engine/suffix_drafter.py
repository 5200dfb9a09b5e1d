"""Guesses from texts that went on in the same way before: the request's own, and recent answers.

To continue the longest match with the most frequent tokens is suffix decoding: Oliaro et al.,
"SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications", NeurIPS 2025.  The
search is `suffix_index`; how many guesses are computed is decided elsewhere.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.suffix_index import END, NOTHING, Draft, SuffixIndex, run_of

MAX_SHARED_TOKENS = 1 << 16  # of recent answers of one scope, twice at most; 130 bytes each
MAX_SCOPES = 16

Scope: TypeAlias = tuple[str, int]  # cache salt and adapter, as cached prompts are shared


class RecentAnswers:
    """What was answered lately, by scope.  Of the oldest answers the older half is forgotten."""

    def __init__(self, config: EngineConfig) -> None:
        # A run at least: one token says little in a text of others.
        self._sizes = (config.max_ngram, run_of(config.max_ngram, config.min_ngram))
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
        """For another answer to the same prompt; called before `extend`."""
        other = SuffixDrafter(self._config, self._prompt, self._shared)
        other._own = self._begun().copy()
        return other

    def extend(self, new: Sequence[int]) -> None:
        """These tokens were chosen."""
        own = self._own
        if own is not None and len(new) == 1:  # in nearly every step
            own.add(new[0])
        else:
            self._begun().extend(new)

    def _begun(self) -> SuffixIndex:
        if self._own is None:
            self._own = SuffixIndex(self._config.max_ngram, self._config.min_ngram, self._prompt)
        return self._own

    def propose(self, most: int) -> Draft:
        """Up to `most` tokens that may follow, or none."""
        own = self._own
        if own is None:
            return NOTHING
        key = own.key(own.tokens)
        indexes = [own, *(index for index in self._shared if index.may_know(key))]
        length, text = len(own.tokens), own.tokens[-self._config.max_ngram :]
        last, places, before = self._last
        best: SuffixIndex | None = None
        agreed, found = 0, list[int]()
        for index in indexes:
            # A place that was continued is tried again, also when it is not among the latest.
            known = [place + length - before for place in places] if index is last else ()
            count, here = index.find(text, known)
            if count > agreed:
                best, agreed, found = index, count, here
        self._last = best, found, length
        if best is None:
            return NOTHING
        tokens, shares = best.draft(found, most)
        return Draft(tokens, agreed, shares)
