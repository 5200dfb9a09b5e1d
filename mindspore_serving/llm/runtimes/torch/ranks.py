"""The operations of a rank: its part of a model in PyTorch, and what it exchanges with the others.

On a CPU; the ranks' parts are added in the order of ranks, so that all have the same bits.
"""

import torch

from mindspore_serving.llm.parallel.group import PART_BYTES, Group
from mindspore_serving.llm.parallel.shards import Shard
from mindspore_serving.llm.runtimes.torch.lora import Adapters
from mindspore_serving.llm.runtimes.torch.ops import Caches, Tensor, TorchOps, Weights


class Exchange:
    """Tensors through the memory of `group`; all ranks call the same with equal shapes."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._parts = torch.from_numpy(group.parts)  # [half, rank, bytes]

    def all(self, own: Tensor) -> tuple[Tensor, ...]:
        """`own` [N], of PART_BYTES at most, of every rank; valid until the next but one."""
        group, size = self._group, own.numel() * own.itemsize
        parts = self._parts[group.half, :, :size].view(own.dtype)
        parts[group.rank] = own
        group.meet(size)
        return tuple(parts)

    def sum(self, x: Tensor) -> Tensor:
        """Of every rank's `x`, written to it."""
        for total in x.view(-1).split(PART_BYTES // x.itemsize):
            first, second, *others = self.all(total)
            torch.add(first, second, out=total)
            for part in others:
                total += part
        return x


class RankOps(TorchOps):
    """`Ops` of one rank of `group`.  Embedding and head have its rows of the vocabulary."""

    def __init__(
        self, weights: Weights, caches: Caches, dtype: torch.dtype, group: Group, vocab_size: int
    ) -> None:
        super().__init__(weights, caches, dtype, Adapters())
        self._exchange = Exchange(group)
        self._is_first = group.rank == 0
        shards = [Shard(rank, group.size) for rank in range(group.size)]
        self._rows = [shard.of(vocab_size) for shard in shards]
        self._own_rows = self._rows[group.rank]

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        own = self._own_rows
        is_other = (ids < own.begin) | (ids >= own.end)
        rows = super().embedding((ids - own.begin).masked_fill(is_other, 0), table)
        return self.all_reduce(rows.masked_fill(is_other[:, None], 0))

    def all_reduce(self, x: Tensor) -> Tensor:
        return self._exchange.sum(x)

    def logits(self, x: Tensor, head: Tensor, bias: Tensor | None = None) -> Tensor:
        """No rows on other ranks than 0."""
        own, width = self.linear(x, head, bias), max(one.count for one in self._rows)
        out = own.new_empty(len(own) if self._is_first else 0, self._rows[-1].end)
        most = PART_BYTES // (width * own.itemsize)
        for begin in range(0, len(own), most):
            piece = own.new_zeros(min(most, len(own) - begin), width)
            piece[:, : own.shape[1]] = own[begin : begin + most]
            parts = self._exchange.all(piece.flatten())
            if self._is_first:
                for part, one in zip(parts, self._rows, strict=True):
                    rows = part.view(-1, width)[:, : one.count]
                    out[begin : begin + most, one.begin : one.end] = rows
        return out
