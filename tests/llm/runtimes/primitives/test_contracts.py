"""Each rule of a primitive's contract refuses a call, and says what it accepts."""

import numpy as np
import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.mindspore.primitives.contracts import (
    ArgumentSpec,
    check,
    problems,
)
from mindspore_serving.llm.runtimes.mindspore.primitives.rules import (
    INPUT_NAMES,
    RULES,
    wrong_input_names,
)

BF16, F16, F32, I32, I64 = "bfloat16", "float16", "float32", "int32", "int64"


def spec(dtype, *shape):
    return ArgumentSpec(shape, dtype)


CACHE = spec(BF16, 64, 16, 2, 64)
HEADS = {"head_num": 8, "kv_head_num": 2, "scale": 0.125}
RIGHT = {
    "rms_norm": ({"eps": 1e-5}, {"x": spec(BF16, None, 512), "gamma": spec(BF16, 512)}),
    "add_rms_norm": (
        {"eps": 1e-5},
        {"x": spec(BF16, None, 512), "residual": spec(BF16, None, 512), "gamma": spec(BF16, 512)},
    ),
    "rope": (
        {"cos_format": 2},
        {
            "q": spec(BF16, None, 512), "k": spec(BF16, None, 128), "cos": spec(BF16, None, 64),
            "sin": spec(BF16, None, 64), "lengths": spec(I32, None),
        },
    ),
    "reshape_and_cache": (
        {},
        {
            "key": spec(BF16, None, 128), "value": spec(BF16, None, 128), "key_cache": CACHE,
            "value_cache": CACHE, "slot_mapping": spec(I32, None),
        },
    ),
    "flash_attention": (
        HEADS,
        {
            "q": spec(BF16, None, 512), "k": spec(BF16, None, 128), "v": spec(BF16, None, 128),
            "mask": spec(BF16, 128, 128), "lengths": spec(I32, None),
        },
    ),
    "paged_attention": (
        HEADS,
        {
            "q": spec(BF16, None, 512), "key_cache": CACHE, "value_cache": CACHE,
            "block_tables": spec(I32, None, None), "lengths": spec(I32, None),
            "mask": spec(BF16, None, None), "q_seq_lens": spec(I32, None),
        },
    ),
    "swiglu": ({}, {"x": spec(BF16, None, 512)}),
    "matmul": ({}, {"x": spec(BF16, None, 512), "weight": spec(BF16, 64, 512)}),
    "top_k": ({"k": 50}, {"x": spec(F32, None, 1000)}),
    "argmax": ({}, {"x": spec(F32, None, 1000)}),
    "all_reduce": ({"group": "hccl_world_group"}, {"x": spec(BF16, None, 512)}),
    "all_gather": ({"group": "hccl_world_group"}, {"x": spec(BF16, None, 512)}),
    "attention_mask": (
        {"head_num": 8, "kv_head_num": 2, "block_size": 16, "is_paged": True},
        {
            "attn_mask": spec(BF16, None, None), "slot_mapping": spec(I32, None),
            "batch_valid_length": spec(I32, None), "q_seq_lens": spec(I32, None),
            "block_tables": spec(I32, None, None),
        },
    ),
    "weight_quant_matmul": (
        {"bits": 8, "group_size": 128},
        {
            "x": spec(BF16, None, 512), "weight": spec("int8", 512, 64), "scale": spec(BF16, 4, 64),
            "offset": spec(BF16, 4, 64),
        },
    ),
    "dynamic_quant": ({}, {"x": spec(BF16, None, 512), "smooth": spec(BF16, 512)}),
    "quant_matmul": (
        {"dtype": BF16},
        {
            "x": spec("int8", None, 512), "weight": spec("int8", 64, 512), "scale": spec(BF16, 64),
            "bias": spec(I32, 64), "pertoken": spec(F32, None),
        },
    ),
    "quantise": (
        {}, {"x": spec(BF16, None, 512), "scale": spec(BF16, 1), "offset": spec("int8", 1)},
    ),
    "moe_gating_topk_softmax": ({"k": 2}, {"x": spec(F32, None, 8)}),
    "moe_init_routing": (
        {"num_experts": 8}, {"x": spec(BF16, None, 512), "expert_idx": spec(I32, None, 2)},
    ),
    "grouped_matmul": (
        {},
        {"x": spec(BF16, None, 512), "weight": spec(BF16, 8, 512, 256), "counts": spec(I64, 8)},
    ),
    "moe_unpermute": (
        {},
        {"rows": spec(BF16, None, 512), "indices": spec(I32, None), "probs": spec(BF16, None, 2)},
    ),
    "fused_add_topk_div": (
        {"group_num": 8, "group_topk": 4, "n": 2, "k": 8, "is_norm": True, "scale": 2.5},
        {"x": spec(F32, None, 256), "bias": spec(F32, 256)},
    ),
    "mla": (
        {"head_num": 32, "scale": 0.1, "mask_mode": "MASK_NONE"},
        {
            "q": spec(BF16, None, 32, 512), "q_rope": spec(BF16, None, 32, 64),
            "kv_cache": spec(BF16, 64, 128, 1, 512), "rope_cache": spec(BF16, 64, 128, 1, 64),
            "block_tables": spec(I32, None, None), "lengths": spec(I32, None), "mask": None,
            "q_seq_lens": spec(I32, None),
        },
    ),
}  # fmt: skip
# Each: primitive, options that differ, arguments that differ, and words of the message.
WRONG = [
    ("rms_norm", {}, {"gamma": spec(BF16, 511)}, "gamma is bfloat16 [511]"),
    ("rms_norm", {}, {"gamma": spec(F32, 512)}, "accepted: as x [K] with K=512"),
    ("add_rms_norm", {}, {"residual": spec(F16, None, 512)}, "residual is float16"),
    ("rope", {}, {"q": spec(F32, None, 512)}, "accepted: float16 or bfloat16 [T, H*D]"),
    ("rope", {}, {"cos": spec(F16, None, 64), "sin": spec(F16, None, 64)}, "as q or float32"),
    ("rope", {}, {"lengths": spec(I64, None)}, "lengths is int64 [any]; accepted: int32 [B]"),
    ("rope", {"cos_format": 4}, {}, "cos_format is 4; accepted: 2 or 3"),
    ("reshape_and_cache", {}, {"slot_mapping": spec(I64, None)}, "slot_mapping is int64"),
    ("reshape_and_cache", {}, {"key": spec(F32, None, 128)}, "key is float32"),
    ("reshape_and_cache", {}, {"key_cache": spec(F16, 64, 16, 2, 64)}, "as key"),
    ("reshape_and_cache", {}, {"key_cache": spec(BF16, 64, 16, 128)}, "[NB, BS, KV, D]"),
    ("reshape_and_cache", {}, {"key": spec(BF16, None, 129)}, "key is bfloat16 [any, 129]"),
    ("reshape_and_cache", {}, {"value": None}, "none, as value is, or both"),
    ("flash_attention", {}, {"k": spec(F16, None, 128)}, "k is float16 [any, 128]"),
    ("flash_attention", {}, {"q": spec(BF16, None, 513)}, "[T, head_num*D] with head_num=8"),
    ("flash_attention", {}, {"mask": spec("bool", 128, 128)}, "mask is bool [128, 128]"),
    ("flash_attention", {}, {"mask": spec(F16, 128, 128)}, "as q [128, 128]"),
    ("flash_attention", {}, {"mask": spec(BF16, 1024, 1024)}, "mask is bfloat16 [1024, 1024]"),
    ("flash_attention", {}, {"lengths": spec(I64, None)}, "int32 [B]"),
    ("flash_attention", {"sparse_mode": 9}, {}, "no option sparse_mode on a device"),
    ("flash_attention", {"window": 4}, {}, "it has: head_num, kv_head_num, scale"),
    ("flash_attention", {"head_num": 7}, {}, "q is bfloat16 [any, 512]"),
    ("paged_attention", {}, {"q": spec(BF16, None, 528)}, "key_cache is"),
    ("paged_attention", {}, {"q": spec(F32, None, 512)}, "q is float32"),
    ("paged_attention", {}, {"block_tables": spec(I64, None, None)}, "int32 [B, M]"),
    ("paged_attention", {}, {"block_tables": None}, "block_tables is missing"),
    ("paged_attention", {}, {"lengths": spec(I64, None)}, "lengths is int64"),
    ("paged_attention", {}, {"mask": spec("bool", None, None)}, "as q [1, 1] or [T, L], or none"),
    ("paged_attention", {}, {"q_seq_lens": spec(I64, None)}, "q_seq_lens is int64"),
    ("paged_attention", {}, {"value_cache": spec("int8", 64, 16, 2, 64)}, "value_cache is int8"),
    ("swiglu", {}, {"x": spec(BF16, None, 511)}, "x is bfloat16 [any, 511]"),
    ("swiglu", {}, {"x": spec(I32, None, 512)}, "x is int32"),
    ("matmul", {}, {"weight": spec(F16, 64, 512)}, "as x [N, K] with N=64, K=512"),
    ("matmul", {}, {"weight": spec(BF16, 64, 511)}, "weight is bfloat16 [64, 511]"),
    ("matmul", {}, {"x": spec(BF16, 1, None, 512)}, "[T, K]"),
    ("top_k", {"k": 1001}, {}, "k is 1001; accepted: at most the number of columns"),
    ("argmax", {}, {"x": spec(I32, None, 8)}, "x is int32"),
    ("all_reduce", {}, {"x": spec(I32, None, 8)}, "x is int32"),
    ("all_gather", {}, {"x": spec(BF16, 8)}, "[T, K]"),
    ("attention_mask", {"window": 3}, {}, "no option window"),
    ("weight_quant_matmul", {}, {"x": spec(F32, None, 512)}, "x is float32"),
    ("weight_quant_matmul", {}, {"weight": spec("int8", 511, 64)}, "weight is int8 [511, 64]"),
    ("weight_quant_matmul", {}, {"scale": spec(F32, 4, 64), "offset": None}, "scale is float32"),
    ("weight_quant_matmul", {"group_size": 100}, {}, "group_size is 100; accepted: a multiple"),
    ("weight_quant_matmul", {"group_size": 64}, {}, "[K / group_size, N] with a group_size"),
    ("weight_quant_matmul", {"group_size": 0}, {}, "scale is bfloat16 [4, 64]; accepted: [N]"),
    ("weight_quant_matmul", {"bits": 4}, {}, "int8 for 8 bits, qint4x2 for 4"),
    ("weight_quant_matmul", {"bits": 4}, {"weight": spec("qint4x2", 512, 64)}, "two for each"),
    ("weight_quant_matmul", {"bits": 3}, {}, "bits is 3; accepted: 4 or 8"),
    ("dynamic_quant", {}, {"x": spec(F32, None, 512), "smooth": None}, "x is float32"),
    ("quant_matmul", {}, {"x": spec(BF16, None, 512)}, "x is bfloat16"),
    ("quant_matmul", {}, {"weight": spec("int8", 64, 511)}, "weight is int8 [64, 511]"),
    ("quant_matmul", {}, {"scale": spec(F32, 63), "bias": None}, "scale is float32 [63]"),
    ("quant_matmul", {}, {"scale": spec(F16, 64)}, "scale is float16"),
    ("quant_matmul", {"dtype": I32}, {}, "dtype is int32; accepted: float16 or bfloat16"),
    ("quant_matmul", {"dtype": F16}, {"pertoken": None}, "int64 (the bits of float32)"),
    ("quantise", {}, {"offset": spec(F32, 1)}, "accepted: int8 or as x [1] or [K]"),
    ("moe_gating_topk_softmax", {}, {"x": spec(I32, None, 8)}, "x is int32"),
    ("moe_init_routing", {}, {"expert_idx": spec(I64, None, 2)}, "expert_idx is int64"),
    ("grouped_matmul", {}, {"weight": spec(F16, 8, 512, 256)}, "weight is float16"),
    ("grouped_matmul", {}, {"weight": spec(BF16, 8, 256, 512)}, "weight is bfloat16 [8, 256, 512]"),
    ("grouped_matmul", {}, {"counts": spec(I32, 8)}, "counts is int32 [8]; accepted: int64 [E]"),
    ("grouped_matmul", {}, {"counts": spec(I64, 7)}, "int64 [E] with E=8"),
    ("moe_unpermute", {}, {"indices": spec(I64, None)}, "indices is int64"),
    ("moe_unpermute", {}, {"probs": spec(F32, None, 2)}, "probs is float32"),
    ("fused_add_topk_div", {}, {"x": spec(BF16, None, 256)}, "x is bfloat16"),
    ("mla", {"mask_mode": 1}, {}, "mask_mode is 1; accepted: MASK_NONE or"),
    ("mla", {}, {"kv_cache": spec(BF16, 64, 128, 512)}, "[NB, BS, 1, 512]"),
    ("mla", {}, {"lengths": None}, "lengths is missing"),
]


