"""The device's own primitives, called with the arguments of the table.

A primitive whose arguments are the table's is made directly; the others have a cell that arranges
them.  Not verified on hardware: MindSpore's front end compiles each on a CPU.
"""

from typing import Any, TypeAlias

from mindspore.ops.auto_generate import gen_ops_prim as primitives

from mindspore_serving.llm.runtimes.mindir.library import mindspore, ops

Tensor: TypeAlias = Any  # a mindspore.Tensor
NO_LIMIT = 2**31 - 1  # of the tokens before and after a query


def rms_norm(eps: float = 1e-6) -> Any:
    """Make RmsNorm."""
    return primitives.RmsNorm(eps)


def rope(cos_format: int = 2) -> Any:
    """Make ApplyRotaryPosEmb."""
    return primitives.ApplyRotaryPosEmb(cos_format)


def reshape_and_cache() -> Any:
    """Make ReshapeAndCache."""
    return primitives.ReshapeAndCache()


def matmul() -> Any:
    """Make MatMul of [T, K] by [N, K]."""
    return ops.MatMul(transpose_b=True)


def argmax() -> Any:
    """Make Argmax, with int32 indices."""
    return ops.Argmax(-1, mindspore.int32)


def all_reduce(group: str) -> Any:
    """Make AllReduce, the sum over the ranks of `group`."""
    return ops.AllReduce(ops.ReduceOp.SUM, group)


def all_gather(group: str) -> Any:
    """Make AllGather, the rows of all ranks of `group` below each other."""
    return ops.AllGather(group)


class AttentionMask(mindspore.nn.Cell):  # type: ignore[misc]
    """`attn_mask` itself: the kernels find the lengths by the names of the graph's inputs."""

    def __init__(
        self, *, head_num: int, kv_head_num: int, block_size: int = 0, is_paged: bool = True
    ) -> None:
        super().__init__()

    def construct(
        self,
        attn_mask: Tensor,
        slot_mapping: Tensor,
        batch_valid_length: Tensor,
        q_seq_lens: Tensor,
        block_tables: Tensor,
    ) -> Tensor:
        return attn_mask


