"""The contracts of attention, norms, matrices and sampling: one row for each primitive.

Symbols: T tokens of the step, B sequences, D head dimension, H and KV heads, NB blocks of BS
tokens, M blocks in a row of the tables, L the longest sequence, K and N inputs and outputs.
"""

from typing import Any

import numpy as np

from mindspore_serving.llm.runtimes.mindspore.primitives.contracts import (
    FLOATS,
    SOC_310P,
    Accepted,
    Contract,
    PrimitiveCall,
    Rule,
    at_most,
    multiple_of,
    one_of,
    values,
)
from mindspore_serving.llm.runtimes.mindspore.primitives.rules_experts import EXPERT_RULES

ANY_FLOAT = f"{FLOATS} float32"
IN_BFLOAT16 = -9984  # -10000
LENGTHS = Accepted("B", "int32")
HEAD_DIM = (multiple_of("D", 16), at_most("D", 256))
HEADS = Rule(
    "a multiple of kv_head_num",
    "head_num",
    lambda call: not (call.size("head_num") or 0) % (call.size("kv_head_num") or 1),
)
INPUT_NAMES = (
    "input_ids",
    "positions",
    "key_caches",
    "value_caches",
    "slot_mapping",
    "attn_mask",
    "batch_valid_length",
    "q_seq_lens",
    "block_tables",
)


def _sums_to_tokens(call: PrimitiveCall, counts: Any) -> bool:
    tokens = call.size("T")
    return tokens is None or int(counts.sum()) == tokens


def _masks_upper_triangle(call: PrimitiveCall, mask: Any) -> bool:
    hidden = 1.0 if call.specs["q"].dtype == "bfloat16" else -10000.0
    return bool(np.array_equal(np.triu(np.full(mask.shape, hidden), 1), mask.astype(np.float64)))


def _covers_lengths(call: PrimitiveCall) -> bool:
    """Return whether a mask of several new tokens is as wide as the longest sequence."""
    if "mask" not in call.specs or not {"lengths", "q_seq_lens"} <= set(call.values):
        return True
    width = call.specs["mask"].shape[1]
    has_several = int(call.values["q_seq_lens"].max()) > 1
    return not has_several or width is None or width >= int(call.values["lengths"].max())


def _masks_with_ten_thousand(call: PrimitiveCall, mask: Any) -> bool:
    return bool(np.isin(mask.astype(np.float32), (0, -10000, IN_BFLOAT16)).all())


def _names_blocks(call: PrimitiveCall, tables: Any) -> bool:
    blocks = call.size("NB")
    return int(tables.min(initial=0)) >= -1 and (blocks is None or int(tables.max()) < blocks)


def _names_slots(call: PrimitiveCall, slots: Any) -> bool:
    blocks, size = call.size("NB"), call.size("BS")
    limit = 2**31 if blocks is None or size is None else blocks * size
    written = slots[slots >= 0]
    is_twice = len(np.unique(written)) < len(written)
    return int(slots.min(initial=0)) >= -1 and int(slots.max(initial=0)) < limit and not is_twice


CACHE = Accepted("NB BS KV D", FLOATS)
TABLES = Accepted("B M", "int32")

