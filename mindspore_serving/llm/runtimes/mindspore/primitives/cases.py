"""Calls of each primitive for the self-test: small, of the shapes and dtypes of a server's steps.

Knows no MindSpore.  `attention_mask` has no call: the calls of attention contain it.  Nor have
`all_reduce` and `all_gather`, which need other processes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.runtimes.mindspore.primitives.contracts import ArgumentSpec, problems
from mindspore_serving.llm.runtimes.mindspore.primitives.rules import RULES

Array = npt.NDArray[Any]
HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 32, 128
LENGTHS, COUNTS = (200, 5, 129), (3, 1, 2)  # keys and new tokens of each sequence
TABLES = ((4, 1), (3, 0), (2, 5))
NUM_BLOCKS = 7  # the last is unused: the composed write of half floats takes it for slot -1
SHAPE = {"head_num": HEADS, "kv_head_num": KV_HEADS, "scale": DIM**-0.5}
MASKED = -10000.0
TOLERANCES = {"bfloat16": 2e-2, "float16": 4e-3, "float32": 1e-4}


@dataclass(frozen=True, slots=True)
class PrimitiveCase:
    """A call of the primitive `name`.

    `arguments` are those of the primitive.  Their float32 arrays are rounded to the dtype of the
    model, but for those in `wide`.  `step` are the inputs of the graph that attention's mask is
    made of.  With `written`, these arguments are compared after the call, instead of the outputs.
    Integers may differ by `rounding`.
    """

    name: str
    options: Mapping[str, Any]
    arguments: Mapping[str, Array | None]
    wide: tuple[str, ...] = ()
    step: Mapping[str, Array] = field(default_factory=dict)
    written: tuple[str, ...] = ()
    rounding: int = 0


def cases(dtype: str) -> tuple[PrimitiveCase, ...]:
    """Return the calls for a model of `dtype`: "bfloat16", "float16" or "float32"."""
    draw = np.random.default_rng(11)
    return (*_plain(draw), *_attention(draw, dtype), *_quantised(draw, dtype), *_experts(draw))


def refusals(case: PrimitiveCase, dtype: str, soc: str = "") -> list[str]:
    """Return what the contract of the device's primitive says against a case on `soc`."""
    contract = RULES[case.name]
    step = {"lengths": case.step.get("batch_valid_length"), "mask": case.step.get("attn_mask")}
    arrays = {**{name: value for name, value in {**case.step, **step}.items()
                if name in contract.arguments}, **case.arguments}  # fmt: skip
    arguments: dict[str, Any] = {}
    for name, value in arrays.items():
        arguments[name] = value
        if value is not None and name == "weight" and case.options.get("bits") == 4:
            arguments[name] = ArgumentSpec(value.shape, "qint4x2")
        elif value is not None and value.dtype == np.float32 and name not in case.wide:
            arguments[name] = ArgumentSpec(value.shape, dtype)
    return problems(case.name, contract, arguments, options=case.options, soc=soc)


def rounded(value: Array | None, dtype: str) -> Array | None:
    """Return a copy of float32 numbers as `dtype` has them, as float32; others as they are."""
    if value is None or value.dtype != np.float32:
        return value
    return rounded_numbers(value, dtype)