@pytest.mark.parametrize("name", RIGHT)
def test_a_contract_accepts_a_right_call(name):
    options, arguments = RIGHT[name]
    assert problems(name, RULES[name], arguments, options=options) == []


@pytest.mark.parametrize(("name", "options", "arguments", "words"), WRONG)
def test_a_contract_refuses_a_wrong_call(name, options, arguments, words):
    right_options, right = RIGHT[name]
    with pytest.raises(StartError) as error:
        check(name, RULES[name], right | arguments, options=right_options | options)
    assert words in str(error.value)
    assert str(error.value).startswith(f"{name}: ") or "no option" in str(error.value)


def test_tables_of_half_a_known_head_dimension_are_refused():
    options, right = RIGHT["rope"]
    half = {"cos": spec(BF16, None, 32), "sin": spec(BF16, None, 32)}
    [error, *_] = problems("rope", RULES["rope"], right | half, options=options, sizes={"D": 64})
    assert error == ("rope: cos is bfloat16 [any, 32]; accepted: as q or float32 [T, D] with D=64")


@pytest.mark.parametrize(("dim", "words"), [(24, "a multiple of 16"), (272, "at most 256")])
def test_attention_refuses_a_head_dimension_that_its_kernel_lacks(dim, words):
    arguments = {
        "q": spec(F16, None, 8 * dim), "k": spec(F16, None, 2 * dim), "v": spec(F16, None, 2 * dim),
        "mask": spec(F16, 128, 128), "lengths": spec(I32, None),
    }  # fmt: skip
    errors = problems("flash_attention", RULES["flash_attention"], arguments, options=HEADS)
    assert errors == [f"flash_attention: D is {dim}; accepted: {words}"]


