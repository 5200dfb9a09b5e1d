"""Attention over a paged cache as Triton kernels: keys and values are read in place.

The algorithm is published: softmax over tiles of keys with a running maximum and sum (Milakov and
Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022),
keys and values located by block tables (Kwon et al., "Efficient Memory Management for Large
Language Model Serving with PagedAttention", 2023), and, where few sequences would leave the device
idle, the keys of each split over several programs whose results are merged (Dao et al.,
"Flash-Decoding", 2023).

A program computes a tile: some new tokens of one sequence, in all the heads that share a KV head,
so that a key is read once for all of them.  Lengths and tables are read on the device and the grid
does not depend on them, so a launch can be captured in a graph.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime import JITFunction

from mindspore_serving.llm.models.ops import AttentionSpec

LOG2E = tl.constexpr(1.4426950408889634)
MIN_SIDE = 16  # smallest side of a matrix in `tl.dot`
MAX_ROWS = 64
KEY_TILE_BYTES = 16384
QUERY_TILE_BYTES = 16384


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of a step, on the device.

    `sequences` [B, 3 + blocks]: index of the first new token, number of new tokens, length with
    them, blocks.  `tiles` [tiles, 2]: index of the sequence, and the first of the tile's new
    tokens.  A tile has `num_rows` rows, one for each new token and head.
    """

    sequences: torch.Tensor
    tiles: torch.Tensor
    num_rows: int