def rounded_numbers(value: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[np.float32]:
    """Return a copy of float32 numbers as `dtype` has them, as float32."""
    if dtype == "bfloat16":  # to the nearest, ties to even
        bits: Array = value.view(np.uint32).astype(np.uint64)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return bits.astype(np.uint32).view(np.float32)
    return value.astype(dtype).astype(np.float32)


def _normal(draw: np.random.Generator, *shape: int) -> Array:
    return draw.standard_normal(shape).astype(np.float32)


def _distinct(draw: np.random.Generator, rows: int, columns: int) -> Array:
    """Return rows of different numbers, which half floats hold exactly."""
    numbers = np.arange(columns, dtype=np.float32) / 32
    return np.stack([draw.permutation(numbers) for _ in range(rows)])


def _integers(draw: np.random.Generator, *shape: int) -> Array:
    return draw.integers(-127, 128, shape).astype(np.int8)


def _plain(draw: np.random.Generator) -> Iterator[PrimitiveCase]:
    x, residual, gamma = _normal(draw, 6, 128), _normal(draw, 6, 128), _normal(draw, 128)
    yield PrimitiveCase("rms_norm", {"eps": 1e-5}, {"x": x, "gamma": gamma})
    arguments = {"x": x, "residual": residual, "gamma": gamma}
    yield PrimitiveCase("add_rms_norm", {"eps": 1e-5}, arguments)
    angles = draw.uniform(0, 6, (6, DIM // 2)).astype(np.float32)
    q, k = _normal(draw, 6, HEADS * DIM), _normal(draw, 6, KV_HEADS * DIM)
    lengths = np.array(COUNTS, np.int32)
    for cos_format in (2, 3):
        table = np.tile(angles, 2) if cos_format == 2 else np.repeat(angles, 2, -1)
        arguments = {"q": q, "k": k, "cos": np.cos(table), "sin": np.sin(table)}
        yield PrimitiveCase(
            "rope", {"cos_format": cos_format}, arguments, step={"batch_valid_length": lengths}
        )
    yield PrimitiveCase("swiglu", {}, {"x": _normal(draw, 6, 256)})
    yield PrimitiveCase("matmul", {}, {"x": x, "weight": _normal(draw, 64, 128)})
    yield PrimitiveCase("top_k", {"k": 8}, {"x": _distinct(draw, 6, 128)})
    yield PrimitiveCase("argmax", {}, {"x": _distinct(draw, 6, 128)})


def _step(
    lengths: tuple[int, ...], counts: tuple[int, ...], mask: Array, *, last_slot: int | None = None
) -> dict[str, Array]:
    """Return the inputs of a graph; `last_slot` replaces the slot of the last token."""
    slots = [
        table[position // BLOCK] * BLOCK + position % BLOCK
        for table, length, count in zip(TABLES, lengths, counts, strict=True)
        for position in range(length - count, length)
    ]
    if last_slot is not None:
        slots[-1] = last_slot
    arrays = {
        "slot_mapping": slots, "batch_valid_length": lengths, "q_seq_lens": counts,
        "block_tables": TABLES,
    }  # fmt: skip
    inputs = {name: np.array(value, np.int32) for name, value in arrays.items()}
    return {**inputs, "attn_mask": mask}


def _row_mask() -> Array:
    """Return the mask of several new tokens, [T, the longest sequence]."""
    rows = [
        np.where(np.arange(max(LENGTHS)) > position, MASKED, 0)
        for length, count in zip(LENGTHS, COUNTS, strict=True)
        for position in range(length - count, length)
    ]
    return np.array(rows, np.float32)


def _attention(draw: np.random.Generator, dtype: str) -> Iterator[PrimitiveCase]:
    total = sum(COUNTS)
    caches = {
        "key_cache": _normal(draw, NUM_BLOCKS, BLOCK, KV_HEADS, DIM),
        "value_cache": _normal(draw, NUM_BLOCKS, BLOCK, KV_HEADS, DIM),
    }
    new = {"key": _normal(draw, total, KV_HEADS * DIM), "value": _normal(draw, total, 64)}
    step = _step(LENGTHS, COUNTS, np.zeros((1, 1), np.float32), last_slot=-1)
    arguments = {**new, **caches, "slot_mapping": step["slot_mapping"]}
    yield PrimitiveCase("reshape_and_cache", {}, arguments, written=tuple(caches))
    hidden = 1.0 if dtype == "bfloat16" else MASKED
    triangle = np.triu(np.full((128, 128), hidden, np.float32), 1)
    q = _normal(draw, total, HEADS * DIM)
    packed = {"q": q, "k": new["key"], "v": new["value"]}
    yield PrimitiveCase("flash_attention", SHAPE, packed, step=_step(COUNTS, COUNTS, triangle))
    yield PrimitiveCase(
        "paged_attention", SHAPE, {"q": q, **caches}, step=_step(LENGTHS, COUNTS, _row_mask())
    )
    decoding = _step(LENGTHS, (1, 1, 1), np.zeros((1, 1), np.float32))
    yield PrimitiveCase("paged_attention", SHAPE, {"q": q[:3], **caches}, step=decoding)
    latent = {
        "q": _normal(draw, 3, 16, 512), "q_rope": _normal(draw, 3, 16, 64),
        "kv_cache": _normal(draw, NUM_BLOCKS, BLOCK, 1, 512),
        "rope_cache": _normal(draw, NUM_BLOCKS, BLOCK, 1, 64),
    }  # fmt: skip
    yield PrimitiveCase("mla", {"head_num": 16, "scale": 576**-0.5}, latent, step=decoding)


def _quantised(draw: np.random.Generator, dtype: str) -> Iterator[PrimitiveCase]:
    x = _normal(draw, 6, 128)
    arguments: dict[str, Array | None]
    for bits, group_size in ((8, 0), (4, 32)):
        rows = () if group_size == 0 else (128 // group_size,)
        arguments = {
            "x": x, "weight": _integers(draw, 128, 64 if bits == 8 else 32),
            "scale": draw.uniform(0.01, 0.02, (*rows, 64)).astype(np.float32),
            "offset": np.round(_normal(draw, *rows, 64)),
        }  # fmt: skip
        options = {"bits": bits, "group_size": group_size}
        yield PrimitiveCase("weight_quant_matmul", options, arguments)
    yield PrimitiveCase("dynamic_quant", {}, {"x": x, "smooth": None}, rounding=1)
    arguments = {
        "x": _integers(draw, 6, 128), "weight": _integers(draw, 64, 128),
        "scale": draw.uniform(1e-4, 1e-3, 64).astype(np.float32), "bias": None,
        "pertoken": draw.uniform(0.01, 0.02, 6).astype(np.float32),
    }  # fmt: skip
    yield PrimitiveCase("quant_matmul", {"dtype": dtype}, arguments, ("scale", "pertoken"))
    for offset in (np.array([3], np.int8), np.array([3], np.float32)):
        factor = 0.05 if offset.dtype == np.int8 else 20.0
        arguments = {"x": x, "scale": np.array([factor], np.float32), "offset": offset}
        yield PrimitiveCase("quantise", {}, arguments, rounding=1)


def _experts(draw: np.random.Generator) -> Iterator[PrimitiveCase]:
    yield PrimitiveCase("moe_gating_topk_softmax", {"k": 2}, {"x": _distinct(draw, 6, 8)})
    chosen = np.array([[2, 0], [5, 2], [2, 3], [7, 1], [0, 2], [3, 5]], np.int32)
    arguments = {"x": _normal(draw, 6, 64), "expert_idx": chosen}
    yield PrimitiveCase("moe_init_routing", {"num_experts": 8}, arguments)
    counts = np.bincount(chosen.ravel(), minlength=8).astype(np.int64)
    grouped = {"x": _normal(draw, 12, 64), "weight": _normal(draw, 8, 64, 32), "counts": counts}
    yield PrimitiveCase("grouped_matmul", {}, grouped)
    order = draw.permutation(12).astype(np.int32)
    arguments = {"rows": _normal(draw, 12, 64), "indices": order, "probs": _normal(draw, 6, 2)}
    yield PrimitiveCase("moe_unpermute", {}, arguments)
    options = {"group_num": 8, "group_topk": 4, "n": 2, "k": 8}
    arguments = {"x": _normal(draw, 6, 256), "bias": _normal(draw, 256) * np.float32(0.1)}
    yield PrimitiveCase("fused_add_topk_div", options, arguments, tuple(arguments))
