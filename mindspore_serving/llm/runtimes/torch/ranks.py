"""The operations of a rank: its part of a model in PyTorch, and what it exchanges with the others.

On a CPU; the ranks' parts are added in the order of ranks, so that all have the same bits.
"""

from collections.abc import Iterator

import torch

from mindspore_serving.llm.parallel.group import PART_BYTES, Group
from mindspore_serving.llm.parallel.shards import Shard
from mindspore_serving.llm.runtimes.torch.attention import PagedCache
from mindspore_serving.llm.runtimes.torch.lora import Adapters
from mindspore_serving.llm.runtimes.torch.ops import Tensor, TorchOps, Weights


class RankOps(TorchOps):
    """`Ops` of one rank of `group`.  Embedding and head have its rows of the vocabulary."""

    def __init__(
        self, weights: Weights, cache: PagedCache, dtype: torch.dtype, group: Group, vocab_size: int
    ) -> None:
        super().__init__(weights, cache, dtype, Adapters())
        self._group = group
        self._vocab_size = vocab_size
        self._shard = Shard(group.rank, group.size)
        self._parts = torch.from_numpy(group.parts)  # [half, rank, bytes]

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        """Zeros for the tokens of other ranks."""
        own = self._shard.of(self._vocab_size)
        is_other = (ids < own.begin) | (ids >= own.end)
        rows = super().embedding((ids - own.begin).masked_fill(is_other, 0), table)
        return self.all_reduce(rows.masked_fill(is_other[:, None], 0))

    def all_reduce(self, x: Tensor) -> Tensor:
        flat = x.flatten()
        out = torch.empty_like(flat)
        for begin, piece in _pieces(flat, PART_BYTES // x.itemsize):
            parts = self._exchange(piece)
            total = out[begin : begin + len(piece)]
            torch.add(parts[0], parts[1], out=total)
            for part in parts[2:]:
                total += part
        return out.view(x.shape)

    def logits(self, x: Tensor, head: Tensor) -> Tensor:
        """No rows on other ranks than 0."""
        group, own = self._group, self.linear(x, head)
        columns = [Shard(rank, group.size).of(self._vocab_size) for rank in range(group.size)]
        width = max(one.count for one in columns)
        out = own.new_empty(len(own) if group.rank == 0 else 0, self._vocab_size)
        most = PART_BYTES // (width * own.itemsize)
        for begin in range(0, len(own), most):
            piece = own.new_zeros(min(most, len(own) - begin), width)
            piece[:, : own.shape[1]] = own[begin : begin + most]
            parts = self._exchange(piece.flatten())
            for part, one in zip(parts, columns, strict=True):
                if group.rank == 0:
                    rows = part.view(-1, width)[:, : one.count]
                    out[begin : begin + most, one.begin : one.end] = rows
        return out

    def _exchange(self, own: Tensor) -> list[Tensor]:
        """`own` [N] of every rank, all of as many numbers; valid until the next but one."""
        group, size = self._group, own.numel() * own.itemsize
        parts = self._parts[group.half, :, :size].view(own.dtype)
        parts[group.rank] = own
        group.meet(size)
        return list(parts.unbind())


def _pieces(flat: Tensor, most: int) -> Iterator[tuple[int, Tensor]]:
    for begin in range(0, len(flat), most):
        yield begin, flat[begin : begin + most]