def paged(**changed):
    """Return arguments of a step with two sequences, of arrays."""
    cache = np.zeros((4, 16, 2, 16), np.float16)
    mask = np.zeros((3, 20), np.float16)
    mask[0, 19:] = -10000
    return {
        "q": np.zeros((3, 128), np.float16), "key_cache": cache, "value_cache": cache,
        "block_tables": np.array([[1, 2], [3, -1]], np.int32),
        "lengths": np.array([20, 5], np.int32), "mask": mask,
        "q_seq_lens": np.array([2, 1], np.int32), **changed,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"q_seq_lens": np.array([2, 2], np.int32)}, "new tokens that sum to T"),
        ({"block_tables": np.array([[1, 4], [3, 0]], np.int32)}, "blocks of the cache, or -1"),
        ({"mask": np.ones((3, 20), np.float16)}, "0, and -10000 where a key is hidden"),
        ({"mask": np.zeros((3, 19), np.float16)}, "as wide as the longest sequence"),
        ({"mask": np.zeros((1, 1), np.float16)}, "as wide as the longest sequence"),
    ],
)
def test_values_of_a_paged_step_are_checked(changed, words):
    rule = RULES["paged_attention"]
    assert problems("paged_attention", rule, paged(), options=HEADS) == []
    [error] = problems("paged_attention", rule, paged(**changed), options=HEADS)
    assert words in error


