"""Guessing the next tokens from the text itself: what followed the same tokens the last time.

It helps where answers repeat their prompt (code, quotations, summaries).  A guess costs a look-up,
a wrong one a row of logits; neither changes the answer.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias


class Drafter(Protocol):
    """Guesses what follows one sequence.  Another kind, such as a small model, implements this."""

    def extend(self, new: Iterable[int]) -> None:
        """These tokens were chosen; guesses that were wrong are not among them."""
        ...

    def propose(self, most: int) -> list[int]:
        """Up to `most` tokens that may follow, or none.  Must be quick: it is in the step loop."""
        ...


MakeDrafter: TypeAlias = Callable[[Sequence[int]], Drafter]
"""Makes the drafter of a sequence, of its prompt."""


class NgramIndex:
    """The tokens of one sequence, and where each run of `min_n` to `max_n` of them was last seen.

    The memory is (max_n - min_n + 1) entries per token; both operations are independent of length.
    """

    __slots__ = ("_follows", "_sizes", "_tokens")

    def __init__(self, max_n: int, min_n: int, tokens: Iterable[int] = ()) -> None:
        self._sizes = range(max_n, min_n - 1, -1)
        self._tokens: list[int] = []
        self._follows: dict[tuple[int, ...], int] = {}  # a run, and the position after it
        self.extend(tokens)

    def extend(self, new: Iterable[int]) -> None:
        """Add the tokens that follow."""
        tokens, follows = self._tokens, self._follows
        for token in new:
            end = len(tokens)
            # Runs become known when something follows them: the last one never finds itself.
            for size in self._sizes:
                if size <= end:
                    follows[tuple(tokens[end - size :])] = end
            tokens.append(token)

    def propose(self, most: int) -> list[int]:
        """Up to `most` tokens that followed the longest run that ends the text, or none."""
        tokens = self._tokens
        for size in self._sizes:
            position = self._follows.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if position is not None:
                return tokens[position : position + most]
        return []
