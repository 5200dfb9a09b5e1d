"""Fused Triton kernels: norms, rotary positions and gated activations.

Between the matrix products of a decoding step, the operations of `TorchOps` are about thirty small
kernels per layer, which took a quarter of a step of one stream (benchmarks/README.md).  Arithmetic
is float32 and rounded once, whatever the dtype.
"""

import torch
import triton
import triton.language as tl

from mindspore_serving.llm.runtimes.torch.ops import Tensor, TorchOps, TorchRankOps

TILE = 1024  # features per program of `_silu_mul`


class FusedOps(TorchOps):
    """`TorchOps` with fused kernels, for devices that Triton supports."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False) -> Tensor:
        width = x.shape[-1]
        rows = x.reshape(-1, width)
        out = torch.empty_like(rows, memory_format=torch.contiguous_format)
        block = triton.next_power_of_2(width)
        _rms_norm[len(rows),](
            rows, weight, out, rows.stride(0), eps, WIDTH=width, PLUS_ONE=plus_one, BLOCK=block
        )
        return out.view(x.shape)

    def rope(
        self, x: Tensor, tables: tuple[Tensor, Tensor], num_heads: int, *, pairs: bool = False
    ) -> Tensor:
        cos, sin = (table.contiguous() for table in tables)
        width, half = x.shape[-1] // num_heads, cos.shape[-1]
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        _rope[len(x), num_heads](
            x, cos, sin, out, x.stride(0),
            HEADS=num_heads,
            WIDTH=width,
            HALF=half,
            PAIRS=pairs,
            BLOCK=triton.next_power_of_2(max(half, width - 2 * half)),
        )  # fmt: skip
        return out

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        _silu_mul[triton.cdiv(gate.numel(), TILE),](gate, up, out, gate.numel(), BLOCK=TILE)
        return out


class FusedRankOps(TorchRankOps, FusedOps):
    """`FusedOps` of one rank."""


@triton.jit(do_not_specialize=["stride"])  # type: ignore[untyped-decorator]
def _rms_norm(  # noqa: PLR0917
    x: tl.tensor, weight: tl.tensor, out: tl.tensor, stride: tl.tensor, eps: tl.tensor,
    WIDTH: tl.constexpr, PLUS_ONE: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    feature = tl.arange(0, BLOCK)
    is_feature = feature < WIDTH
    value = tl.load(x + row * stride + feature, mask=is_feature, other=0.0).to(tl.float32)
    scale = tl.load(weight + feature, mask=is_feature, other=0.0).to(tl.float32)
    if PLUS_ONE:
        scale += 1.0
    normed = value / tl.sqrt(tl.sum(value * value) / WIDTH + eps) * scale
    tl.store(out + row * WIDTH + feature, normed, mask=is_feature)


@triton.jit(do_not_specialize=["stride"])  # type: ignore[untyped-decorator]
def _rope(  # noqa: PLR0917
    x: tl.tensor, cos: tl.tensor, sin: tl.tensor, out: tl.tensor, stride: tl.tensor,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Rotate 2 * HALF features of a head of a token, and copy the rest.

    The result has the first features of all pairs before the second ones.
    """
    token = tl.program_id(0).to(tl.int64)
    source = x + token * stride + tl.program_id(1) * WIDTH
    target = out + (token * HEADS + tl.program_id(1)) * WIDTH
    pair = tl.arange(0, BLOCK)
    is_pair = pair < HALF
    c = tl.load(cos + token * HALF + pair, mask=is_pair, other=0.0).to(tl.float32)
    s = tl.load(sin + token * HALF + pair, mask=is_pair, other=0.0).to(tl.float32)
    if PAIRS:
        first = tl.load(source + 2 * pair, mask=is_pair, other=0.0).to(tl.float32)
        second = tl.load(source + 2 * pair + 1, mask=is_pair, other=0.0).to(tl.float32)
    else:
        first = tl.load(source + pair, mask=is_pair, other=0.0).to(tl.float32)
        second = tl.load(source + HALF + pair, mask=is_pair, other=0.0).to(tl.float32)
    tl.store(target + pair, first * c - second * s, mask=is_pair)
    tl.store(target + HALF + pair, second * c + first * s, mask=is_pair)
    if WIDTH > 2 * HALF:
        is_unrotated = pair < WIDTH - 2 * HALF
        rest = tl.load(source + 2 * HALF + pair, mask=is_unrotated, other=0.0)
        tl.store(target + 2 * HALF + pair, rest, mask=is_unrotated)


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _silu_mul(
    gate: tl.tensor, up: tl.tensor, out: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr
) -> None:
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_index = index < count
    g = tl.load(gate + index, mask=is_index, other=0.0).to(tl.float32)
    u = tl.load(up + index, mask=is_index, other=0.0).to(tl.float32)
    tl.store(out + index, g * tl.sigmoid(g) * u, mask=is_index)
