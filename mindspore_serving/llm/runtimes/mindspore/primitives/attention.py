"""Attention over packed sequences and over a paged cache, composed of plain operators.

What depends on the step alone (padding, the mask) is computed once by `ComposedAttentionMask`, and
all layers read it.  Queries are padded to [B, S], the keys of each sequence are gathered once, and
each key head is one product with the queries of its group stacked, so that nothing is transposed.
"""

from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.llm.runtimes.mindir.library import mindspore, ops

Tensor: TypeAlias = Any  # a mindspore.Tensor
Plan: TypeAlias = Any  # (rows, tokens, biases, tables) of ComposedAttentionMask


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
    new tokens of a sequence, and L the keys (S without `is_paged`, else those of the block tables),
    the outputs are rows, int32 [B, S]: the token at each padded query; tokens, int32 [T]: the
    padded query of each token; biases: [B, S * groups, L] to add to scores, one for all key heads,
    or with `alibi` one for each; and the block tables without negative entries.

    Args:
        groups: query heads for each key head.
        block_size: tokens of a block, with `is_paged`.
        is_paged: keys come from a cache of blocks.
        window: keys that a query sees, itself included; 0 for all.
        alibi: slopes, one for each query head.
    """

    def __init__(
        self,
        *,
        groups: int,
        block_size: int = 0,
        is_paged: bool = True,
        window: int = 0,
        alibi: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__()
        self.groups = groups
        self.block_size = block_size
        self.is_paged = is_paged
        self.window = window
        self.positions = Positions()
        self.slopes = None
        if alibi is not None:
            slopes = np.asarray(alibi, np.float32).reshape(-1, 1, 1, groups, 1)
            self.slopes = [mindspore.Tensor(each) for each in slopes]

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
        rows = ops.minimum(ops.expand_dims(starts, 1) + offsets, total - 1)
        index = self.positions(ops.scalar_to_tensor(total))
        is_after = (ops.expand_dims(index, 1) >= ops.expand_dims(ends, 0)).astype(mindspore.int32)
        owner = ops.minimum(ops.ReduceSum()(is_after, 1), q_seq_lens.shape[0] - 1)
        # A token that pads the step has no owner, and an output that means nothing.
        offset = ops.minimum(index - ops.gather(starts, owner, 0), longest - 1)
        tokens = owner * longest + offset
        keys = offsets
        tables = block_tables
        if self.is_paged:
            keys = self.positions(ops.scalar_to_tensor(block_tables.shape[1] * self.block_size))
            tables = ops.maximum(block_tables, 0)
        position = ops.expand_dims(batch_valid_length - q_seq_lens, 1) + offsets
        distance = ops.expand_dims(position, 2) - keys
        hidden = distance < 0
        if self.window > 0:
            hidden = ops.logical_or(hidden, distance >= self.window)
        return rows, tokens, self.biases(hidden, distance, attn_mask.dtype), tables

    def biases(self, hidden: Tensor, distance: Tensor, dtype: Any) -> tuple[Tensor, ...]:
        """Return biases, [B, S * groups, L] each, from [B, S, L]."""
        lowest = -30000.0 if dtype == mindspore.float16 else -1e30
        bias = ops.expand_dims(hidden.astype(mindspore.float32) * lowest, 2)
        shape = (hidden.shape[0], -1, hidden.shape[2])
        if self.slopes is None:
            return (ops.reshape(ops.tile(bias, (1, 1, self.groups, 1)), shape).astype(dtype),)
        far = ops.expand_dims(distance.astype(mindspore.float32), 2)
        result: tuple[Tensor, ...] = ()
        for slopes in self.slopes:
            result += (ops.reshape(bias - slopes * far, shape).astype(dtype),)
        return result


class PaddedAttention(mindspore.nn.Cell):  # type: ignore[misc]
    """Attention of padded queries, which the cells below complete.

    Args:
        head_num, kv_head_num: query heads, key heads.
        scale: of the scores.
        softcap: scores are softcap * tanh(scores / softcap); 0 for none.
    """

    def __init__(
        self, *, head_num: int, kv_head_num: int, scale: float, softcap: float = 0.0
    ) -> None:
        super().__init__()
        self.kv_heads = kv_head_num
        self.groups = head_num // kv_head_num
        self.scale = scale
        self.softcap = softcap
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.weighted = ops.BatchMatMul()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, sinks: Tensor | None) -> Tensor:
        """Attend with q, [T, heads * D], to k and v, [B, L, kv_heads * D]."""
        rows, tokens, biases, _ = plan
        batch = rows.shape[0]
        width = q.shape[1] // self.kv_heads
        dim = width // self.groups
        queries = ops.split(ops.gather(q * self.scale, rows, 0), width, -1)
        keys = ops.split(k, k.shape[2] // self.kv_heads, -1)
        values = ops.split(v, v.shape[2] // self.kv_heads, -1)
        out: tuple[Tensor, ...] = ()
        for head in range(self.kv_heads):
            scores = self.scores(ops.reshape(queries[head], (batch, -1, dim)), keys[head])
            if self.softcap > 0:
                scores = ops.tanh(scores / self.softcap) * self.softcap
            scores = scores + biases[head if len(biases) > 1 else 0]
            if sinks is None:
                weights = ops.softmax(scores, -1)
            else:
                group = sinks[head * self.groups : (head + 1) * self.groups]
                weights = self.softmax_with(group, scores, rows)
            part = self.weighted(weights, values[head])
            out += (ops.reshape(part, (-1, self.groups * part.shape[2])),)
        joined = out[0] if self.kv_heads == 1 else ops.concat(out, 1)
        return ops.gather(joined, tokens, 0)

    def softmax_with(self, group: Tensor, scores: Tensor, rows: Tensor) -> Tensor:
        """Return the softmax of scores, [B, S * groups, L], and of one more score per head."""
        column = ops.reshape(rows.astype(scores.dtype) * 0, (-1, 1)) + group.astype(scores.dtype)
        column = ops.reshape(column, (rows.shape[0], -1, 1))
        return ops.softmax(ops.concat((scores, column), -1), -1)[:, :, : scores.shape[2]]

    def gathered(self, cache: Tensor, tables: Tensor) -> Tensor:
        """Return the cache of each sequence, [B, blocks * block_size, kv_heads * D]."""
        width = cache.shape[2] * cache.shape[3]
        return ops.reshape(ops.gather(cache, tables, 0), (tables.shape[0], -1, width))


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
        rows = mask[0]
        return self.attend(q, ops.gather(k, rows, 0), ops.gather(v, rows, 0), mask, sinks)


class ComposedPagedAttention(PaddedAttention):
    """Causal attention of q, [T, heads * D], to caches [blocks, block_size, kv_heads, D].

    `mask` is the output of `ComposedAttentionMask`; `sinks` as in `ComposedFlashAttention`.
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
        tables = ops.depend(mask[3], q)
        k = self.gathered(key_cache, tables)
        v = self.gathered(value_cache, tables)
        return self.attend(q, k, v, mask, sinks)
