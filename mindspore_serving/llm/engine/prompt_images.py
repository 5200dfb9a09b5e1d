"""Images of a prompt, as the engine has them: vectors in place of embeddings of its tokens.

They stay with their sequence, so a prompt can be cut into chunks anywhere but within an image that
is computed at once, and can be computed again.
"""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from mindspore_serving.core.prefill_messages import PromptVectors
from mindspore_serving.llm.step import Features, Tokens, Vectors


class PromptImages:
    """Images of one prompt.

    Args:
        positions: positions of the prompt whose embeddings are replaced, ascending.
        images: for each image in order a hash of its content, and its vectors, float32
            [n, hidden_size]; together as many as there are positions.
        is_bidirectional: as in `Features`.
        rope_positions: int32 [tokens of the prompt, 3], as in `Row`; those of later tokens follow
            the largest of them.  None where they are those of the tokens.
        fill_id: the token that the model reads at `positions`; None for that of the prompt.
    """

    def __init__(
        self, positions: Sequence[int], images: Sequence[tuple[bytes, Vectors]],
        *, is_bidirectional: bool = False, fill_id: int | None = None,
        rope_positions: Tokens | None = None,
    ) -> None:  # fmt: skip
        self._positions = np.asarray(positions, np.int64)
        self._is_bidirectional, self._fill_id = is_bidirectional, fill_id
        self._rope_positions = rope_positions
        self._digests = [digest for digest, _ in images]
        self._vectors = [vectors for _, vectors in images]
        self._ends = np.cumsum([len(vectors) for vectors in self._vectors]).tolist()
        assert self._ends[-1] == len(positions)

    @classmethod
    def received(cls, message: PromptVectors) -> "PromptImages":
        """Return the images of a prompt of another worker."""
        vectors = np.frombuffer(message.vectors, "<f4").reshape(sum(message.counts), -1)
        parts = np.split(vectors, np.cumsum(message.counts)[:-1])
        axes = np.frombuffer(message.rope_positions, "<i4").reshape(-1, 3)
        return cls(
            np.frombuffer(message.positions, "<i8").tolist(),
            list(zip(message.digests, parts, strict=True)),
            is_bidirectional=message.is_bidirectional,
            fill_id=message.fill_id,
            rope_positions=axes if len(axes) else None,
        )

    def message(self, end: int) -> PromptVectors | None:
        """Return the images of the first `end` tokens, for `received`; None if there are none."""
        count = int(np.searchsorted(self._positions, end))
        cuts = self._cut(0, count)
        if not cuts:
            return None
        axes = self._rope_positions
        vectors = np.concatenate([self._vectors[i][a:b] for i, a, b in cuts])
        return PromptVectors(
            positions=self._positions[:count].astype("<i8").tobytes(),
            digests=[self._digests[i] for i, _, _ in cuts],
            counts=[b - a for _, a, b in cuts],
            vectors=vectors.astype("<f4").tobytes(),
            rope_positions=b"" if axes is None else axes[:end].astype("<i4").tobytes(),
            is_bidirectional=self._is_bidirectional,
            fill_id=self._fill_id,
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of all vectors."""
        return sum(vectors.nbytes for vectors in self._vectors)

    def num_whole(self, count: int, block_size: int) -> int:
        """Return how many of `count` blocks can be computed without the rest of the prompt.

        An image whose tokens see one another is computed at once.
        """
        while count and (end := self.end_of_piece(0, count * block_size)) != count * block_size:
            count = 0 if end > count * block_size else end // block_size
        return count

    def between(self, start: int, end: int) -> Features | None:
        """Return the vectors of the tokens `start` .. `end - 1`; None if there are none.

        Their positions count from `start`.
        """
        first, last = np.searchsorted(self._positions, (start, end)).tolist()
        if first == last:
            return None
        parts = [self._vectors[i][a:b] for i, a, b in self._cut(first, last)]
        positions = self._positions[first:last] - start
        return Features(positions, np.concatenate(parts), self._is_bidirectional)

    def inputs(
        self, tokens: list[int], start: int
    ) -> tuple[list[int], Features | None, Tokens | None]:
        """Return what the model reads for `tokens` at `start`: ids, and fields of a `Row`."""
        end = start + len(tokens)
        features = self.between(start, end)
        read = self.filled(tokens, features) if features else tokens
        return read, features, self.rope_positions(start, end)

    def rope_positions(self, start: int, end: int) -> Tokens | None:
        """Return `Row.rope_positions` of the tokens `start` .. `end - 1`."""
        prompt = self._rope_positions
        if prompt is None:
            return None
        offset = int(prompt.max()) + 1 - len(prompt)
        after = np.arange(max(start, len(prompt)), max(end, len(prompt)), dtype=np.int32)
        parts = (prompt[start:end], np.repeat(after[:, None] + offset, 3, axis=1))
        return np.concatenate(parts, dtype=np.int32)

    def filled(self, tokens: list[int], features: Features) -> list[int]:
        """Return the tokens that the model reads, of `tokens` with the vectors `features`."""
        if self._fill_id is None:
            return tokens
        array = np.array(tokens)
        array[features.positions] = self._fill_id
        read: list[int] = array.tolist()
        return read

    def end_of_piece(self, start: int, end: int) -> int:
        """Return where a chunk of the prompt ends that begins at `start` and has room up to `end`.

        It ends before a bidirectional image that goes beyond `end`, or behind it if the image
        begins at `start`.
        """
        index = int(np.searchsorted(self._positions, end)) - 1
        if not self._is_bidirectional or index < 0:
            return end
        behind = Features(self._positions, self._vectors[0]).ends()  # of the image at each position
        if behind[index] <= end:
            return end
        begin = int(self._positions[np.searchsorted(behind, behind[index])])
        return begin if begin > start else int(behind[index])

    def identity(self, start: int, end: int) -> bytes:
        """Return bytes that identify the image vectors of the tokens `start` .. `end - 1`."""
        first, last = np.searchsorted(self._positions, (start, end)).tolist()
        cuts = self._cut(first, last)
        return b"".join(self._digests[i] + a.to_bytes(8, "little") for i, a, _ in cuts)

    def _cut(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Split the vectors `first` .. `last - 1` by image: (image, its first vector, its last)."""
        cuts = []
        index = bisect_left(self._ends, first + 1)
        while first < last:
            begin = self._ends[index] - len(self._vectors[index])
            end = min(last, self._ends[index])
            cuts.append((index, first - begin, end - begin))
            first, index = end, index + 1
        return cuts
