"""Attention over packed sequences and over a paged cache, composed of plain operators.

Indices and the mask depend on the step alone: `ComposedAttentionMask` computes them once, and all
layers read them.  Queries are padded to [B, S], and the keys of a sequence are gathered once, not
once per query.  A transpose costs 20 ns for each element on a CPU, so heads are moved to the front
by gathering rows of D features, of which a copy costs a twentieth.
"""

from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.llm.runtimes.mindir.library import mindspore, ops

Tensor: TypeAlias = Any  # a mindspore.Tensor
Plan: TypeAlias = Any  # the outputs of ComposedAttentionMask


class Positions(mindspore.nn.Cell):  # type: ignore[misc]
    """Numbers from 0 to a count that may be dynamic, int32."""

    def __init__(self) -> None:
        super().__init__()
        self.zero = mindspore.Tensor(0, mindspore.int32)
        self.step = mindspore.Tensor(1, mindspore.int32)

    def construct(self, count: Tensor) -> Tensor:
        numbers = ops.range(self.zero, count.astype(mindspore.int32), self.step)
        return numbers.astype(mindspore.int32)


class ComposedAttentionMask(mindspore.nn.Cell):  # type: ignore[misc]
    """The mask that composed attention cells take, computed once per step and `window`.

    Of `attn_mask` only the dtype is read, as causality follows from the lengths.  With S the most
    new tokens of a sequence, G the query heads of a key head, and L the keys (S without `is_paged`,
    else those of the block tables), the outputs are:

    - queries, [B * kv_heads, S * G]: indices of rows of q, [T * heads, D];
    - keys, [B * kv_heads, L]: of rows of the keys, [T * kv_heads, D], or those of the block tables;
    - tokens, [T, heads]: of rows of the padded result;
    - bias, [B * kv_heads, S * G, L], to add to scores: in full, as broadcasting takes five times
      as long on a CPU;
    - the block tables without negative entries.

    Args:
        head_num: query heads.
        kv_head_num: key heads.
        block_size: tokens of a block, with `is_paged`.
        is_paged: keys come from a cache of blocks.
        window: keys that a query sees, itself included; 0 for all.
        alibi: slopes, one for each query head.
    """

    def __init__(
        self,
        *,
        head_num: int,
        kv_head_num: int,
        block_size: int = 0,
        is_paged: bool = True,
        window: int = 0,
        alibi: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__()
        self.heads = head_num
        self.kv_heads = kv_head_num
        self.groups = head_num // kv_head_num
        self.block_size = block_size
        self.is_paged = is_paged
        self.window = window
        self.positions = Positions()
        numbers = np.arange(head_num, dtype=np.int32)
        self.head_numbers = mindspore.Tensor(numbers)
        self.kv_numbers = mindspore.Tensor(numbers[:kv_head_num].reshape(1, -1, 1))
        self.query_numbers = mindspore.Tensor(numbers.reshape(1, kv_head_num, 1, -1))
        self.slopes = None
        if alibi is not None:
            slopes = np.asarray(alibi, np.float32).reshape(1, kv_head_num, 1, self.groups, 1)
            self.slopes = mindspore.Tensor(slopes)

    def construct(
        self,
        attn_mask: Tensor,
        slot_mapping: Tensor,
        batch_valid_length: Tensor,
        q_seq_lens: Tensor,
        block_tables: Tensor,
    ) -> Plan:
        ends = ops.cumsum(q_seq_lens, 0)
        starts = ends - q_seq_lens
        total = slot_mapping.shape[0]
        longest = ops.ReduceMax()(q_seq_lens)
        offsets = self.positions(longest)
        batch = q_seq_lens.shape[0]
        rows = ops.minimum(ops.expand_dims(starts, 1) + offsets, total - 1)
        queries = ops.reshape(rows * self.heads, (batch, 1, -1, 1)) + self.query_numbers
        queries = ops.reshape(queries, (batch * self.kv_heads, -1))
        index = self.positions(ops.scalar_to_tensor(total))
        is_after = (ops.expand_dims(index, 1) >= ops.expand_dims(ends, 0)).astype(mindspore.int32)
        owner = ops.minimum(ops.ReduceSum()(is_after, 1), batch - 1)
        # A token that pads the step has no owner, and an output that means nothing.
        offset = ops.minimum(index - ops.gather(starts, owner, 0), longest - 1)
        first = (owner * self.kv_heads * longest + offset) * self.groups
        group = longest * self.groups * (self.head_numbers // self.groups)
        tokens = ops.expand_dims(first, 1) + (group + self.head_numbers % self.groups)
        rows_of_keys, at, tables = rows, offsets, block_tables
        if self.is_paged:
            count = block_tables.shape[1] * self.block_size
            at = self.positions(ops.scalar_to_tensor(count))
            each = self.positions(ops.scalar_to_tensor(batch * count))
            rows_of_keys = ops.reshape(each, (batch, -1))
            tables = ops.maximum(block_tables, 0)
        keys = ops.expand_dims(rows_of_keys * self.kv_heads, 1) + self.kv_numbers
        keys = ops.reshape(keys, (batch * self.kv_heads, -1))
        position = ops.expand_dims(batch_valid_length - q_seq_lens, 1) + offsets
        bias = self.bias(ops.expand_dims(position, 2) - at, attn_mask.dtype)
        return queries, keys, tokens, bias, tables

    def bias(self, distance: Tensor, dtype: Any) -> Tensor:
        """Return what is added to scores of keys at a distance, [B, S, L], from a query."""
        hidden = distance < 0
        if self.window > 0:
            hidden = ops.logical_or(hidden, distance >= self.window)
        lowest = -30000.0 if dtype == mindspore.float16 else -1e30
        bias = hidden.astype(mindspore.float32) * lowest
        bias = ops.expand_dims(ops.expand_dims(bias, 2), 1)  # [B, 1, S, 1, L]
        if self.slopes is None:
            bias = ops.tile(bias, (1, self.kv_heads, 1, self.groups, 1))
        else:
            far = ops.expand_dims(ops.expand_dims(distance.astype(mindspore.float32), 2), 1)
            bias = bias - self.slopes * far
        shape = (distance.shape[0] * self.kv_heads, -1, distance.shape[2])
        return ops.reshape(bias, shape).astype(dtype)


class PaddedAttention(mindspore.nn.Cell):  # type: ignore[misc]
    """Attention of padded queries, which the cells below complete.

    Args:
        head_num: query heads.
        kv_head_num: key heads.
        scale: of the scores.
        softcap: scores are softcap * tanh(scores / softcap); 0 for none.
    """

    def __init__(
        self, *, head_num: int, kv_head_num: int, scale: float, softcap: float = 0.0
    ) -> None:
        super().__init__()
        self.heads = head_num
        self.kv_heads = kv_head_num
        self.groups = head_num // kv_head_num
        self.scale = scale
        self.softcap = softcap
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.weighted = ops.BatchMatMul()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, sinks: Tensor | None) -> Tensor:
        """Attend with q, [T, heads * D], to k and v, [B * kv_heads, L, D]."""
        queries, _, tokens, bias, _ = plan
        q = ops.reshape(q * self.scale, (-1, q.shape[1] // self.heads))
        scores = self.scores(ops.gather(q, queries, 0), k)
        if self.softcap > 0:
            scores = ops.tanh(scores / self.softcap) * self.softcap
        scores = scores + bias
        if sinks is None:
            weights = ops.softmax(scores, -1)
        else:
            weights = self.softmax_with(sinks.astype(scores.dtype), scores)
        dim = v.shape[2]
        out = ops.gather(ops.reshape(self.weighted(weights, v), (-1, dim)), tokens, 0)
        return ops.reshape(out, (-1, self.heads * dim))

    def softmax_with(self, sinks: Tensor, scores: Tensor) -> Tensor:
        """Return the softmax of scores, [B * kv_heads, S * G, L], and one more score per head."""
        count = scores.shape[0] // self.kv_heads
        column = ops.reshape(scores[:, :, :1] * 0, (count, self.kv_heads, -1, self.groups))
        column = column + ops.reshape(sinks, (1, self.kv_heads, 1, self.groups))
        column = ops.reshape(column, (scores.shape[0], -1, 1))
        return ops.softmax(ops.concat((scores, column), -1), -1)[:, :, : scores.shape[2]]


class ComposedFlashAttention(PaddedAttention):
    """Causal attention among packed new tokens, q [T, heads * D], k and v [T, kv_heads * D].

    `mask` is the output of `ComposedAttentionMask` with is_paged=False; `sinks`, [heads], are one
    more score per head that takes its share and has no value.
    """

    def construct(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Plan,
        lengths: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        k = ops.gather(ops.reshape(k, (-1, k.shape[1] // self.kv_heads)), mask[1], 0)
        v = ops.gather(ops.reshape(v, (-1, v.shape[1] // self.kv_heads)), mask[1], 0)
        return self.attend(q, k, v, mask, sinks)


class ComposedPagedAttention(PaddedAttention):
    """Causal attention of q, [T, heads * D], to caches [blocks, block_size, kv_heads, D] or flat.

    `mask` is the output of `ComposedAttentionMask`; `sinks` as in `ComposedFlashAttention`.  Each
    sequence takes the time and the memory of the longest table.
    """

    def construct(
        self,
        q: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_tables: Tensor,
        lengths: Tensor,
        mask: Plan,
        q_seq_lens: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        # The write to the cache is what q depends on; without this the gather could precede it.
        tables = ops.depend(mask[4], q)
        k = gathered(key_cache, tables, mask, self.kv_heads)
        v = gathered(value_cache, tables, mask, self.kv_heads)
        return self.attend(q, k, v, mask, sinks)


def gathered(cache: Tensor, tables: Tensor, plan: Plan, kv_heads: int) -> Tensor:
    """Return the cache of each sequence, [B * kv_heads, blocks * block_size, D].

    `cache` may have the features of all heads on one axis.
    """
    # Two gathers, as a reshape of the cache itself would copy all of it.
    width = cache.shape[-1] if len(cache.shape) == 4 else cache.shape[-1] // kv_heads
    rows = ops.reshape(ops.gather(cache, tables, 0), (-1, width))
    return ops.gather(rows, plan[1], 0)