@pytest.mark.parametrize("slots", [[-2, 1, 2], [1, 64, 2], [5, 5, -1]])
def test_slots_outside_the_cache_or_written_twice_are_refused(slots):
    cache = np.zeros((4, 16, 2, 16), np.float16)
    arguments = {
        "key": np.zeros((3, 32), np.float16), "value": np.zeros((3, 32), np.float16),
        "key_cache": cache, "value_cache": cache, "slot_mapping": np.array(slots, np.int32),
    }  # fmt: skip
    [error] = problems("reshape_and_cache", RULES["reshape_and_cache"], arguments)
    assert "-1 or a slot of the cache, none of them twice" in error


def test_a_mask_of_packed_sequences_has_the_polarity_of_its_dtype():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    causal = np.triu(np.ones((128, 128), np.float32), 1)
    wide = {"q": 128, "k": 32, "v": 32}
    for dtype, right, wrong in ((np.float16, -10000, 1), (ml_dtypes.bfloat16, 1, -10000)):
        arguments = {key: np.zeros((3, width), dtype) for key, width in wide.items()}
        arguments["lengths"] = np.array([1, 2], np.int32)
        for value, count in ((right, 0), (wrong, 1)):
            arguments["mask"] = (causal * value).astype(dtype)
            rule = RULES["flash_attention"]
            assert len(problems("flash_attention", rule, arguments, options=HEADS)) == count


