"""The contracts of quantised products, routing to experts and latent attention.

Symbols as in `rules`, and: E experts, R rows of experts, G groups of a quantised matrix, W columns
as stored, LATENT and ROPE sizes of a latent key.
"""

from typing import Any

from mindspore_serving.llm.runtimes.mindspore.primitives.contracts import (
    FLOATS,
    SOC_310P,
    Accepted,
    Contract,
    PrimitiveCall,
    Rule,
    multiple_of,
    one_of,
    values,
)

MAX_LATENT_TOKENS = 4  # new tokens of a sequence
LATENT_HEADS = (16, 32, 64, 128)
LATENT_SIZES = (512, 64)  # of a key without and with positions
PLAIN_DTYPES = ("float16", "bfloat16")  # of a quantised product


def _fills_groups(call: PrimitiveCall) -> bool:
    """Return whether scales have a row for each group of inputs, and none without groups."""
    size, inputs, groups = call.size("group_size") or 0, call.size("K"), call.size("G")
    if "scale" in call.specs and (len(call.specs["scale"].shape) == 2) != (size > 0):
        return False
    return not size or inputs is None or groups is None or groups * size == inputs


def _unpacks(call: PrimitiveCall) -> bool:
    stored, columns = call.size("W"), call.size("N")
    return None in (stored, columns) or stored * 8 == columns * (call.size("bits") or 8)


def _is_stored_as_its_bits(call: PrimitiveCall) -> bool:
    return call.specs["weight"].dtype == ("qint4x2" if call.size("bits") == 4 else "int8")


def _sums_to_rows(call: PrimitiveCall, counts: Any) -> bool:
    rows = call.size("R")
    return rows is None or (int(counts.min()) >= 0 and int(counts.sum()) == rows)


def _names_experts(call: PrimitiveCall, experts: Any) -> bool:
    return int(experts.min()) >= 0 and int(experts.max()) < (call.size("num_experts") or 2**31)


EXPERT_RULES = {
    "weight_quant_matmul": Contract(
        {
            "x": Accepted("T K", FLOATS),
            "weight": Accepted("K W", "int8 qint4x2"),
            "scale": Accepted("N|G N", "=x"),
            "offset": Accepted("N|G N", "=x", is_optional=True),
        },
        options=("bits", "group_size"),
        rules=(
            one_of("bits", 4, 8),
            multiple_of("group_size", 32),
            Rule("int8 for 8 bits, qint4x2 for 4", "weight", _is_stored_as_its_bits),
            Rule("a column for each of the weight, two for each qint4x2", "scale", _unpacks),
            Rule("[N], or [K / group_size, N] with a group_size", "scale", _fills_groups),
        ),
    ),
    "dynamic_quant": Contract(
        {
            "x": Accepted("T K", FLOATS),
            "smooth": Accepted("K", "=x", is_optional=True),
        }
    ),
    "quant_matmul": Contract(
        {
            "x": Accepted("T K", "int8"),
            "weight": Accepted("N K", "int8"),
            "scale": Accepted("N", "bfloat16 float32 int64 uint64"),
            "bias": Accepted("N", "int32", is_optional=True),
            "pertoken": Accepted("T", "float32", is_optional=True),
        },
        options=("dtype",),
        rules=(
            one_of("dtype", *PLAIN_DTYPES),
            Rule(
                "int64 (the bits of float32) for float16, bfloat16 or float32 for bfloat16",
                "scale",
                lambda call: (
                    "pertoken" in call.specs
                    or (call.size("dtype") == "bfloat16") == ("float" in call.specs["scale"].dtype)
                ),
            ),
        ),
    ),
    "quantise": Contract(
        {
            "x": Accepted("T K", FLOATS),
            "scale": Accepted("1|K", "=x"),
            "offset": Accepted("1|K", "int8 =x"),
        }
    ),
    "moe_gating_topk_softmax": Contract({"x": Accepted("T E", f"{FLOATS} float32")}, ("k",)),
    "moe_init_routing": Contract(
        {
            "x": Accepted("T K", FLOATS),
            "expert_idx": Accepted("T CHOICES", "int32"),
        },
        options=("num_experts",),
        rules=(values("expert_idx", "experts below num_experts", _names_experts),),
    ),
    "grouped_matmul": Contract(
        {
            "x": Accepted("R K", FLOATS),
            "weight": Accepted("E K N", "=x"),
            "counts": Accepted("E", "int64"),
        },
        rules=(values("counts", "rows of each expert that sum to R", _sums_to_rows),),
    ),
    "moe_unpermute": Contract(
        {
            "rows": Accepted("R N", FLOATS),
            "indices": Accepted("R", "int32"),
            "probs": Accepted("T CHOICES", "=rows"),
        }
    ),
    "fused_add_topk_div": Contract(
        {
            "x": Accepted("T group_num*P", "float32"),
            "bias": Accepted("group_num*P", "float32"),
        },
        options=("group_num", "group_topk", "n", "k", "is_norm", "scale"),
    ),
    "mla": Contract(
        {
            "q": Accepted("T head_num 512", FLOATS),
            "q_rope": Accepted("T head_num 64", "=q"),
            "kv_cache": Accepted("NB BS 1 512", "=q"),
            "rope_cache": Accepted("NB BS 1 64", "=q"),
            "block_tables": Accepted("B M", "int32"),
            "lengths": Accepted("B", "int32"),
            "mask": Accepted("1 1|T L", "=q", is_optional=True),
            "q_seq_lens": Accepted("B", "int32"),
        },
        options=("head_num", "scale", "mask_mode"),
        rules=(
            one_of("head_num", *LATENT_HEADS),
            one_of("mask_mode", "MASK_NONE", "MASK_NORM", "MASK_ALIBI", "MASK_SPEC", "MASK_FREE"),
            multiple_of("BS", 16),
            values(
                "q_seq_lens",
                f"at most {MAX_LATENT_TOKENS} new tokens of a sequence",
                lambda call, counts: int(counts.max()) <= MAX_LATENT_TOKENS,
            ),
            Rule(f"another SoC than {SOC_310P}", "soc", lambda call: call.soc != SOC_310P),
        ),
    ),
}
