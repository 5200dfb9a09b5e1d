"""The operations of a rank: its part of every layer in PyTorch, on a CPU; sums in float32."""

import torch

from mindspore_serving.llm.parallel.exchange import Exchange
from mindspore_serving.llm.runtimes.torch.lora import Adapters
from mindspore_serving.llm.runtimes.torch.ops import Caches, Tensor, TorchOps
from mindspore_serving.llm.runtimes.torch.weights import Weights


class RankOps(TorchOps):
    """`Ops` of one rank.  Embedding and head have its rows of the vocabulary."""

    def __init__(
        self, weights: Weights, caches: Caches, dtype: torch.dtype, exchange: Exchange
    ) -> None:
        super().__init__(weights, caches, dtype, Adapters())
        self._exchange = exchange

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        own = self._exchange.rows
        is_other = (ids < own.begin) | (ids >= own.end)
        rows = super().embedding((ids - own.begin).masked_fill(is_other, 0), table)
        return self.all_reduce(rows.masked_fill(is_other[:, None], 0))

    def all_reduce(self, x: Tensor) -> Tensor:
        total = x.float().contiguous()
        array = total.numpy()
        self._exchange.sum(array, array)
        return total.to(x.dtype)

    def logits(self, x: Tensor, head: Tensor, bias: Tensor | None = None) -> Tensor:
        """No rows on other ranks than 0."""
        own = self.linear(x, head, bias)
        return torch.from_numpy(self._exchange.gather(own.float().numpy())).to(own.dtype)
