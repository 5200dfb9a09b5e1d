"""A small call of each primitive, which its contract accepts: what a device is checked with.

Arrays are drawn from a fixed seed.  There are two packed sequences or more, heads in groups, tables
with padding and a token that is not written.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mindspore_serving.llm.runtimes.mindspore.primitives.goldens import Array

HEADS = {"head_num": 4, "kv_head_num": 2, "scale": 0.25}
DIM, BLOCK, BLOCKS = 16, 16, 6
LENGTHS, COUNTS = (20, 5, 17), (3, 1, 2)  # with the new tokens, new tokens
TABLES = ((4, 1), (3, 0), (5, 2))
INT32 = np.int32
LATENT_HEADS, LATENT, LATENT_ROPE = 16, 512, 64


@dataclass(frozen=True, slots=True)
class PrimitiveExample:
    """Options and arguments, by name, of a call of primitive `name`."""

    name: str
    arguments: Mapping[str, Array | None]
    options: Mapping[str, Any] = field(default_factory=dict)


class Drawing:
    """Arrays of `dtype`, a numpy dtype, from a fixed seed."""

    def __init__(self, dtype: Any) -> None:
        self._random = np.random.default_rng(11)
        self.dtype = np.dtype(dtype)

    @property
    def name(self) -> str:
        return str(self.dtype)

    def floats(self, *shape: int) -> Array:
        return self._random.standard_normal(shape, np.float32).astype(self.dtype)

    def singles(self, *shape: int) -> Array:
        """Return positive float32 numbers."""
        return self._random.uniform(0.01, 0.1, shape).astype(np.float32)

    def bytes(self, *shape: int) -> Array:
        return self._random.integers(-127, 128, shape).astype(np.int8)


def examples(dtype: Any) -> list[PrimitiveExample]:
    """Return an example or more of each primitive, with floating arrays of `dtype`."""
    parts: tuple[Callable[[Drawing], list[PrimitiveExample]], ...]
    parts = (_norms, _rotations, _writes, _attention, _products, _quantised, _routing, _latent)
    draw = Drawing(dtype)
    return [example for part in parts for example in part(draw)]


def _integers(*values: Any) -> list[Array]:
    return [np.array(value, INT32) for value in values]


def _norms(draw: Drawing) -> list[PrimitiveExample]:
    x, residual, gamma = draw.floats(3, 64), draw.floats(3, 64), draw.floats(64)
    return [
        PrimitiveExample("rms_norm", {"x": x, "gamma": gamma}, {"eps": 0.01}),
        PrimitiveExample(
            "add_rms_norm", {"x": x, "residual": residual, "gamma": gamma}, {"eps": 0.01}
        ),
        PrimitiveExample("swiglu", {"x": x}),
    ]


def _rotations(draw: Drawing) -> list[PrimitiveExample]:
    (lengths,) = _integers(LENGTHS)
    arrays = {
        "q": draw.floats(6, 4 * DIM), "k": draw.floats(6, 2 * DIM), "cos": draw.floats(6, DIM),
        "sin": draw.floats(6, DIM), "lengths": lengths,
    }  # fmt: skip
    return [PrimitiveExample("rope", arrays, {"cos_format": cos_format}) for cos_format in (2, 3)]


def _slots() -> Array:
    return np.array([
        table[position // BLOCK] * BLOCK + position % BLOCK
        for table, length, count in zip(TABLES, LENGTHS, COUNTS, strict=True)
        for position in range(length - count, length)
    ], INT32)  # fmt: skip


def _writes(draw: Drawing) -> list[PrimitiveExample]:
    slots = _slots()
    slots[2] = -1
    arrays = {
        "key": draw.floats(6, 2 * DIM), "value": draw.floats(6, 2 * DIM),
        "key_cache": draw.floats(BLOCKS, BLOCK, 2, DIM),
        "value_cache": draw.floats(BLOCKS, BLOCK, 2, DIM), "slot_mapping": slots,
    }  # fmt: skip
    return [PrimitiveExample("reshape_and_cache", arrays)]


def packed_mask(dtype: Any) -> Array:
    """Return the mask of `flash_attention`, whose sign and size depend on the dtype."""
    hidden = 1.0 if str(np.dtype(dtype)) == "bfloat16" else -10000.0
    return np.triu(np.full((128, 128), hidden, np.float32), 1).astype(dtype)


def paged_mask(dtype: Any, lengths: Array, counts: Array) -> Array:
    """Return the mask of `paged_attention`, [T, the longest length]."""
    ends = np.concatenate([
        np.arange(length - count, length)
        for length, count in zip(lengths.tolist(), counts.tolist(), strict=True)
    ])  # fmt: skip
    is_hidden = np.arange(int(lengths.max())) > ends[:, None]
    return np.where(is_hidden, np.float32(-10000), np.float32(0)).astype(dtype)


def _attention(draw: Drawing) -> list[PrimitiveExample]:
    lengths, counts, tables = _integers(LENGTHS, COUNTS, TABLES)
    q = draw.floats(6, 4 * DIM)
    packed = {
        "q": q, "k": draw.floats(6, 2 * DIM), "v": draw.floats(6, 2 * DIM),
        "mask": packed_mask(draw.dtype), "lengths": counts,
    }  # fmt: skip
    paged = {
        "q": q, "key_cache": draw.floats(BLOCKS, BLOCK, 2, DIM),
        "value_cache": draw.floats(BLOCKS, BLOCK, 2, DIM), "block_tables": tables,
        "lengths": lengths, "mask": paged_mask(draw.dtype, lengths, counts), "q_seq_lens": counts,
    }  # fmt: skip
    single = np.ones_like(counts)
    decode = paged | {
        "q": q[:3], "q_seq_lens": single, "mask": np.zeros((1, 1), draw.dtype),
    }  # fmt: skip
    return [
        PrimitiveExample("flash_attention", packed, HEADS),
        PrimitiveExample("paged_attention", paged, HEADS),
        PrimitiveExample("paged_attention", decode, HEADS),
    ]


def _products(draw: Drawing) -> list[PrimitiveExample]:
    x = draw.floats(3, 64)
    return [
        PrimitiveExample("matmul", {"x": x, "weight": draw.floats(48, 64)}),
        PrimitiveExample("top_k", {"x": x}, {"k": 5}),
        PrimitiveExample("argmax", {"x": x}),
    ]


def _quantised(draw: Drawing) -> list[PrimitiveExample]:
    x, int8_x = draw.floats(3, 64), draw.bytes(3, 64)

    def fine(*shape: int) -> Array:
        return draw.singles(*shape).astype(draw.dtype)

    def weights(bits: int, columns: int, *groups: int) -> dict[str, Array | None]:
        offset = draw.floats(*groups, 32)
        return {
            "x": x, "weight": draw.bytes(64, columns), "scale": fine(*groups, 32), "offset": offset
        }  # fmt: skip

    product = {
        "x": int8_x, "weight": draw.bytes(32, 64), "scale": draw.singles(32),
        "bias": np.arange(32, dtype=INT32), "pertoken": draw.singles(3),
    }  # fmt: skip
    # On a device a scale of a float16 output is the bits of a float32.
    bits = product["scale"].view(INT32).astype(np.int64)
    static = product | {"scale": bits, "pertoken": None}
    exact = {"dtype": draw.name}
    scale, offset = np.array([0.05], draw.dtype), np.array([3], np.int8)
    reciprocal = {"x": x, "scale": np.array([20], draw.dtype), "offset": offset.astype(draw.dtype)}
    rows = [
        PrimitiveExample("weight_quant_matmul", weights(8, 32), {"bits": 8, "group_size": 0}),
        PrimitiveExample("weight_quant_matmul", weights(8, 32, 2), {"bits": 8, "group_size": 32}),
        PrimitiveExample("weight_quant_matmul", weights(4, 16, 2), {"bits": 4, "group_size": 32}),
        PrimitiveExample("dynamic_quant", {"x": x, "smooth": fine(64)}),
        PrimitiveExample("quant_matmul", product, exact),
        PrimitiveExample("quantise", {"x": x, "scale": scale, "offset": offset}),
        PrimitiveExample("quantise", reciprocal),
    ]
    is_wide = draw.name == "bfloat16"
    return rows if is_wide else [*rows, PrimitiveExample("quant_matmul", static, exact)]


def _routing(draw: Drawing) -> list[PrimitiveExample]:
    x, chosen = draw.floats(3, 64), np.array([[2, 0], [5, 2], [2, 3]], INT32)
    counts = np.array([1, 0, 3, 1, 0, 1], np.int64)
    scores = {"x": draw.floats(3, 16).astype(np.float32), "bias": draw.singles(16)}
    unpermute = {
        "rows": draw.floats(6, 64), "indices": np.array([3, 0, 1, 5, 2, 4], INT32),
        "probs": draw.floats(3, 2),
    }  # fmt: skip
    grouped = {"x": draw.floats(6, 64), "weight": draw.floats(6, 64, 32), "counts": counts}
    groups = {"group_num": 4, "group_topk": 2, "n": 2, "k": 3}
    return [
        PrimitiveExample("moe_gating_topk_softmax", {"x": draw.floats(3, 8)}, {"k": 3}),
        PrimitiveExample("moe_init_routing", {"x": x, "expert_idx": chosen}, {"num_experts": 6}),
        PrimitiveExample("grouped_matmul", grouped),
        PrimitiveExample("moe_unpermute", unpermute),
        PrimitiveExample("fused_add_topk_div", scores, groups),
    ]


def _latent(draw: Drawing) -> list[PrimitiveExample]:
    lengths, tables = _integers(LENGTHS, TABLES)
    heads = LATENT_HEADS
    arrays = {
        "q": draw.floats(3, heads, LATENT), "q_rope": draw.floats(3, heads, LATENT_ROPE),
        "kv_cache": draw.floats(BLOCKS, BLOCK, 1, LATENT),
        "rope_cache": draw.floats(BLOCKS, BLOCK, 1, LATENT_ROPE), "block_tables": tables,
        "lengths": lengths, "mask": None, "q_seq_lens": np.ones_like(lengths),
    }  # fmt: skip
    return [PrimitiveExample("mla", arrays, {"head_num": heads, "scale": 0.04})]
