"""Numpy's quantised products, routing to experts and latent attention: see `goldens`."""

from typing import Any

import numpy as np

from mindspore_serving.llm.runtimes.mindspore.primitives.goldens import Array, attend


def weight_quant_matmul(
    x: Array, weight: Array, scale: Array, offset: Array | None, *, bits: int = 8,
    group_size: int = 0,
) -> Array:  # fmt: skip
    """Multiply x by (weight + offset) * scale; 4 bits are two to a byte, the low half first."""
    wide = weight.astype(np.int32)
    if bits == 4:
        wide = np.stack([(wide << 28) >> 28, wide >> 4], -1).reshape(len(wide), -1)
    repeats = group_size or len(wide)
    scales = np.repeat(scale.astype(np.float32).reshape(-1, wide.shape[1]), repeats, 0)
    offsets: Array = 0
    if offset is not None:
        offsets = np.repeat(offset.astype(np.float32).reshape(-1, wide.shape[1]), repeats, 0)
    return (x.astype(np.float32) @ ((wide + offsets) * scales)).astype(x.dtype)


def dynamic_quant(x: Array, smooth: Array | None = None) -> tuple[Array, Array]:
    """Return int8 rows and the scale of each."""
    wide = x.astype(np.float32) * (1 if smooth is None else smooth.astype(np.float32))
    scale = np.maximum(np.abs(wide).max(-1) / np.float32(127), np.float32(1e-12))
    return np.round(wide / scale[:, None]).astype(np.int8), scale


def quant_matmul(
    x: Array, weight: Array, scale: Array, bias: Array | None, pertoken: Array | None, *,
    dtype: str = "float16",
) -> Array:  # fmt: skip
    """Return (x weight.T + bias) * scale * pertoken, summed as integers."""
    out: Array = x.astype(np.int32) @ weight.astype(np.int32).T
    if bias is not None:
        out = out + bias
    if scale.dtype == np.int64:
        scale = scale.astype(np.int32).view(np.float32)
    out = out * scale.astype(np.float32)
    if pertoken is not None:
        out = out * pertoken[:, None]
    return out.astype(np.float32 if dtype == "bfloat16" else dtype)


def quantise(x: Array, scale: Array, offset: Array) -> Array:
    """Return int8: the dtype of the offset chooses the formula."""
    wide, factor = x.astype(np.float32), scale.astype(np.float32)
    if offset.dtype == np.int8:
        rounded = np.round(wide / factor) + offset
    else:
        rounded = np.round(wide * factor + offset.astype(np.float32))
    return np.clip(rounded, -128, 127).astype(np.int8)


def moe_gating_topk_softmax(x: Array, *, k: int) -> tuple[Array, Array, Array]:
    """Return shares, experts and rows."""
    wide = np.exp(x.astype(np.float32) - x.max(-1, keepdims=True))
    shares = wide / wide.sum(-1, keepdims=True)
    experts = np.argsort(-shares, -1, kind="stable")[:, :k].astype(np.int32)
    rows = np.arange(len(x) * k, dtype=np.int32).reshape(k, -1).T
    return np.take_along_axis(shares, experts, 1).astype(x.dtype), experts, rows


def moe_init_routing(
    x: Array, expert_idx: Array, *, num_experts: int
) -> tuple[Array, Array, Array]:
    """Return rows in the order of their experts, the row of each choice, and counts."""
    order = np.argsort(expert_idx.ravel(), kind="stable")
    targets = np.empty(order.shape, np.int32)
    targets[order] = np.arange(len(order))
    counts = np.bincount(expert_idx.ravel(), minlength=num_experts).astype(np.int32)
    return x[order // expert_idx.shape[1]], targets, counts


def grouped_matmul(x: Array, weight: Array, counts: Array) -> Array:
    """Multiply the rows of each expert by its matrix."""
    experts = np.repeat(np.arange(len(counts)), counts)
    wide = np.einsum("rk,rkn->rn", x.astype(np.float32), weight.astype(np.float32)[experts])
    return wide.astype(x.dtype)


def moe_unpermute(rows: Array, indices: Array, probs: Array) -> Array:
    """Return the sum of each token's rows by its shares."""
    chosen = rows[indices].reshape(*probs.shape, -1).astype(np.float32)
    return np.einsum("tk,tkn->tn", probs.astype(np.float32), chosen).astype(rows.dtype)


def fused_add_topk_div(
    x: Array, bias: Array, *, group_num: int, group_topk: int, n: int, k: int,
    is_norm: bool = True, scale: float = 2.5,
) -> tuple[Array, Array]:  # fmt: skip
    """Route as DeepSeek V3 does: see `ComposedAddTopKDiv`."""
    scores = 1 / (1 + np.exp(-x.astype(np.float32)))
    grouped = (scores + bias).reshape(len(x), group_num, -1)
    best = np.sort(grouped, -1)[:, :, -n:].sum(-1)
    chosen = np.argsort(-best, -1, kind="stable")[:, :group_topk]
    remains = np.full(grouped.shape, -np.inf, np.float32)
    for token, groups in enumerate(chosen):
        remains[token, groups] = grouped[token, groups]
    experts = np.argsort(-remains.reshape(x.shape), -1, kind="stable")[:, :k].astype(np.int32)
    shares = np.take_along_axis(scores, experts, 1)
    if is_norm:
        shares = shares / shares.sum(-1, keepdims=True)
    return shares * np.float32(scale), experts


def mla(
    q: Array, q_rope: Array, kv_cache: Array, rope_cache: Array, block_tables: Array,
    lengths: Array, mask: Array | None, q_seq_lens: Array, *, head_num: int, scale: float,
    **options: Any,
) -> Array:  # fmt: skip
    """Attend to latent keys, which are the values too; causal by position."""
    out, begin = np.zeros(q.shape, q.dtype), 0
    rows = zip(block_tables, lengths.tolist(), q_seq_lens.tolist(), strict=True)
    for blocks, length, count in rows:
        used = blocks[: -(-length // kv_cache.shape[1])]
        latent = kv_cache[used].reshape(-1, 1, kv_cache.shape[3])[:length]
        rotated = rope_cache[used].reshape(-1, 1, rope_cache.shape[3])[:length]
        span = slice(begin, begin + count)
        queries = np.concatenate([q[span], q_rope[span]], -1)
        bias = np.triu(np.full((count, length), -np.inf, np.float32), 1 + length - count)
        keys = np.concatenate([latent, rotated], -1)
        out[span] = attend(queries, keys, latent, bias, scale).reshape(count, head_num, -1)
        begin += count
    return out