def test_lengths_that_are_cumulative_are_refused():
    arguments = {key: np.zeros((5, w), np.float16) for key, w in (("q", 128), ("k", 32), ("v", 32))}
    arguments |= {"mask": spec(F16, 128, 128), "lengths": np.array([2, 5], np.int32)}
    rule = RULES["flash_attention"]
    [error] = problems("flash_attention", rule, arguments, options=HEADS)
    assert "lengths, not cumulative, that sum to T" in error


def test_a_310p_takes_float16_and_caches_of_rank_three():
    options, right = RIGHT["reshape_and_cache"]
    rule = RULES["reshape_and_cache"]
    errors = problems("reshape_and_cache", rule, right, options=options, soc="ascend310p")
    assert "accepted: float16 [NB, BS, KV*D]" in "; ".join(errors)
    cache = spec(F16, 64, 16, 128)
    flat = {
        "key": spec(F16, None, 128), "value": spec(F16, None, 128), "key_cache": cache,
        "value_cache": cache, "slot_mapping": spec(I32, None),
    }  # fmt: skip
    assert problems("reshape_and_cache", rule, flat, options=options, soc="ascend310p") == []
    options, right = RIGHT["matmul"]
    [error] = problems("matmul", RULES["matmul"], right, options=options, soc="ascend310p")
    assert "soc is ascend310p; accepted: no bfloat16" in error


def test_a_graph_whose_lengths_have_another_name_is_refused():
    assert wrong_input_names((*INPUT_NAMES, "hidden")) is None
    error = wrong_input_names(("input_ids", "lengths"))
    assert error is not None
    assert "batch_valid_length" in error


@pytest.mark.parametrize(
    ("name", "options", "arguments", "words"),
    [
        ("moe_init_routing", {"num_experts": 2}, {
            "x": np.zeros((1, 4), np.float16), "expert_idx": np.array([[0, 2]], np.int32),
        }, "experts below num_experts"),
        ("grouped_matmul", {}, {
            "x": np.zeros((3, 4), np.float16), "weight": np.zeros((2, 4, 4), np.float16),
            "counts": np.array([2, 3]),
        }, "rows of each expert that sum to R"),
        ("mla", {**RIGHT["mla"][0]}, {
            **RIGHT["mla"][1], "q_seq_lens": np.array([5, 1], np.int32),
        }, "at most 4 new tokens"),
    ],
)  # fmt: skip
def test_values_of_experts_and_latent_steps_are_checked(name, options, arguments, words):
    [error] = problems(name, RULES[name], arguments, options=options)
    assert words in error


def test_latent_attention_is_refused_on_a_310p():
    options, right = RIGHT["mla"]
    half = {key: spec(F16, *value.shape) if value and value.dtype == BF16 else value
            for key, value in right.items()}  # fmt: skip
    [error] = problems("mla", RULES["mla"], half, options=options, soc="ascend310p")
    assert "another SoC than ascend310p" in error
