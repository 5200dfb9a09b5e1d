"""The images of a prompt, as the engine has them: vectors in place of embeddings of its tokens.

They stay with their sequence, so a prompt can be cut anywhere but within an image that is seen
whole, and computed again.
"""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from mindspore_serving.llm.step import Features, Vectors


class PromptImages:
    """Of one prompt.

    Args:
        places: positions of the prompt whose embeddings are replaced, ascending.
        seen: for each image in order a hash of its content, and its vectors, float32
            [n, hidden_size]; together as many as there are places.
        is_bidirectional: as in `Features`.
    """

    def __init__(
        self, places: Sequence[int], seen: Sequence[tuple[bytes, Vectors]],
        *, is_bidirectional: bool = False,
    ) -> None:  # fmt: skip
        self._places = np.asarray(places, np.int64)
        self._is_bidirectional = is_bidirectional
        self._digests = [digest for digest, _ in seen]
        self._vectors = [vectors for _, vectors in seen]
        self._ends = np.cumsum([len(vectors) for vectors in self._vectors]).tolist()
        assert self._ends[-1] == len(places)

    def between(self, start: int, end: int) -> Features | None:
        """Of the tokens `start` .. `end - 1`, whose places count from `start`; None if there are
        none.
        """
        first, last = np.searchsorted(self._places, (start, end)).tolist()
        if first == last:
            return None
        parts = [self._vectors[i][a:b] for i, a, b in self._cut(first, last)]
        places = self._places[first:last] - start
        return Features(places, np.concatenate(parts), self._is_bidirectional)

    def end_of_piece(self, start: int, end: int) -> int:
        """Where a piece of the prompt ends that begins at `start` and has room up to `end`: before
        an image that is seen whole and reaches further, or behind it if it begins at `start`.
        """
        index = int(np.searchsorted(self._places, end)) - 1
        if not self._is_bidirectional or index < 0:
            return end
        behind = Features(self._places, self._vectors[0]).ends()  # the image at each place
        if behind[index] <= end:
            return end
        begin = int(self._places[np.searchsorted(behind, behind[index])])
        return begin if begin > start else int(behind[index])

    def identity(self, start: int, end: int) -> bytes:
        """What the tokens `start` .. `end - 1` have of which images; empty if nothing."""
        first, last = np.searchsorted(self._places, (start, end)).tolist()
        cuts = self._cut(first, last)
        return b"".join(self._digests[i] + a.to_bytes(8, "little") for i, a, _ in cuts)

    def _cut(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """The vectors `first` .. `last - 1` of all: (image, its first of them, its last)."""
        cuts = []
        index = bisect_left(self._ends, first + 1)
        while first < last:
            begin = self._ends[index] - len(self._vectors[index])
            end = min(last, self._ends[index])
            cuts.append((index, first - begin, end - begin))
            first, index = end, index + 1
        return cuts
