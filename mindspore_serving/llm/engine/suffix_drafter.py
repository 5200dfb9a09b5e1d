"""Prompt lookup: draft tokens from texts that continued in the same way before.

These are the request's own text and recent answers.  To continue the longest match with the most
frequent tokens is suffix decoding: Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for
Emerging AI Applications", NeurIPS 2025.  `suffix_index` does the search; how many of the draft
tokens are verified is decided elsewhere.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.suffix_index import END, NO_DRAFT, Draft, SuffixIndex, run_length

MAX_SHARED_TOKENS = 1 << 16  # of an index of recent answers, two per scope; 130 bytes per token
MAX_SCOPES = 16

Scope: TypeAlias = tuple[str, int]  # cache salt and adapter, as cached prompts are shared


class RecentAnswers:
    """Indexes of recent answers, by scope; the older half is dropped when they grow too long."""

    def __init__(self, config: EngineConfig) -> None:
        # At least a run: a single token says little in another request's text.
        self._sizes = (config.max_ngram, run_length(config.max_ngram, config.min_ngram))
        self._scopes: dict[Scope, list[SuffixIndex]] = {}  # the last used one comes last

    def of(self, scope: Scope) -> list[SuffixIndex]:
        """Return the indexes of a scope, the newer first; the list stays up to date."""
        indexes = self._scopes.pop(scope, None) or [SuffixIndex(*self._sizes)]
        self._scopes[scope] = indexes
        if len(self._scopes) > MAX_SCOPES:
            del self._scopes[next(iter(self._scopes))]
        return indexes

    def add(self, scope: Scope, answer: list[int]) -> None:
        """Index an answer of a scope."""
        indexes = self.of(scope)
        if indexes[0].tokens and len(indexes[0].tokens) + len(answer) >= MAX_SHARED_TOKENS:
            indexes[:] = [SuffixIndex(*self._sizes), indexes[0]]
        indexes[0].extend([*answer[-MAX_SHARED_TOKENS:], END])


class SuffixDrafter:
    """Continues a text like its longest match, in the text itself or in one of `shared`."""

    __slots__ = ("_config", "_last", "_index", "_prompt", "_shared")

    def __init__(
        self, config: EngineConfig, prompt: list[int], shared: Iterable[SuffixIndex] = ()
    ) -> None:
        self._config = config
        self._prompt = prompt
        self._shared = shared
        self._index: SuffixIndex | None = None  # of this text; made when the prompt is computed
        # The index, the positions and the length of the text of the last match.
        self._last: tuple[SuffixIndex | None, list[int], int] = (None, [], 0)

    def fork(self) -> "SuffixDrafter":
        """Return a drafter for another answer to the same prompt; called before `extend`."""
        other = SuffixDrafter(self._config, self._prompt, self._shared)
        other._index = self._begun().copy()
        return other

    def extend(self, new: Sequence[int]) -> None:
        """Append the tokens that were generated."""
        index_of_text = self._index
        if index_of_text is not None and len(new) == 1:  # in nearly every step
            index_of_text.add(new[0])
        else:
            self._begun().extend(new)

    def _begun(self) -> SuffixIndex:
        if self._index is None:
            self._index = SuffixIndex(self._config.max_ngram, self._config.min_ngram, self._prompt)
        return self._index

    def propose(self, limit: int) -> Draft:
        """Return up to `limit` tokens that may follow, or none."""
        index_of_text = self._index
        if index_of_text is None:
            return NO_DRAFT
        key = index_of_text.key(index_of_text.tokens)
        indexes = [index_of_text, *(index for index in self._shared if index.may_know(key))]
        length, text = len(index_of_text.tokens), index_of_text.tokens[-self._config.max_ngram :]
        last, last_positions, last_length = self._last
        best: SuffixIndex | None = None
        match_length, positions = 0, list[int]()
        for index in indexes:
            known: list[int] = []
            if index is last:  # the last match goes on, even if it is not among the latest
                known = [position + length - last_length for position in last_positions]
            count, matches = index.find(text, known)
            if count > match_length:
                best, match_length, positions = index, count, matches
        self._last = best, positions, length
        if best is None:
            return NO_DRAFT
        tokens, shares = best.draft(positions, limit)
        return Draft(tokens, match_length, shares)
