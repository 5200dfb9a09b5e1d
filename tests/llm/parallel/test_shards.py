"""How a model is cut over ranks: sizes, heads, fused matrices, biases, rows of the vocabulary."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.packing import pack, unpack
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor, StaticInputs
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.parallel.shards import Range, Shard, ShardedCheckpoint, cut_spec

# 4 heads of 2 features that share 2 key-value heads, 8 features in the middle, 10 tokens.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 6,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 2,
    "vocab_size": 10,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-6,
}
LAYER = "model.layers.0."


def part(name: str, *shape: int, rank: int, size: int, **config: object) -> np.ndarray:
    """What a rank has of a tensor whose numbers count its elements."""
    bits = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    whole = Checkpoint(Path("model"), CONFIG | config, {name: StoredTensor("F32", shape, bits)})
    spec, _ = load_definition(whole.config)
    own = ShardedCheckpoint(whole, spec, Shard(rank, size)).raw(name)[2]
    assert np.shares_memory(own, bits) or "qkv" in name or "gate_up" in name or not own.any()
    return own


def rows(own: np.ndarray) -> list[int]:
    """Which rows of the whole matrix these are."""
    return (own[:, 0] / own.shape[1]).astype(int).tolist()


@pytest.mark.parametrize(
    ("rank", "size", "count", "expected"),
    [(0, 2, 10, (0, 5)), (1, 2, 10, (5, 10)), (0, 4, 10, (0, 2)), (3, 4, 10, (7, 10))],
)
def test_parts_are_in_order_and_differ_by_at_most_1(rank, size, count, expected):
    assert Shard(rank, size).of(count) == Range(*expected)


@pytest.mark.parametrize(
    ("module", "expected"),
    [("q_proj", [4, 5, 6, 7]), ("k_proj", [2, 3]), ("v_proj", [2, 3])],
)
def test_a_rank_has_whole_heads(module, expected):
    count = 8 if module == "q_proj" else 4
    own = part(f"{LAYER}self_attn.{module}.weight", count, 6, rank=1, size=2)
    assert rows(own) == expected


@pytest.mark.parametrize(("rank", "expected"), [(0, [0, 1]), (1, [0, 1]), (2, [2, 3]), (3, [2, 3])])
def test_with_more_ranks_than_key_value_heads_they_share_heads(rank, expected):
    own = part(f"{LAYER}self_attn.k_proj.weight", 4, 6, rank=rank, size=4)
    assert rows(own) == expected


def test_matrices_behind_whole_heads_are_cut_by_inputs():
    own = part(f"{LAYER}self_attn.o_proj.weight", 6, 8, rank=1, size=2)
    assert own[0].tolist() == [4, 5, 6, 7]
    own = part(f"{LAYER}mlp.down_proj.weight", 6, 8, rank=1, size=4)
    assert own[0].tolist() == [2, 3]


@pytest.mark.parametrize(("rank", "expected"), [(0, [0.0, 1, 2]), (1, [0.0, 0, 0])])
def test_a_bias_behind_a_sum_is_added_once(rank, expected):
    assert part(f"{LAYER}mlp.down_proj.bias", 3, rank=rank, size=2).tolist() == expected


def test_a_bias_of_heads_is_cut_with_them():
    own = part(f"{LAYER}self_attn.q_proj.bias", 8, rank=1, size=2)
    assert own.tolist() == [4, 5, 6, 7]


def test_a_fused_matrix_is_cut_in_each_of_its_parts():
    config = {"architectures": ["Phi3ForCausalLM"]}
    own = part(f"{LAYER}self_attn.qkv_proj.weight", 16, 6, rank=1, size=2, **config)
    assert rows(own) == [4, 5, 6, 7, 10, 11, 14, 15]
    own = part(f"{LAYER}mlp.gate_up_proj.weight", 16, 6, rank=0, size=2, **config)
    assert rows(own) == [0, 1, 2, 3, 8, 9, 10, 11]


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "lm_head.weight"])
def test_the_vocabulary_is_cut_even_if_not_divisible_by_the_ranks(name):
    assert [rows(part(name, 10, 6, rank=rank, size=4)) for rank in range(4)] == [
        [0, 1], [2, 3, 4], [5, 6], [7, 8, 9],
    ]  # fmt: skip


def test_the_features_of_every_expert_are_cut_and_the_router_is_not():
    moe = {"architectures": ["MixtralForCausalLM"], "num_local_experts": 2}
    moe["num_experts_per_tok"] = 1
    prefix = f"{LAYER}block_sparse_moe."
    own = part(f"{prefix}experts.1.w3.weight", 8, 6, rank=1, size=2, **moe)
    assert rows(own) == [4, 5, 6, 7]
    own = part(f"{prefix}experts.1.w2.weight", 6, 8, rank=0, size=2, **moe)
    assert own[0].tolist() == [0, 1, 2, 3]
    assert part(f"{prefix}gate.weight", 2, 6, rank=1, size=2, **moe).shape == (2, 6)


# Layers 0 and 2 have 2 key-value heads of 2 features, layer 1 a single one of 3; 9 of 10 tokens
# have inputs of layers.
GEMMA4 = {
    "architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": 3, "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "global_head_dim": 3, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 10,
}  # fmt: skip
GEMMA3N = {"architectures": ["Gemma3nForCausalLM"], "num_hidden_layers": 20}


@pytest.mark.parametrize(("layer", "count", "expected"), [(0, 4, [2, 3]), (1, 3, [0, 1, 2])])
def test_layers_are_cut_by_heads_of_their_sizes(layer, count, expected):
    key = part(f"model.layers.{layer}.self_attn.k_proj.weight", count, 6, rank=1, size=2, **GEMMA4)
    assert rows(key) == expected
    spec, _ = load_definition(CONFIG | GEMMA4)
    assert cut_spec(spec, 2).heads[layer] == (1, 2 + layer)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(10, [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]), (6, [[0, 1], [2, 3, 4], [5], [5]])],
)
def test_a_rank_has_the_inputs_of_layers_of_its_tokens(count, expected):
    config = GEMMA3N | {"vocab_size_per_layer_input": count}
    name = "model.embed_tokens_per_layer.weight"
    parts = [part(name, count, 8, rank=rank, size=4, **config) for rank in range(4)]
    assert [rows(each) for each in parts] == expected


def test_feed_forward_blocks_of_layers_may_have_different_widths():
    name = f"{LAYER}mlp.gate_proj.weight"
    assert rows(part(name, 16, 6, rank=1, size=2, **GEMMA4)) == list(range(8, 16))


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [("q_norm", (4, 2), [2, 3]), ("k_norm", (2, 2), [1]), ("q_norm", (8,), [4, 5, 6, 7])],
)
def test_norms_with_features_of_each_head_are_cut_with_them(name, shape, expected):
    """Cohere has a weight for each head, Olmo 2 one for all heads together."""
    has_rows = len(shape) > 1
    config = {"architectures": ["CohereForCausalLM" if has_rows else "Olmo2ForCausalLM"]}
    config |= {"use_qk_norm": True, "layer_norm_eps": 1e-6, "logit_scale": 0.5}
    weight = part(f"{LAYER}self_attn.{name}.weight", *shape, rank=1, size=2, **config)
    assert (rows(weight) if has_rows else weight.tolist()) == expected


def test_a_rank_has_the_slopes_of_its_heads():
    spec, _ = load_definition(CONFIG | {"architectures": ["BloomForCausalLM"]})
    assert cut_spec(spec, 2, 1).alibi == spec.alibi[2:] == (2.0**-6, 2.0**-8)


def test_norms_are_on_every_rank():
    assert part(f"{LAYER}input_layernorm.weight", 6, rank=1, size=2).tolist() == list(range(6))


@pytest.mark.parametrize(("size", "kv_heads"), [(2, 1), (4, 1)])
def test_the_sizes_of_a_rank(size, kv_heads):
    spec, _ = load_definition(CONFIG)
    own = cut_spec(spec, size)
    assert (own.num_heads, own.num_kv_heads) == (4 // size, kv_heads)
    assert own.intermediate_size == 8 // size
    assert (own.hidden_size, own.vocab_size) == (6, 10)


KEY_HEADS = {
    "architectures": ["Qwen3_5ForCausalLM"], "linear_num_key_heads": 2, "linear_key_head_dim": 2,
    "linear_num_value_heads": 4, "linear_value_head_dim": 2, "linear_conv_kernel_dim": 4,
    "num_key_value_heads": 4,
}  # fmt: skip
GROUPS = {
    "architectures": ["BambaForCausalLM"], "mamba_n_heads": 6, "mamba_d_head": 2,
    "mamba_n_groups": 3, "mamba_d_state": 4,
}  # fmt: skip
CHANNELS = {"architectures": ["Lfm2ForCausalLM"], "layer_types": ["conv"], "hidden_size": 9}


@pytest.mark.parametrize(
    ("size", "config", "problem"),
    [
        (3, {}, "divisor of the model's 4 attention heads"),
        (8, {}, "divisor of the model's 4 attention heads"),
        (2, {"num_attention_heads": 6, "num_key_value_heads": 3}, "3 key-value heads"),
        (4, {"intermediate_size": 6}, "divisor of the model's intermediate_size 6"),
        (4, KEY_HEADS, "divisor of the 4 value heads .* states that is a divisor of their 2 key"),
        (2, GROUPS, "divisor of the 6 value heads .* of their 3 key heads or a multiple of them"),
        (2, GEMMA4 | {"num_global_key_value_heads": 3}, "divides its 3 key-value heads"),
        (2, CHANNELS, "divisor of the 9 channels of the model's convolutions"),
    ],
)
def test_a_size_or_model_that_cannot_be_cut_is_refused(size, config, problem):
    spec, _ = load_definition(CONFIG | config)
    with pytest.raises(StartError, match=problem):
        cut_spec(spec, size)


def test_experts_that_cannot_be_cut_are_refused_by_name():
    config = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 2, "num_experts_per_tok": 1}
    name = f"{LAYER}mlp.experts.0.gate_proj.weight"
    with pytest.raises(StartError, match=r"divisor of the 3 features of tensor .*experts\.0"):
        part(name, 3, 6, rank=0, size=2, **config)


def test_a_tensor_of_another_size_than_config_says_is_refused():
    with pytest.raises(StartError, match="has 6 rows, expected 8"):
        part(f"{LAYER}self_attn.q_proj.weight", 6, 6, rank=0, size=2)


def test_a_quantised_matrix_is_cut_as_its_floats_are():
    name = f"{LAYER}mlp.down_proj.weight"
    integers = np.arange(48, dtype=np.int8).reshape(6, 8)
    scales = np.full((6, 1), 0.5, np.float16)
    tensors = {name: StoredTensor("I8", (6, 8), integers)}
    tensors[f"{name}.scale"] = StoredTensor("F16", (6, 1), scales.view(np.uint16))
    spec, _ = load_definition(CONFIG)
    whole = Checkpoint(Path("model"), CONFIG, tensors)
    own = ShardedCheckpoint(whole, spec, Shard(1, 2)).f32(name)
    np.testing.assert_array_equal(own, integers[:, 4:] * np.float32(0.5))


def integer_parts(packed, name=f"{LAYER}mlp.down_proj.weight", **stored):
    """The checkpoints of two ranks with one quantised matrix, of the shape of `packed`."""
    rows, columns = packed.shape
    bits = packed.values.view(np.uint8)
    tensor = QuantizedTensor("format", (rows, columns), bits, read=lambda: packed, **stored)
    spec, _ = load_definition({**CONFIG, "intermediate_size": columns})
    whole = Checkpoint(Path("model"), CONFIG, {name: tensor})
    return [ShardedCheckpoint(whole, spec, Shard(rank, 2)) for rank in range(2)], name


@pytest.mark.parametrize(("bits", "group"), [(8, 0), (4, 32), (4, 0)])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_integers_are_cut_in_whole_groups_of_inputs(bits, group, has_zeros):
    matrix = np.random.default_rng(bits).normal(0, 1, (6, 128)).astype(np.float32)
    packed = pack(matrix, bits, group or 128, has_zeros=has_zeros and bits == 4)
    parts, name = integer_parts(packed)
    cut = [part.packed(name) for part in parts]
    assert [part.shape(name) for part in parts] == [each.shape for each in cut] == [(6, 64)] * 2
    np.testing.assert_array_equal(np.hstack([unpack(each) for each in cut]), unpack(packed))
    assert all(
        (part.f32(name) == unpack(each)).all() for part, each in zip(parts, cut, strict=True)
    )


def test_groups_of_inputs_that_ranks_would_split_are_refused():
    matrix = np.ones((6, 96), np.float32)
    parts, name = integer_parts(pack(matrix, 4, 32))
    with pytest.raises(StartError, match="has groups of 32 inputs, which do not divide the 48 inp"):
        parts[0].packed(name)
    reordered = replace(pack(matrix, 4, 96), order=np.arange(96)[::-1])
    parts, name = integer_parts(reordered)
    with pytest.raises(StartError, match=r"another order \(act-order\).* pipeline_parallel"):
        parts[0].packed(name)


def test_static_products_of_ranks_add_up_to_that_of_the_whole_matrix():
    """Inputs are shifted and rounded by their own scales; one rank adds the bias."""
    random = np.random.default_rng(3)
    values = random.integers(-127, 128, (6, 128)).astype(np.int8)
    scale, shift = random.uniform(0.1, 0.2, (2, 128)).astype(np.float32)
    bias = random.integers(-99, 99, 6).astype(np.int32)
    static = StaticInputs(values, np.full(6, 0.5, np.float32), bias, scale, np.int8([3]), shift)
    parts, name = integer_parts(pack(values.astype(np.float32), 8, 128), inputs=static)
    x = random.normal(0, 1, (2, 128)).astype(np.float32)

    def product(inputs, some):
        rounded = np.rint((inputs + some.shift) / some.scale) + some.offset
        return (rounded @ some.values.T.astype(np.float64) + some.quant_bias) * some.deq_scale

    found = [part.input_rounding(name) for part in parts]
    halves = [product(x[:, :64], found[0]), product(x[:, 64:], found[1])]
    np.testing.assert_allclose(sum(halves), product(x, static))
