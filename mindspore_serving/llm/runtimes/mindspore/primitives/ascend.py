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


def matmul() -> Any:
    """Make MatMul of [T, K] by [N, K]."""
    return ops.MatMul(transpose_b=True)


def argmax() -> Any:
    """Make Argmax, with int32 indices."""
    return ops.Argmax(-1, mindspore.int32)


class AttentionMask(mindspore.nn.Cell):  # type: ignore[misc]
    """`attn_mask` itself: the kernels find the lengths by the names of the graph's inputs."""

    def __init__(self, *, groups: int, block_size: int = 0, is_paged: bool = True) -> None:
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
    """PagedAttention, with several new tokens of a sequence where `mask` has a row for each."""

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
    """AddRmsNorm, with the outputs (y, rstd, x + residual)."""

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.kernel = primitives.AddRmsNorm()

    def construct(self, x: Tensor, residual: Tensor, gamma: Tensor) -> Any:
        return self.kernel(x, residual, gamma, self.eps)
