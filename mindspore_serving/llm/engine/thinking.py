r"""Limit of the reasoning of an answer: when it is reached, the end of the reasoning is forced.

    waiting --begin marker--> inside --limit--> closing --last closing token--> waiting
                                \______________end marker_____________________^

Near the limit the reasoning ends behind a sentence; at the limit wherever it is.  Knows tokens, and
neither texts nor logits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

MAX_MARKER = 16  # tokens of a marker
_GRACE_SHARE, _MAX_GRACE = 8, 64  # the last eighth of the limit, at most 64 tokens


@dataclass(frozen=True, slots=True)
class ThinkingLimit:
    """Limit of the reasoning of the answers to a request.

    Args:
        max_tokens: tokens of reasoning, without its markers.
        begin_ids: marker before reasoning.
        has_ended: whether the latest tokens, at most `MAX_MARKER`, end with the marker behind it.
        closing_ids: tokens that are forced at the limit: that marker, and what follows it.
        is_open: the answer begins inside reasoning.
        ends_sentence: whether a token ends a sentence or a line.
    """

    max_tokens: int
    begin_ids: Sequence[int]
    has_ended: Callable[[Sequence[int]], bool]
    closing_ids: Sequence[int]
    is_open: bool
    ends_sentence: Callable[[int], bool]

    def begin(self) -> "ThinkingState":
        """Return the state before the first token of an answer."""
        state = ThinkingState(self)
        return state.enter() if self.is_open else state


@dataclass(frozen=True, slots=True)
class ThinkingState:
    """Reasoning of one answer so far.

    Args:
        limit: of the request.
        count: tokens of reasoning so far.
        num_matched: tokens of the marker before reasoning that were just written.
        is_inside: whether the next token is reasoning.
        recent: latest tokens of reasoning.
        closing: index of the next token to force, None for no forced token.
    """

    limit: ThinkingLimit
    count: int = 0
    num_matched: int = 0
    is_inside: bool = False
    recent: tuple[int, ...] = ()
    closing: int | None = None

    @property
    def forced(self) -> int | None:
        """Token that has to be next, None for any."""
        return None if self.closing is None else self.limit.closing_ids[self.closing]

    def enter(self) -> "ThinkingState":
        """Return the state behind the marker before reasoning."""
        closing = 0 if self.count >= self.limit.max_tokens else None
        return replace(self, num_matched=0, is_inside=True, closing=closing)

    def after(self, token_ids: Sequence[int]) -> "ThinkingState":
        """Return the state behind further tokens."""
        state = self
        for token_id in token_ids:
            state = state._after(token_id)
        return state

    def _after(self, token_id: int) -> "ThinkingState":
        limit = self.limit
        if self.closing is not None:
            following = self.closing + 1
            is_last = following == len(limit.closing_ids)
            closing = None if is_last else following
            return replace(self, is_inside=False, recent=(), closing=closing)
        if not self.is_inside:
            return self._match(token_id)
        recent = (*self.recent, token_id)[-MAX_MARKER:]
        if limit.has_ended(recent):
            return replace(self, is_inside=False, recent=())
        count = self.count + 1
        grace = min(_MAX_GRACE, limit.max_tokens // _GRACE_SHARE)
        is_near = count >= limit.max_tokens - grace
        ends = count >= limit.max_tokens or (is_near and limit.ends_sentence(token_id))
        return replace(self, count=count, recent=recent, closing=0 if ends else None)

    def _match(self, token_id: int) -> "ThinkingState":
        """Return the state outside of reasoning, which a whole marker before it enters."""
        begin = self.limit.begin_ids
        if token_id == begin[self.num_matched]:
            matched = self.num_matched + 1
            return self.enter() if matched == len(begin) else replace(self, num_matched=matched)
        is_first = token_id == begin[0] and len(begin) > 1
        return replace(self, num_matched=int(is_first)) if self.num_matched or is_first else self