class FlashAttention(mindspore.nn.Cell):  # type: ignore[misc]
    """FlashAttentionScore of packed sequences, without padding (layout TH)."""

    def __init__(self, *, head_num: int, kv_head_num: int, scale: float) -> None:
        super().__init__()
        # The kernel reads the number of key heads from the width of k.
        self.kernel = primitives.FlashAttentionScore(
            head_num, 1.0, scale, NO_LIMIT, NO_LIMIT, 0, "TH", 0
        )

    def construct(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
        return self.kernel(q, k, v, None, None, None, mask, None, lengths, lengths)[3]


class PagedAttention(mindspore.nn.Cell):  # type: ignore[misc]
    """The kernel PagedAttention; of several new tokens of a sequence, each has a row of `mask`."""

    def __init__(self, *, head_num: int, kv_head_num: int, scale: float) -> None:
        super().__init__()
        self.kernel = primitives.PagedAttention(head_num, scale, kv_head_num)

    def construct(
        self,
        q: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_tables: Tensor,
        lengths: Tensor,
        mask: Tensor,
        q_seq_lens: Tensor,
    ) -> Tensor:
        return self.kernel(
            q, key_cache, value_cache, block_tables, lengths, None, None, mask, q_seq_lens
        )


class Swiglu(mindspore.nn.Cell):  # type: ignore[misc]
    """Swiglu over the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = primitives.Swiglu()

    def construct(self, x: Tensor) -> Tensor:
        return self.kernel(x, -1)


class AddRmsNorm(mindspore.nn.Cell):  # type: ignore[misc]
    """The kernel AddRmsNorm, with the outputs (y, rstd, x + residual)."""

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.kernel = primitives.AddRmsNorm()

    def construct(self, x: Tensor, residual: Tensor, gamma: Tensor) -> Any:
        return self.kernel(x, residual, gamma, self.eps)


class WeightQuantMatmul(mindspore.nn.Cell):  # type: ignore[misc]
    """WeightQuantBatchMatmul of a weight [K, N]; one of 4 bits has the dtype qint4x2."""

    def __init__(self, bits: int = 8, group_size: int = 0) -> None:
        super().__init__()
        self.kernel = primitives.WeightQuantBatchMatmul(False, False, group_size)

    def construct(self, x: Tensor, weight: Tensor, scale: Tensor, offset: Tensor | None) -> Tensor:
        return self.kernel(x, weight, scale, offset, None, None, None)


class DynamicQuant(mindspore.nn.Cell):  # type: ignore[misc]
    """DynamicQuantExt."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = primitives.DynamicQuantExt()

    def construct(self, x: Tensor, smooth: Tensor | None = None) -> Any:
        return self.kernel(x, smooth)


class QuantMatmul(mindspore.nn.Cell):  # type: ignore[misc]
    """QuantBatchMatmul of a weight [N, K]; `dtype` is that of the output."""

    def __init__(self, dtype: str = "float16") -> None:
        super().__init__()
        self.kernel = primitives.QuantBatchMatmul(False, True, getattr(mindspore, dtype))

    def construct(
        self, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, pertoken: Tensor | None
    ) -> Tensor:
        return self.kernel(x, weight, scale, None, bias, pertoken)


class Quantise(mindspore.nn.Cell):  # type: ignore[misc]
    """The kernel QuantV2, whose kernel and formula follow from the dtype of the offset."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = primitives.QuantV2()

    def construct(self, x: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
        return self.kernel(x, scale, offset, False, "ROUND", mindspore.int8)


class GatingTopKSoftmax(mindspore.nn.Cell):  # type: ignore[misc]
    """MoeGatingTopKSoftmax."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.kernel = primitives.MoeGatingTopKSoftmax()

    def construct(self, x: Tensor) -> Any:
        return self.kernel(x, None, self.k)


class InitRouting(mindspore.nn.Cell):  # type: ignore[misc]
    """MoeInitRoutingV2 without a capacity, with counts of rows."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.kernel = primitives.MoeInitRoutingV2()

    def construct(self, x: Tensor, expert_idx: Tensor) -> Any:
        return self.kernel(x, expert_idx, 0, 0, self.num_experts, 0, 2, False)[:3]


class GroupedMatmul(mindspore.nn.Cell):  # type: ignore[misc]
    """GroupedMatmulV4 of one tensor of rows (split_item 3), split along rows, by counts."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = primitives.GroupedMatmulV4()

    def construct(self, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        return self.kernel(
            [x], [weight], None, None, None, None, None, None, counts, None, None, None, 3, 0, 1, 0,
            None,
        )[0]  # fmt: skip


class TokenUnpermute(mindspore.nn.Cell):  # type: ignore[misc]
    """MoeTokenUnpermute without padding."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = primitives.MoeTokenUnpermute()

    def construct(self, rows: Tensor, indices: Tensor, probs: Tensor) -> Tensor:
        return self.kernel(rows, indices, probs, False, None)


class AddTopKDiv(mindspore.nn.Cell):  # type: ignore[misc]
    """FusedAddTopKDiv with sigmoid."""

    def __init__(
        self, *, group_num: int, group_topk: int, n: int, k: int, is_norm: bool = True,
        scale: float = 2.5,
    ) -> None:  # fmt: skip
        super().__init__()
        self.options = (group_num, group_topk, n, k)
        self.is_norm = is_norm
        self.scale = scale
        self.kernel = primitives.FusedAddTopKDiv()

    def construct(self, x: Tensor, bias: Tensor) -> Any:
        groups, topk, n, k = self.options
        return self.kernel(
            x, bias, groups, topk, n, k, 0, self.is_norm, self.scale, None, None, False
        )


class Mla(mindspore.nn.Cell):  # type: ignore[misc]
    """Mla; `mask_mode` is MASK_NONE where every sequence has one new token, else MASK_SPEC."""

    def __init__(self, *, head_num: int, scale: float, mask_mode: str = "MASK_NONE") -> None:
        super().__init__()
        self.options = (head_num, scale, 1, mask_mode, 0)
        self.kernel = primitives.Mla()

    def construct(
        self,
        q: Tensor,
        q_rope: Tensor,
        kv_cache: Tensor,
        rope_cache: Tensor,
        block_tables: Tensor,
        lengths: Tensor,
        mask: Tensor,
        q_seq_lens: Tensor,
    ) -> Tensor:
        heads, scale, kv_heads, mask_mode, is_ring = self.options
        return self.kernel(
            q, q_rope, kv_cache, rope_cache, block_tables, mask, None, None, q_seq_lens, lengths,
            heads, scale, kv_heads, mask_mode, is_ring,
        )[0]  # fmt: skip