RULES = {
    "rms_norm": Contract(
        {"x": Accepted("... K", ANY_FLOAT), "gamma": Accepted("K", "=x")},
        options=("eps",),
    ),
    "add_rms_norm": Contract(
        {
            "x": Accepted("T K", FLOATS),
            "residual": Accepted("T K", "=x"),
            "gamma": Accepted("K", "=x"),
        },
        options=("eps",),
    ),
    "rope": Contract(
        {
            "q": Accepted("T H*D", FLOATS),
            "k": Accepted("T KV*D", "=q"),
            "cos": Accepted("T D", "=q float32"),
            "sin": Accepted("T D", "=cos"),
            "lengths": LENGTHS,
        },
        options=("cos_format",),
        rules=(one_of("cos_format", 2, 3), multiple_of("D", 16)),
    ),
    "reshape_and_cache": Contract(
        {
            "key": Accepted("T KV*D", f"{FLOATS} int8 uint8"),
            "value": Accepted("T KV*DV", "=key", is_optional=True),
            "key_cache": Accepted("NB BS KV D", "=key"),
            "value_cache": Accepted("NB BS KV DV", "=key", is_optional=True),
            "slot_mapping": Accepted("T", "int32"),
        },
        rules=(
            multiple_of("BS", 16),
            Rule(
                "none, as value is, or both",
                "value_cache",
                lambda call: ("value" in call.specs) == ("value_cache" in call.specs),
            ),
            values("slot_mapping", "-1 or a slot of the cache, none of them twice", _names_slots),
            Rule(
                f"rows of a multiple of 32 bytes on {SOC_310P}",
                "key_cache",
                lambda call: (
                    call.soc != SOC_310P or not (call.specs["key_cache"].shape[2] or 0) * 2 % 32
                ),
            ),
        ),
        on_310p={
            "key": Accepted("T KV*D", "float16"),
            "key_cache": Accepted("NB BS KV*D", "float16"),
            "value_cache": Accepted("NB BS KV*DV", "float16", is_optional=True),
        },
    ),
    "flash_attention": Contract(
        {
            "q": Accepted("T head_num*D", FLOATS),
            "k": Accepted("T kv_head_num*D", "=q"),
            "v": Accepted("T kv_head_num*D", "=q"),
            "mask": Accepted("128 128", "=q"),
            "lengths": LENGTHS,
        },
        options=("head_num", "kv_head_num", "scale"),
        rules=(
            HEADS,
            *HEAD_DIM,
            values("lengths", "lengths, not cumulative, that sum to T", _sums_to_tokens),
            values(
                "mask",
                "0, and above the diagonal 1 with bfloat16, -10000 with float16",
                lambda call, mask: mask.shape != (128, 128) or _masks_upper_triangle(call, mask),
            ),
        ),
        on_310p={"mask": Accepted("L L", "=q")},
    ),
    "paged_attention": Contract(
        {
            "q": Accepted("T head_num*D", FLOATS),
            "key_cache": Accepted("NB BS kv_head_num D", "=q"),
            "value_cache": Accepted("NB BS kv_head_num D", "=q"),
            "block_tables": TABLES,
            "lengths": LENGTHS,
            "mask": Accepted("1 1|T L", "=q", is_optional=True),
            "q_seq_lens": Accepted("B", "int32", is_optional=True),
        },
        options=("head_num", "kv_head_num", "scale"),
        rules=(
            HEADS,
            *HEAD_DIM,
            multiple_of("BS", 16),
            values("q_seq_lens", "new tokens that sum to T", _sums_to_tokens),
            values("block_tables", "blocks of the cache, or -1", _names_blocks),
            values("mask", "0, and -10000 where a key is hidden", _masks_with_ten_thousand),
            Rule("as wide as the longest sequence", "mask", _covers_lengths),
        ),
        on_310p={
            "key_cache": Accepted("NB BS kv_head_num*D", "=q"),
            "value_cache": Accepted("NB BS kv_head_num*D", "=q"),
        },
    ),
    "swiglu": Contract({"x": Accepted("... 2*F", ANY_FLOAT)}),
    "matmul": Contract({"x": Accepted("T K", ANY_FLOAT), "weight": Accepted("N K", "=x")}),
    "top_k": Contract(
        {"x": Accepted("T N", ANY_FLOAT)},
        options=("k",),
        rules=(
            Rule(
                "at most the number of columns",
                "k",
                lambda call: (call.size("k") or 1) <= (call.size("N") or call.size("k") or 1),
            ),
        ),
    ),
    "argmax": Contract({"x": Accepted("T N", ANY_FLOAT)}),
    "all_reduce": Contract({"x": Accepted("T K", ANY_FLOAT)}, options=("group",)),
    "all_gather": Contract({"x": Accepted("T K", ANY_FLOAT)}, options=("group",)),
    # The inputs of the graph as they are: the kernels find the lengths by these names.
    "attention_mask": Contract(
        {
            "attn_mask": Accepted("1 1|P L", FLOATS),
            "slot_mapping": Accepted("T", "int32"),
            "batch_valid_length": LENGTHS,
            "q_seq_lens": LENGTHS,
            "block_tables": TABLES,
        },
        options=("head_num", "kv_head_num", "block_size", "is_paged"),
    ),
    **EXPERT_RULES,
}


def wrong_input_names(names: tuple[str, ...]) -> str | None:
    """Return what is wrong with the names of a graph's first inputs, or None.

    The attention kernels look up `batch_valid_length` and `q_seq_lens` among the inputs by name: a
    graph with other names compiles, and computes nonsense.
    """
    if names[: len(INPUT_NAMES)] == INPUT_NAMES:
        return None
    return f"the graph's inputs are {', '.join(names)}; accepted: {', '.join(INPUT_NAMES)}"
