"""Routing to experts and their products, composed of plain operators, and latent attention.

The host never waits for the routing.  `ComposedGroupedMatmul` copies the matrices of the experts
that have rows, and pads each of them to the most rows of one: on a CPU about three times the
reading of these matrices with few tokens, and with many tokens a copy of all experts of a layer.
"""

from typing import Any, TypeAlias

from mindspore_serving.llm.runtimes.mindir.library import mindspore, ops
from mindspore_serving.llm.runtimes.mindspore.primitives.attention import (
    PaddedAttention,
    Plan,
    Positions,
    gathered,
)

Tensor: TypeAlias = Any  # a mindspore.Tensor
EXCLUDED = -1e30  # score of an expert of a group that was not chosen


class ComposedGatingTopKSoftmax(mindspore.nn.Cell):  # type: ignore[misc]
    """The `k` largest shares of the softmax of x, [T, E], not normalised again.

    Outputs are shares, experts and rows, [T, k] each; rows are j * T + t.
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.top = ops.TopK(sorted=True)
        self.positions = Positions()

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shares, chosen = self.top(ops.softmax(x.astype(mindspore.float32), -1), self.k)
        rows = self.positions(ops.scalar_to_tensor(x.shape[0] * self.k))
        rows = ops.transpose(ops.reshape(rows, (self.k, -1)), (1, 0))
        return shares.astype(x.dtype), chosen.astype(mindspore.int32), rows


class ComposedInitRouting(mindspore.nn.Cell):  # type: ignore[misc]
    """Rows of x, [T, K], sorted by their experts, [T, k].

    Outputs are rows, [T * k, K], the row of each choice, int32 [T * k], and the number of rows of
    each expert, int32 [num_experts].
    """

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.experts = mindspore.Tensor(list(range(num_experts)), mindspore.int32)
        self.sort = ops.Sort()
        self.positions = Positions()

    def construct(self, x: Tensor, expert_idx: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k = expert_idx.shape[1]
        flat = ops.reshape(expert_idx, (-1,))
        count = ops.scalar_to_tensor(flat.shape[0]).astype(mindspore.int32)
        index = self.positions(count)
        _, order = self.sort(flat * count + index)  # distinct keys: equal experts keep their order
        targets = ops.scatter_nd(ops.expand_dims(order, 1), index, flat.shape)
        is_expert = ops.expand_dims(flat, 1) == self.experts
        counts = ops.ReduceSum()(is_expert.astype(mindspore.int32), 0)
        return ops.gather(x, order // k, 0), targets, counts


class ComposedGroupedMatmul(mindspore.nn.Cell):  # type: ignore[misc]
    """The product of rows, [R, K], sorted by expert, with the matrix of each expert, [E, K, N].

    `counts`, int64 [E], are the rows of each expert; rows behind these have an undefined result.
    With `may_have_no_rows` all counts may be 0: the first expert then computes a row.
    """

    def __init__(self, *, may_have_no_rows: bool = False) -> None:
        super().__init__()
        self.may_have_no_rows = may_have_no_rows
        self.product = ops.BatchMatMul()
        self.positions = Positions()

    def construct(self, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        counts = counts.astype(mindspore.int32)
        if self.may_have_no_rows:
            has_none = (ops.ReduceSum()(counts) == 0).astype(mindspore.int32)
            number = self.positions(ops.scalar_to_tensor(weight.shape[0]))
            counts = counts + has_none * (number == 0).astype(mindspore.int32)
        active = ops.reshape(ops.nonzero(counts), (-1,))  # experts that have rows, [A]
        counts = ops.gather(counts, active, 0)
        ends = ops.cumsum(counts, 0)
        starts = ends - counts
        longest = ops.ReduceMax()(counts)
        rows = ops.expand_dims(starts, 1) + self.positions(longest)  # [A, longest]
        index = self.positions(ops.scalar_to_tensor(x.shape[0]))
        padded = ops.gather(x, ops.minimum(rows, x.shape[0] - 1), 0)
        out = self.product(padded, ops.gather(weight, active, 0))
        is_after = (ops.expand_dims(index, 1) >= ends).astype(mindspore.int32)
        owner = ops.minimum(ops.ReduceSum()(is_after, 1), active.shape[0] - 1)
        targets = owner * longest + ops.minimum(index - ops.gather(starts, owner, 0), longest - 1)
        return ops.gather(ops.reshape(out, (-1, weight.shape[2])), targets, 0)


class ComposedTokenUnpermute(mindspore.nn.Cell):  # type: ignore[misc]
    """Sum over j of probs[t, j] * rows[indices[t * k + j]], [T, N]."""

    def construct(self, rows: Tensor, indices: Tensor, probs: Tensor) -> Tensor:
        chosen = ops.gather(rows, indices, 0)
        chosen = ops.reshape(chosen, (-1, probs.shape[1], rows.shape[1]))
        return ops.ReduceSum()(chosen * ops.expand_dims(probs, 2), 1)


class ComposedAddTopKDiv(mindspore.nn.Cell):  # type: ignore[misc]
    """Routing of DeepSeek V3, of scores x, [T, E], and a bias, [E]: (shares float32, experts).

    Of `group_num` groups of experts the `group_topk` with the largest sum of their `n` largest
    sigmoid(x) + bias remain; the `k` largest of those are chosen, their shares are without the
    bias, with `is_norm` divided by their sum, and times `scale`.
    """

    def __init__(
        self, *, group_num: int, group_topk: int, n: int, k: int, is_norm: bool = True,
        scale: float = 2.5,
    ) -> None:  # fmt: skip
        super().__init__()
        self.sizes = (group_num, group_topk, n, k)
        self.is_norm = is_norm
        self.scale = scale
        self.top = ops.TopK(sorted=True)
        self.groups = mindspore.Tensor(list(range(group_num)), mindspore.int32)
        self.sum = ops.ReduceSum(keep_dims=True)

    def construct(self, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        group_num, group_topk, n, k = self.sizes
        scores = ops.sigmoid(x)
        grouped = ops.reshape(scores + bias, (-1, group_num, x.shape[1] // group_num))
        best, _ = self.top(grouped, n)
        _, chosen = self.top(ops.ReduceSum()(best, 2), group_topk)
        is_chosen = (ops.expand_dims(chosen, 2) == self.groups).astype(mindspore.float32)
        remains = ops.expand_dims(ops.ReduceSum()(is_chosen, 1), 2)  # [T, groups, 1]
        ranked = ops.reshape(grouped + (1 - remains) * EXCLUDED, (-1, x.shape[1]))
        _, experts = self.top(ranked, k)
        shares = ops.gather_elements(scores, 1, experts)
        if self.is_norm:
            shares = shares / self.sum(shares, 1)
        return shares * self.scale, experts.astype(mindspore.int32)


class ComposedMla(PaddedAttention):
    """Latent attention: q, [T, heads, R], and its rotated part, [T, heads, P], to a latent cache.

    kv_cache is [blocks, block_size, 1, R] and rope_cache [blocks, block_size, 1, P].  The result,
    [T, heads, R], is still latent.  `mask` is as in `ComposedPagedAttention`.
    """

    def __init__(self, *, head_num: int, scale: float, mask_mode: str = "MASK_NONE") -> None:
        super().__init__(head_num=head_num, kv_head_num=1, scale=scale)

    def construct(
        self,
        q: Tensor,
        q_rope: Tensor,
        kv_cache: Tensor,
        rope_cache: Tensor,
        block_tables: Tensor,
        lengths: Tensor,
        mask: Plan,
        q_seq_lens: Tensor,
    ) -> Tensor:
        tables = ops.depend(mask[4], (q, q_rope))
        latent = gathered(kv_cache, tables, mask, 1)
        keys = ops.concat((latent, gathered(rope_cache, tables, mask, 1)), 2)
        queries = ops.concat((q, q_rope), 2)
        flat = ops.reshape(queries, (-1, self.heads * queries.shape[2]))
        return ops.reshape(self.attend(flat, keys, latent, mask, None), (-1, *q.shape[1:]))
