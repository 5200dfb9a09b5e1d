"""Configurations of wrong types: one readable error, at once."""

import json
import os
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.model_files import read_json
from mindspore_serving.llm.models import ARCHITECTURES, load_definition

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "n_groups": 2,
    "hybrid_override_pattern": "M*",
}
ROPES = {
    "rope_type": "yarn",
    "factor": 2.0,
    "rope_theta": 5e5,
    "beta_fast": 32,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0] * 8,
    "long_factor": [1.0] * 8,
}
NAMES = [
    *("rope_theta", "sliding_window", "sliding_window_pattern", "layer_types", "rope_scaling"),
    *("rope_parameters", "text_config", "hidden_act", "tie_word_embeddings", "attention_bias"),
    *("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "head_dim"),
    *("partial_rotary_factor", "rope_local_base_freq", "num_experts", "mlp_only_layers"),
    *("decoder_sparse_step", "max_window_layers", "use_sliding_window", "quantization_config"),
    *("kv_lora_rank", "q_lora_rank", "v_head_dim", "n_group", "topk_group", "topk_method"),
    *("no_rope_layers", "no_rope_layer_interval", "moe_layers", "moe_layer_end_index"),
    *("moe_layer_interval", "first_k_dense_replace", "n_shared_experts", "routed_scaling_factor"),
    *("num_experts_per_tok", "num_kv_heads", "rotary_dim", "rotary_pct", "layer_norm_eps"),
    *("logit_scale", "scale_emb", "scale_depth", "dim_model_base", "logits_scaling"),
    *("embedding_multiplier", "attention_multiplier", "position_embedding_type", "alibi"),
    *("use_parallel_residual", "num_ln_in_parallel_attn", "new_decoder_architecture"),
    *("floor_scale", "attn_scale", "attention_chunk_size", "swiglu_limit", "intermediate_size_mlp"),
    *("word_embed_proj_dim", "clip_qkv", "shared_intermediate_size", "num_local_experts"),
    *(
        "mamba_d_head",
        "mamba_d_ssm",
        "mamba_expand",
        "mamba_d_conv",
        "mamba_conv_bias",
        "conv_kernel",
    ),
    *("time_step_limit", "mlp_multipliers", "ssm_multipliers", "key_multiplier", "moe_latent_size"),
    *("layers_block_type", "attn_layer_indices", "mamba_hidden_act", "mlp_hidden_act", "num_heads"),
    "conv_kernel",
    *CONFIG,
]
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.sampled_from([0, 1, 2, 10**9, 10**400, float("nan"), float("inf"), 1e300]),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers() | st.text(max_size=2) | st.lists(st.none()), max_size=3),
    st.dictionaries(
        st.sampled_from([*ROPES, "full_attention"]), st.integers() | st.text(), max_size=2
    ),
)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("rope_theta", "abc", "rope_theta 'abc', expected a number of 0 or more"),
        ("num_hidden_layers", 10**9, "num_hidden_layers 1000000000, expected at most 4096"),
        ("kv_lora_rank", 0, "kv_lora_rank 0, expected an int over 0"),
        ("hidden_size", 10**9, "hidden_size 1000000000 of 4 heads, expected 1 to 65536 features"),
        ("rope_scaling", {**ROPES, "beta_slow": 1e-300, "rope_theta": 1}, "is impossible"),
        ("hidden_size", 10**400, "hidden_size a number of over 40 digits, expected at most"),
        ("layer_types", 5, "layer_types 5, expected a list of texts"),
        ("sliding_window", "4k", "sliding_window '4k', expected an int of 0 or more"),
        ("partial_rotary_factor", 10**9, "partial_rotary_factor 1000000000.0, expected at most 1"),
        ("rope_scaling", "yarn", "rope_scaling 'yarn', expected an object"),
        ("rope_scaling", {**ROPES, "factor": "2"}, "rope_scaling.factor '2', expected a"),
        ("rope_scaling", {"rope_type": ["x"]}, "rope_scaling.rope_type ['x'], expected a text"),
        ("rope_parameters", {"full_attention": 5}, "full_attention 5, expected an object"),
        ("tie_word_embeddings", "no", "tie_word_embeddings 'no', expected true or false"),
        ("architectures", [["LlamaForCausalLM"]], "expected a"),
        ("text_config", {"rope_theta": []}, "rope_theta [], expected a number of 0 or more"),
    ],
)  # fmt: skip
def test_value_of_wrong_type_is_named(name, value, says):
    with pytest.raises(StartError) as raised:
        load_definition(CONFIG | {name: value})
    assert says in str(raised.value)


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(ARCHITECTURES)),
    st.sampled_from(NAMES),
    st.sampled_from([None, *ROPES]),
    JUNK,
)
def test_junk_values_raise_start_error_only(architecture, name, inner, value):
    if inner is not None:
        name, value = "rope_scaling", ROPES | {inner: value}
    with suppress(StartError):
        load_definition(CONFIG | {"architectures": [architecture]} | {name: value})


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_special_file_is_refused_without_waiting(make, tmp_path):
    make(tmp_path / "config.json")
    with pytest.raises(StartError, match=r"config\.json is no regular file"):
        read_json(tmp_path / "config.json")


def test_a_file_of_200_000_levels_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("[" * 200_000 + "]" * 200_000)
    with pytest.raises(StartError, match="is not JSON"):
        read_json(path)


def test_an_int_of_5_000_digits_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG)[:-1] + ', "head_dim": ' + "1" * 5000 + "}")
    with pytest.raises(StartError, match="is not JSON"):
        read_json(path)
