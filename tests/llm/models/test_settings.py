"""Every setting of config.json that changes results is read or refused.

Each setting of each architecture is changed: then the model's spec changes as well, or the
configuration is refused; exceptions are listed here, with the reason.
"""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("transformers")

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions.settings import NEUTRAL
from mindspore_serving.llm.models import load_definition
from tests.llm import architectures, checkpoints

pytestmark = pytest.mark.torch
INERT = {
    *NEUTRAL,
    "rope_parameters.type",  # `rope_type` says the same
    *("n_shared_experts", "moe_num_shared_experts"),  # but 0: their tensors are as large as all
}
MAMBA = {f"mamba_{size}" for size in
         ("n_heads", "n_groups", "d_state", "d_head", "d_conv", "expand", "conv_bias",
          "proj_bias")}  # fmt: skip
NEMOTRON = {"expand", "sliding_window"}  # of tensors, and of no layer in transformers
MOE = {"n_routed_experts", "num_experts_per_tok", "norm_topk_prob", "routed_scaling_factor",
       "n_group", "topk_group", "moe_latent_size"}  # fmt: skip
LAYERS = {"sliding_window", "use_sliding_window", "max_window_layers"}  # `layer_types` decides
WITH_PATTERN = {"sliding_window_pattern", "_sliding_window_pattern"}
WIDTHS = {"vocab_size_per_layer_input"}  # of tensors, which have them
LATENT = {"head_dim", "num_key_value_heads"}  # of keys that are not cached as they are
LATENT_SIZES = {"kv_lora_rank": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
CHATGLM = {"multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 16}
UNSHARED, SPARSITY = {"num_kv_shared_layers": 0}, "activation_sparsity_pattern"
# What an architecture has in common with others, and does not use as it is here.
OF_ONE = {
    "smollm3": LAYERS | {"no_rope_layer_interval"},
    "exaone4": WITH_PATTERN,
    "exaone4-full": LAYERS | WITH_PATTERN,
    "gemma3": WITH_PATTERN,
    **dict.fromkeys(("dots1", "qwen2-moe", "qwen2", "qwen3", "qwen3-moe"), LAYERS),
    "ernie4_5-moe": {"moe_layer_end_index"},  # beyond the last layer
    "ernie4_5-moe-biased": {"moe_layer_end_index"},
    **dict.fromkeys(("gpt-neox", "gpt-neox-serial"), {"is_decoder"}),
    "hunyuan": {"rope_parameters.factor"},  # `alpha` decides
    **dict.fromkeys(("falcon", "falcon-alibi"), {"num_ln_in_parallel_attn", "num_kv_heads"}),
    "falcon-new": {"multi_query", "parallel_attn"},
    "lfm2-biased": {"block_ffn_dim_multiplier", "block_multiple_of"},  # of what is not narrowed
    "bloom": {"pretraining_tp"},  # without `slow_but_exact`, which is the same sum
    "llama4": {"intermediate_size", "max_position_embeddings", "interleave_moe_layer_step",
               "no_rope_layer_interval", "attention_chunk_size"},  # lists, and the least limit
    **dict.fromkeys(("deepseek-v2", "deepseek-v3", "minicpm3"), LATENT),
    "deepseek-v2-lite": LATENT | {"n_group", "topk_group"},  # by "greedy"
    "phi3": {"original_max_position_embeddings"},  # without a rope scaling
    "granite4": {"intermediate_size", "num_experts_per_tok", "time_step_limit", *MAMBA},
    **dict.fromkeys(("gemma4", "gemma4-large"), WIDTHS | {"num_experts", "top_k_experts"}),
    "gemma4-moe": WIDTHS,
    "granite4-mamba": {"intermediate_size"},  # of experts, whose tensors have it
    **dict.fromkeys(("falcon-h1", "falcon-h1-normed"), {"mamba_expand"}),  # with `mamba_d_ssm`
    "nemotron-h": NEMOTRON | MOE,
    "mamba2": NEMOTRON,
    "nemotron-h-moe": NEMOTRON | {"intermediate_size", "moe_latent_size"},
}  # fmt: skip


MAMBA_SIZES = {"mamba_n_heads": 8, "mamba_d_state": 24}


def changed(key: str, value: Any) -> Any:
    """Another value, and one that matters if the setting does."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return 2 * value + 1
    if isinstance(value, float):
        return value * 1.5 or 0.5
    if isinstance(value, list):
        return [changed(key, one) for one in value] or [0]
    if value is None:
        return 7
    return "relu" if "act" in key and value != "relu" else "gelu" if "act" in key else "other"


def changes(config: dict[str, Any], place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """(setting, configuration with another value of it) of each setting."""
    for key, value in config.items():
        if isinstance(value, dict):
            for inner, other in changes(value, f"{place}{key}."):
                yield inner, {**config, key: other}
        else:
            yield f"{place}{key}", {**config, key: changed(key, value)}


@pytest.mark.parametrize("name", [*architectures.ALL, *checkpoints.TRANSFORMERS])
def test_every_setting_is_read_or_refused(name: str) -> None:
    config = checkpoints.configuration(name)
    architecture = {"architectures": config.pop("architectures")}
    spec, _ = load_definition(config | architecture)
    ignored = set()
    for key, other in changes(config):
        try:
            if load_definition(other | architecture)[0] == spec:
                ignored.add(key)
        except StartError:
            continue
    assert ignored - INERT == OF_ONE.get(name, set()) & ignored


def test_larger_gemma_4_heads_are_set_for_all_layers() -> None:
    """As published files have them; transformers writes them layer by layer."""
    config = checkpoints.configuration("gemma4-large")
    published = {key: value for key, value in config.items() if key != "per_layer_config"}
    published |= {"global_head_dim": 32, "num_global_key_value_heads": 1}
    assert load_definition(published)[0] == load_definition(config)[0]
    assert load_definition(config)[0].heads == ((2, 16), (1, 32), (1, 32))


@pytest.mark.parametrize(
    ("architecture", "settings", "says"),
    [
        ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx True"),
        ("OlmoForCausalLM", {"clip_qkv": 8.0}, "clip_qkv 8.0"),
        ("OPTForCausalLM", {"do_layer_norm_before": False}, "do_layer_norm_before False"),
        ("OPTForCausalLM", {"word_embed_proj_dim": 32}, "word_embed_proj_dim 32"),
        ("PhiForCausalLM", {"qk_layernorm": True}, "qk_layernorm True"),
        ("GemmaForCausalLM", {"use_bidirectional_attention": True}, "bidirectional_attention True"),
        ("DeepseekV2ForCausalLM", {"norm_topk_prob": True}, "norm_topk_prob True"),
        ("DeepseekV2ForCausalLM", {"qk_rope_head_dim": 10**9, **LATENT_SIZES}, "at most 65536"),
        (
            "Gemma3ForConditionalGeneration",
            {"sliding_window": 24, "vision_config": {"image_size": 8}},
            "sliding_window 24, expected at least the 256 tokens of an image",
        ),
        ("Gemma3nForCausalLM", {**UNSHARED, "altup_active_idx": 4}, "idx 4, expected less than"),
        ("Gemma3nForCausalLM", {**UNSHARED, SPARSITY: [0.5]}, "a number below 1 for each"),
        ("Gemma3nForCausalLM", {**UNSHARED, SPARSITY: [1, 1]}, "a number below 1 for each"),
        ("Gemma4ForCausalLM", {"enable_moe_block": True}, "no num_experts"),
        ("Gemma4ForCausalLM", {"use_bidirectional_attention": "all"}, "bidirectional_attention 'a"),
        ("Gemma4ForCausalLM", {"vocab_size_per_layer_input": 9}, "9, expected at least vocab_size"),
        ("Gemma4ForCausalLM", {"num_kv_shared_layers": 2}, "num_kv_shared_layers 2 of 2, expected"),
        (
            "Gemma4ForCausalLM",
            {"per_layer_config": {"0": {"head_dim": 8}}},
            "nothing for layers with",
        ),
        ("Qwen3ForCausalLM", {"layer_types": ["linear_attention"] * 2}, "'linear_attention'"),
        ("BambaForCausalLM", {**MAMBA_SIZES, "mamba_d_head": 8}, "expected 128 features together"),
        ("BambaForCausalLM", {**MAMBA_SIZES, "mamba_n_groups": 3}, "multiple of mamba_n_groups=3"),
        ("BambaForCausalLM", {**MAMBA_SIZES, "hidden_act": "gelu"}, "'gelu' .* expected silu"),
        ("BambaForCausalLM", {**MAMBA_SIZES, "time_step_limit": [2, 1]}, "time_step_limit .2, 1."),
        ("FalconH1ForCausalLM", {**MAMBA_SIZES, "mlp_multipliers": [1]}, "1 mlp_mult.* expected 2"),
        ("GraniteMoeHybridForCausalLM", {"layer_types": ["rwkv"] * 2}, "'rwkv' in layer_types"),
        ("NemotronHForCausalLM", {"hybrid_override_pattern": "MX"}, "pattern 'MX', expected"),
        (
            "ChatGLMModel",
            {"position_encoding_2d": True},
            "the first ChatGLM, which is",
        ),
        ("ChatGLMModel", {"vision_config": {"hidden_size": 8}}, "ChatGLM with images"),
        ("PanguEmbeddedForCausalLM", {"param_sink_number": 128}, "param_sink_number 128"),
        ("PanguUltraMoEForCausalLM", {"router_enable_expert_bias": True}, "expert_bias True"),
        ("PanguUltraMoEForCausalLM", {"attention_q_lora_dim": "x"}, "'x', expected an int of 0"),
        (
            "TeleChat2ForCausalLM",
            {"apply_residual_connection_post_layernorm": True},
            "post_layernorm True",
        ),
        ("TeleChat2ForCausalLM", {"base_seqlen": 0}, "base_seqlen 0, expected an int over 0"),
        ("ChatGLMModel", {}, "has no multi_query_attention"),
        ("ChatGLMModel", {**CHATGLM, "rmsnorm": False}, "rmsnorm False, which is not"),
        ("ChatGLMModel", {**CHATGLM, "quantization_bit": 4}, "quantization_bit 4, which is not"),
        ("ChatGLMModel", {**CHATGLM, "pre_seq_len": 128}, "pre_seq_len 128, which is not"),
        ("ChatGLMModel", {**CHATGLM, "rope_ratio": 4}, "rope_ratio 4.*a _name_or_path with"),
    ],
)
def test_unsupported_setting_is_refused_by_name(
    architecture: str, settings: dict[str, Any], says: str
) -> None:
    config = {**checkpoints.SIZES, "num_hidden_layers": 2, "layer_norm_eps": 1e-5, **settings}
    with pytest.raises(StartError, match=says):
        load_definition({**config, "architectures": [architecture]})


PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "granite4-mamba": ("layer_types", {"layer_types": ["mamba", "attention", "mamba"]}),
    "nemotron-h": ("layers_block_type", {"hybrid_override_pattern": "M-*M"}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_mamba_layers_have_published_or_transformers_names(name: str) -> None:
    config, (key, published) = checkpoints.configuration(name), PUBLISHED[name]
    others = {name: value for name, value in config.items() if name != key}
    assert load_definition(others | published) == load_definition(config)


def test_time_steps_without_a_limit_are_written_in_two_ways() -> None:
    config = checkpoints.configuration("bamba")
    assert config["time_step_limit"][1] == float("inf")
    saved = config | {"time_step_limit": [0.0, {"__float__": "Infinity"}]}
    assert load_definition(saved) == load_definition(config)


@pytest.mark.parametrize(
    ("told", "shared"),
    [
        ({"_name_or_path": "./my-chatglm2-32k"}, {"rope_scaling": {"type": "linear", "factor": 4}}),
        ({"_name_or_path": "/models/ChatGLM3-tuned"}, {"rope_theta": 40000.0}),
        ({"padded_vocab_size": 151552}, {"rope_theta": 40000.0}),
    ],
)
def test_the_ratio_of_chatglm_divides_positions_or_multiplies_the_base(
    told: dict[str, Any], shared: dict[str, Any]
) -> None:
    """By the generation, or as the configuration says itself."""
    config = {**checkpoints.SIZES, **CHATGLM, "architectures": ["ChatGLMModel"], "rope_ratio": 4}
    found, _ = load_definition({**config, **told})
    expected, _ = load_definition({**config, **shared})
    assert found.rope == expected.rope


@pytest.mark.parametrize(
    ("settings", "base"),
    [
        ({"training_seqlen": 8192, "base_seqlen": 8192}, 10000.0),  # 7B
        ({"training_seqlen": 32768, "base_seqlen": 8192}, 10000.0 * 7 ** (16 / 14)),  # 35B-32K
        ({"training_seqlen": 9000, "base_seqlen": 8192}, 10000.0 * 3 ** (16 / 14)),
    ],
)
def test_the_rotary_base_of_telechat_grows_with_doublings(
    settings: dict[str, Any], base: float
) -> None:
    config = {**checkpoints.SIZES, "architectures": ["TeleChat2ForCausalLM"], **settings}
    spec, _ = load_definition(config)
    assert spec.rope.inv_freq[1] == pytest.approx(base ** (-2 / 16))
    assert spec.max_position_embeddings == settings["training_seqlen"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("PanguProMoEForCausalLM", "one expert from each group"),
        ("PanguProMoEV2ForCausalLM", "keys that belong to no token"),
        ("TeleChat3ForCausalLM", "later than TeleChat2"),
    ],
)
def test_later_families_are_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(StartError, match=why):
        load_definition({**checkpoints.SIZES, "architectures": [name]})
