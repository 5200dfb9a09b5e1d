"""The primitives in numpy: the reference for compositions and for a device.

Each function has the options and the arguments of its primitive.  Sums are in float32, and results
have the dtype of the input.
"""

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any  # a numpy array of any dtype


def rms_norm(x: Array, gamma: Array, *, eps: float = 1e-6) -> tuple[Array, Array]:
    """Divide rows by the root of their mean square; return that divisor's inverse too."""
    wide = x.astype(np.float32)
    rstd = 1 / np.sqrt(np.mean(wide * wide, -1, keepdims=True) + np.float32(eps))
    return (wide * rstd * gamma.astype(np.float32)).astype(x.dtype), rstd


def add_rms_norm(
    x: Array, residual: Array, gamma: Array, *, eps: float = 1e-6
) -> tuple[Array, Array, Array]:
    """Normalise x + residual; return that sum too."""
    total = x + residual
    return (*rms_norm(total, gamma, eps=eps), total)


def rope(
    q: Array, k: Array, cos: Array, sin: Array, lengths: Array, *, cos_format: int = 2
) -> tuple[Array, Array]:
    """Rotate q and k, [T, heads * D], by tables [T, D]; `lengths` are not read."""
    return _rotated(q, cos, sin, cos_format), _rotated(k, cos, sin, cos_format)


def _rotated(x: Array, cos: Array, sin: Array, cos_format: int) -> Array:
    heads = x.astype(np.float32).reshape(len(x), -1, cos.shape[1])
    turned = np.empty_like(heads)
    if cos_format == 3:
        turned[..., ::2], turned[..., 1::2] = -heads[..., 1::2], heads[..., ::2]
    else:
        half = cos.shape[1] // 2
        turned[..., :half], turned[..., half:] = -heads[..., half:], heads[..., :half]
    out = heads * cos.astype(np.float32)[:, None] + turned * sin.astype(np.float32)[:, None]
    return out.reshape(x.shape).astype(x.dtype)


def reshape_and_cache(
    key: Array,
    value: Array | None,
    key_cache: Array,
    value_cache: Array | None,
    slot_mapping: Array,
) -> Array:
    """Write tokens to the slots of caches, in place; tokens with slot -1 are skipped."""
    for new, cache in ((key, key_cache), (value, value_cache)):
        if new is not None and cache is not None:
            for row, slot in zip(new, slot_mapping.tolist(), strict=True):
                if slot >= 0:
                    index = divmod(slot, cache.shape[1])
                    cache[index] = row.reshape(cache.shape[2:])
    return key


def attention_mask(
    attn_mask: Array,
    slot_mapping: Array,
    batch_valid_length: Array,
    q_seq_lens: Array,
    block_tables: Array,
    **options: Any,
) -> Array:
    """Return `attn_mask`, as the device's kernels take it."""
    return attn_mask


def flash_attention(
    q: Array, k: Array, v: Array, mask: Array, lengths: Array, *,
    head_num: int, kv_head_num: int, scale: float,
) -> Array:  # fmt: skip
    """Attend causally within each of the packed sequences, whose `lengths` are not cumulative."""
    out = np.zeros((len(q), head_num * (v.shape[1] // kv_head_num)), q.dtype)
    begin = 0
    for length in lengths.tolist():
        span = slice(begin, begin + length)
        bias = np.triu(np.full((length, length), -np.inf, np.float32), 1)
        keys = k[span].reshape(length, kv_head_num, -1)
        values = v[span].reshape(length, kv_head_num, -1)
        out[span] = attend(q[span].reshape(length, head_num, -1), keys, values, bias, scale)
        begin += length
    return out


def paged_attention(
    q: Array, key_cache: Array, value_cache: Array, block_tables: Array, lengths: Array,
    mask: Array | None, q_seq_lens: Array | None, *, head_num: int, kv_head_num: int, scale: float,
) -> Array:  # fmt: skip
    """Attend to the blocks of each sequence; `lengths` count the new tokens too.

    `mask`, [T, the longest length], is added to scores where a sequence has several new tokens.
    """
    width = head_num * value_cache.shape[3]
    out = np.zeros((len(q), width), q.dtype)
    counts = np.ones(len(lengths), int) if q_seq_lens is None else q_seq_lens
    is_masked = mask is not None and bool((counts > 1).any())
    begin = 0
    for blocks, length, count in zip(block_tables, lengths.tolist(), counts.tolist(), strict=True):
        span = slice(begin, begin + count)
        used = blocks[: -(-length // key_cache.shape[1])]
        keys = key_cache[used].reshape(-1, *key_cache.shape[2:])[:length]
        values = value_cache[used].reshape(-1, *value_cache.shape[2:])[:length]
        bias = np.zeros((count, length), np.float32)
        if mask is not None and is_masked:
            bias = mask[span, :length].astype(np.float32)
        out[span] = attend(q[span].reshape(count, head_num, -1), keys, values, bias, scale)
        begin += count
    return out


def attend(q: Array, k: Array, v: Array, bias: Array, scale: float) -> Array:
    """Return softmax(q k * scale + bias) v, [T, heads * D].

    q is [T, heads, D], k and v [L, kv_heads, D], bias [T, L] is shared by the heads.
    """
    group = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(x.astype(np.float32), group, 1) for x in (k, v))
    scores = np.einsum("thd,lhd->htl", q.astype(np.float32), keys) * scale + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("htl,lhd->thd", weights, values).reshape(len(q), -1).astype(q.dtype)


def swiglu(x: Array) -> Array:
    """Multiply SiLU of the first half of the features by the second."""
    gate, up = np.split(x.astype(np.float32), 2, -1)
    return (gate / (1 + np.exp(-gate)) * up).astype(x.dtype)


def matmul(x: Array, weight: Array) -> Array:
    """Multiply x, [T, K], by weight, [N, K]."""
    return (x.astype(np.float32) @ weight.astype(np.float32).T).astype(x.dtype)


def top_k(x: Array, *, k: int) -> tuple[Array, Array]:
    """Return the `k` largest of each row, in descending order, and their indices."""
    indices = np.argsort(-x.astype(np.float32), -1, kind="stable")[:, :k]
    return np.take_along_axis(x, indices, -1), indices.astype(np.int32)


def argmax(x: Array) -> Array:
    """Return the index of the largest of each row."""
    return np.argmax(x, -1).astype(np.int32)


def all_reduce(*parts: Array, group: str = "") -> Array:
    """Sum the parts of all ranks, in their order."""
    total = np.zeros_like(parts[0])
    for part in parts:
        total = total + part
    return total


def all_gather(*parts: Array, group: str = "") -> Array:
    """Join the rows of all ranks, in their order."""
    return np.concatenate(parts)
