"""The pictures of a prompt, as the engine has them: vectors in place of embeddings of its tokens.

They stay with their sequence, so a prompt can be cut anywhere, and computed again.
"""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from mindspore_serving.llm.step import Features, Vectors


class PromptPictures:
    """Of one prompt.

    Args:
        places: positions of the prompt whose embeddings are replaced, ascending.
        seen: for each picture in order a hash of its content, and its vectors, float32
            [n, hidden_size]; together as many as there are places.
    """

    def __init__(self, places: Sequence[int], seen: Sequence[tuple[bytes, Vectors]]) -> None:
        self._places = np.asarray(places, np.int64)
        self._digests = [digest for digest, _ in seen]
        self._vectors = [vectors for _, vectors in seen]
        self._ends = np.cumsum([len(vectors) for vectors in self._vectors]).tolist()
        assert self._ends[-1] == len(places)

    def between(self, start: int, end: int) -> Features | None:
        """Of the tokens `start` .. `end - 1`, whose places count from `start`; None if there are
        none."""
        first, last = np.searchsorted(self._places, (start, end)).tolist()
        if first == last:
            return None
        parts = [self._vectors[i][a:b] for i, a, b in self._cut(first, last)]
        return Features(self._places[first:last] - start, np.concatenate(parts))

    def identity(self, start: int, end: int) -> bytes:
        """What the tokens `start` .. `end - 1` have of which pictures; empty if nothing."""
        first, last = np.searchsorted(self._places, (start, end)).tolist()
        cuts = self._cut(first, last)
        return b"".join(self._digests[i] + a.to_bytes(8, "little") for i, a, _ in cuts)

    def _cut(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """The vectors `first` .. `last - 1` of all: (picture, its first of them, its last)."""
        cuts = []
        index = bisect_left(self._ends, first + 1)
        while first < last:
            begin = self._ends[index] - len(self._vectors[index])
            end = min(last, self._ends[index])
            cuts.append((index, first - begin, end - begin))
            first, index = end, index + 1
        return cuts