def padded_group(spec: AttentionSpec) -> int:
    """Return the rows of a new token in a tile: the heads that share a KV head, padded."""
    return _power_of_2(spec.num_heads // spec.num_kv_heads)


def max_rows(spec: AttentionSpec, dtype: torch.dtype) -> int:
    """Return the number of rows of a tile if there are enough new tokens."""
    return max(_side(spec, dtype, QUERY_TILE_BYTES), padded_group(spec))


def attend(
    tiles: Tiles,
    cache: tuple[torch.Tensor, torch.Tensor],
    q: torch.Tensor,
    out: torch.Tensor,
    *,
    spec: AttentionSpec,
    slopes: torch.Tensor | None,
    num_splits: int,
) -> None:
    """Write the attention of the new tokens in `tiles` to `out`.

    `q` and `out` are [T, heads * head_dim]; `cache` are keys and values, [num_blocks, block_size,
    kv_heads, head_dim], in any float.  `slopes` are float32 [heads] if `spec` has ALiBi.
    `num_splits` programs share the keys of a tile.
    """
    shapes = {
        "GROUPS": spec.num_heads // spec.num_kv_heads,
        "KV_HEADS": spec.num_kv_heads,
        "HEAD_DIM": spec.head_dim,
        "BLOCK_D": _padded(spec.head_dim),
        "BLOCK_G": padded_group(spec),
        "BLOCK_M": tiles.num_rows,
        "num_warps": 4,
    }
    grid = (len(tiles.tiles), spec.num_kv_heads, num_splits)
    location = (tiles.sequences, tiles.tiles, tiles.sequences.stride(0), num_splits)
    sums, weights = None, None
    if num_splits > 1:
        count = len(q) * spec.num_heads
        sums = q.new_empty((num_splits, count, spec.head_dim), dtype=torch.float32)
        weights = q.new_empty((num_splits, 2, count), dtype=torch.float32)
    _attend[grid](
        q, *cache, out, sums, weights, *location, len(q), spec.scale, slopes,
        **shapes,
        PAGE=cache[0].shape[1],
        BLOCK_N=_side(spec, q.dtype, KEY_TILE_BYTES),
        WINDOW=spec.window,
        SOFTCAP=spec.softcap,
        FACTORS=_factors(q.dtype),
        num_stages=2,
    )  # fmt: skip
    if sums is not None:
        _merge[grid[:2]](out, sums, weights, *location, len(q), **shapes)


def _padded(head_dim: int) -> int:
    return max(MIN_SIDE, _power_of_2(head_dim))


def _power_of_2(number: int) -> int:
    """Return the smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


def _side(spec: AttentionSpec, dtype: torch.dtype, tile_bytes: int) -> int:
    """Return the rows of a tile of `tile_bytes` bytes whose rows are a head's features."""
    rows: int = tile_bytes // (_padded(spec.head_dim) * dtype.itemsize)
    return max(MIN_SIDE, min(MAX_ROWS, rows))


def _factors(dtype: torch.dtype) -> Any:
    """Return the dtype in which matrices are multiplied."""
    if dtype == torch.float16:
        return tl.float16
    # Triton's interpreter multiplies the bits of bfloat16 as if they were integers.
    is_compiled = isinstance(_attend, JITFunction)
    return tl.bfloat16 if dtype == torch.bfloat16 and is_compiled else tl.float32


@triton.jit  # type: ignore[untyped-decorator]
def _tile(  # noqa: PLR0917
    sequences: tl.tensor, tiles: tl.tensor, stride: tl.tensor,
    GROUPS: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_M: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Locate this program's tile.

    Returns the address of its sequence's row; the position of its first token and the one after its
    last; and of each row the position, the row of `q` and `out`, and whether it is used.
    """
    sequence = sequences + tl.load(tiles + 2 * tl.program_id(0)) * stride
    first = tl.load(tiles + 2 * tl.program_id(0) + 1).to(tl.int32)
    begin = tl.load(sequence).to(tl.int32)
    count = tl.load(sequence + 1).to(tl.int32)
    start = tl.load(sequence + 2).to(tl.int32) - count
    row = tl.arange(0, BLOCK_M)
    token = first + row // BLOCK_G
    member = row % BLOCK_G
    is_row = (token < count) & (member < GROUPS)
    output_row = (begin + token) * (KV_HEADS * GROUPS) + tl.program_id(1) * GROUPS + member
    end = start + tl.minimum(first + BLOCK_M // BLOCK_G, count)
    return sequence, start + first, end, start + token, output_row, is_row


@triton.jit  # type: ignore[untyped-decorator]
def _mask_scores(  # noqa: PLR0917
    score: tl.tensor, distance: tl.tensor, is_key: tl.tensor, slope: tl.tensor,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return scores in base 2, -inf for keys that are masked; `slope` is None or [rows]."""
    if SOFTCAP > 0:
        score = SOFTCAP * (2 * tl.sigmoid(2 * (score / SOFTCAP)) - 1)  # of tanh
    if slope is not None:
        score -= slope[:, None] * distance
    is_visible = (distance >= 0) & is_key[None, :]
    if WINDOW:
        is_visible &= distance < WINDOW
    return tl.where(is_visible, score * LOG2E, -float("inf"))


@triton.jit  # type: ignore[untyped-decorator]
def _rescale_factor(top: tl.tensor, higher: tl.tensor) -> tl.tensor:
    """Return the factor that changes a sum relative to `top` into one relative to `higher`."""
    return tl.exp2(top - tl.where(higher == -float("inf"), 0.0, higher))


@triton.jit(do_not_specialize=["stride", "num_splits", "num_tokens"])  # type: ignore[untyped-decorator]
def _attend(  # noqa: PLR0917
    q: tl.tensor, keys: tl.tensor, values: tl.tensor, out: tl.tensor,
    sums: tl.tensor, weights: tl.tensor, sequences: tl.tensor, tiles: tl.tensor, stride: tl.tensor,
    num_splits: tl.tensor, num_tokens: tl.tensor, scale: tl.tensor, slopes: tl.tensor,
    GROUPS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, FACTORS: tl.constexpr,
) -> None:  # fmt: skip
    sequence, first, end, position, output_row, is_row = _tile(
        sequences, tiles, stride, GROUPS, KV_HEADS, BLOCK_G, BLOCK_M
    )
    feature = tl.arange(0, BLOCK_D)
    is_feature = feature < HEAD_DIM
    is_output = is_row[:, None] & is_feature[None, :]
    query = tl.load(
        q + output_row[:, None] * HEAD_DIM + feature[None, :], mask=is_output, other=0.0
    )
    query = query.to(FACTORS)
    slope = None
    if slopes is not None:
        slope = tl.load(slopes + output_row % (KV_HEADS * GROUPS), mask=is_row, other=0.0)
    low = tl.maximum(first - WINDOW + 1, 0) // BLOCK_N * BLOCK_N if WINDOW else 0
    keys_per_split = tl.cdiv(tl.cdiv(end - low, BLOCK_N), num_splits) * BLOCK_N
    low += tl.program_id(2) * keys_per_split
    top = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for begin in range(low, tl.minimum(low + keys_per_split, end), BLOCK_N):
        index = begin + tl.arange(0, BLOCK_N)
        is_key = index < end
        page = tl.load(sequence + 3 + index // PAGE, mask=is_key, other=0)
        key_row = ((page * PAGE + index % PAGE) * KV_HEADS + tl.program_id(1)) * HEAD_DIM
        is_loaded = is_key[:, None] & is_feature[None, :]
        offsets = key_row[:, None] + feature[None, :]
        key = tl.load(keys + offsets, mask=is_loaded, other=0.0).to(FACTORS)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        distance = position[:, None] - index[None, :]
        score = _mask_scores(score, distance, is_key, slope, WINDOW, SOFTCAP)
        higher = tl.maximum(top, tl.max(score, 1))
        weight = _rescale_factor(score, higher[:, None])
        shrunk = _rescale_factor(top, higher)
        value = tl.load(values + offsets, mask=is_loaded, other=0.0).to(FACTORS)
        acc *= shrunk[:, None]
        acc += tl.dot(weight.to(FACTORS), value, input_precision="ieee")
        total = total * shrunk + tl.sum(weight, 1)
        top = higher
    if sums is None:
        acc /= tl.where(is_row, total, 1.0)[:, None]
        acc = acc.to(out.dtype.element_ty)
        tl.store(out + output_row[:, None] * HEAD_DIM + feature[None, :], acc, mask=is_output)
    else:
        count = num_tokens * (KV_HEADS * GROUPS)
        part = tl.program_id(2).to(tl.int64) * count + output_row
        tl.store(sums + part[:, None] * HEAD_DIM + feature[None, :], acc, mask=is_output)
        weights += tl.program_id(2) * count
        tl.store(weights + part, total, mask=is_row)
        tl.store(weights + part + count, top, mask=is_row)


@triton.jit(do_not_specialize=["stride", "num_splits", "num_tokens"])  # type: ignore[untyped-decorator]
def _merge(  # noqa: PLR0917
    out: tl.tensor, sums: tl.tensor, weights: tl.tensor,
    sequences: tl.tensor, tiles: tl.tensor, stride: tl.tensor,
    num_splits: tl.tensor, num_tokens: tl.tensor,
    GROUPS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_M: tl.constexpr,
) -> None:  # fmt: skip
    _, _, _, _, output_row, is_row = _tile(
        sequences, tiles, stride, GROUPS, KV_HEADS, BLOCK_G, BLOCK_M
    )
    feature = tl.arange(0, BLOCK_D)
    is_output = is_row[:, None] & (feature < HEAD_DIM)[None, :]
    count = num_tokens * (KV_HEADS * GROUPS)
    top = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for split in range(num_splits):
        part = tl.cast(split, tl.int64) * count + output_row
        weight = tl.load(weights + part + split * count, mask=is_row, other=0.0)
        highest = tl.load(weights + part + split * count + count, mask=is_row, other=0.0)
        partial = tl.load(
            sums + part[:, None] * HEAD_DIM + feature[None, :], mask=is_output, other=0.0
        )
        higher = tl.maximum(top, highest)
        shrunk = _rescale_factor(top, higher)
        factor = _rescale_factor(highest, higher)
        total = total * shrunk + weight * factor
        acc = acc * shrunk[:, None] + partial * factor[:, None]
        top = higher
    acc = (acc / tl.where(is_row, total, 1.0)[:, None]).to(out.dtype.element_ty)
    tl.store(out + output_row[:, None] * HEAD_DIM + feature[None, :], acc, mask=is_output)
