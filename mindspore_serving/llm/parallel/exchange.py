"""What ranks that share every layer exchange: sums of their arrays, and their parts of the logits.

The parts are added in the order of ranks, so that all ranks have the same bits.  Knows no runtime.
"""

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.parallel.group import RankGroup
from mindspore_serving.llm.parallel.links import PART_BYTES
from mindspore_serving.llm.parallel.shards import Shard

Floats = npt.NDArray[np.float32]


class RankExchange:
    """Arrays of float32 through the memory of `group`; all ranks call the same with equal shapes.

    `rows` are the rows of the vocabulary that this rank has.
    """

    def __init__(self, group: RankGroup, vocab_size: int) -> None:
        self._group = group
        self._parts = group.parts.view(np.float32)  # [half, rank, numbers]
        self._rows = [Shard(rank, group.size).of(vocab_size) for rank in range(group.size)]
        self.rows = self._rows[group.rank]

    def sum(self, own: Floats, total: Floats) -> None:
        """Write the sum of every rank's `own` to `total`, which may be `own`; any shape."""
        flat, out = own.reshape(-1), total.reshape(-1)
        most = PART_BYTES // flat.itemsize
        for begin in range(0, flat.size, most):
            first, second, *others = self._all(flat[begin : begin + most])
            target = out[begin : begin + most]
            np.add(first, second, out=target)
            for part in others:
                target += part

    def gather(self, own: Floats) -> Floats:
        """The logits [N, vocab_size] of every rank's rows of the vocabulary; none on other ranks
        than 0.
        """
        is_first, width = self._group.rank == 0, max(one.count for one in self._rows)
        found = np.empty((len(own) if is_first else 0, self._rows[-1].end), np.float32)
        most = PART_BYTES // (width * own.itemsize)
        for begin in range(0, len(own), most):
            piece = np.zeros((min(most, len(own) - begin), width), np.float32)
            piece[:, : own.shape[1]] = own[begin : begin + most]
            parts = self._all(piece.reshape(-1))
            if is_first:
                for part, one in zip(parts, self._rows, strict=True):
                    rows = part.reshape(-1, width)[:, : one.count]
                    found[begin : begin + most, one.begin : one.end] = rows
        return found

    def _all(self, own: Floats) -> Floats:
        """`own` [N], of PART_BYTES at most, of every rank; valid until the next but one."""
        parts = self._parts[self._group.half, :, : own.size]
        parts[self._group.rank] = own
        self._group.meet(own.nbytes)
        return parts
