"""All-reduce and gather of ranks that share every layer: sums of arrays, parts of the logits.

The parts are added in the order of ranks, so that all ranks have the same bits.  Knows no runtime.
"""

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.parallel.group import RankGroup
from mindspore_serving.llm.parallel.links import PART_BYTES
from mindspore_serving.llm.parallel.shards import Shard

Floats = npt.NDArray[np.float32]


class RankExchange:
    """Collective operations on float32 arrays through the memory of `group`.

    All ranks call the same operations with equal shapes.  `rows` are the rows of the vocabulary
    that this rank has.
    """

    def __init__(self, group: RankGroup, vocab_size: int) -> None:
        self._group = group
        self._parts = group.parts.view(np.float32)  # [half, rank, numbers]
        self._rows = [Shard(rank, group.size).of(vocab_size) for rank in range(group.size)]
        self.rows = self._rows[group.rank]

    def sum(self, array: Floats, total: Floats) -> None:
        """Write the sum of every rank's `array` to `total`, which may be `array`; any shape."""
        flat, out = array.reshape(-1), total.reshape(-1)
        length = PART_BYTES // flat.itemsize
        for begin in range(0, flat.size, length):
            first, second, *remaining = self._all(flat[begin : begin + length])
            target = out[begin : begin + length]
            np.add(first, second, out=target)
            for part in remaining:
                target += part

    def share(self, array: Floats, width: int) -> Floats:
        """Return rank 0's `array`, [N, width], on every rank; the array of others has N rows."""
        is_first = self._group.rank == 0
        shared = array if is_first else np.zeros((len(array), width), np.float32)
        flat = np.ascontiguousarray(shared).reshape(-1)
        length = PART_BYTES // flat.itemsize
        for begin in range(0, flat.size, length):
            parts = self._all(flat[begin : begin + length])
            if not is_first:
                flat[begin : begin + length] = parts[0]
        return shared

    def gather(self, array: Floats) -> Floats:
        """Return the logits [N, vocab_size] of every rank's rows; no rows on ranks other than 0."""
        is_first, width = self._group.rank == 0, max(rows.count for rows in self._rows)
        logits = np.empty((len(array) if is_first else 0, self._rows[-1].end), np.float32)
        length = PART_BYTES // (width * array.itemsize)
        for begin in range(0, len(array), length):
            piece = np.zeros((min(length, len(array) - begin), width), np.float32)
            piece[:, : array.shape[1]] = array[begin : begin + length]
            parts = self._all(piece.reshape(-1))
            if is_first:
                for part, rows in zip(parts, self._rows, strict=True):
                    columns = part.reshape(-1, width)[:, : rows.count]
                    logits[begin : begin + length, rows.begin : rows.end] = columns
        return logits

    def _all(self, array: Floats) -> Floats:
        """Return the arrays [N] of all ranks, valid until the next exchange but one.

        An array has at most PART_BYTES.
        """
        parts = self._parts[self._group.half, :, : array.size]
        parts[self._group.rank] = array
        self._group.barrier(array.nbytes)
        return parts
