"""Types of the values in config.json, checked before any of them is used.

Only keys that some description reads are known. Knows no architecture.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mindspore_serving.errors import StartError

MAX_INT = 2**31 - 1
MAX_HEAD_FEATURES = 1 << 16
_OF_HEADS = (
    *("head_dim", "global_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim", "conv_L_cache"),
    *("mamba_d_head", "mamba_d_state", "mamba_d_conv", "mamba_head_dim", "ssm_state_size"),
    *("conv_kernel", "state_size", "kv_channels"),
)
_MAX_COUNT = 4096  # layers, heads and experts: something is built for each
_COUNTED = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_attention_heads", "n_head", "n_heads"),
    *("num_key_value_heads", "num_kv_heads", "num_local_experts", "num_experts"),
    *("num_global_key_value_heads", "altup_num_inputs"),
    *("n_routed_experts", "moe_num_experts", "linear_num_key_heads", "linear_num_value_heads"),
    *("mamba_n_heads", "mamba_n_groups", "mamba_num_heads", "num_heads", "n_groups"),
    *("num_layers", "multi_query_group_num", "num_routed_experts"),
)


def max_value(name: str) -> int:
    """Return the largest int that the key `name` may have."""
    return MAX_HEAD_FEATURES if name in _OF_HEADS else _MAX_COUNT if name in _COUNTED else MAX_INT


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INT


def _is_number(value: Any) -> bool:
    is_any = isinstance(value, int | float) and not isinstance(value, bool)
    return is_any and 0 <= value < 1e30


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list_of(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_valid, value))


_Kind = tuple[str, Callable[[Any], bool], Sequence[str]]
_ROPE: tuple[_Kind, ...] = (
    (
        "a number of 0 or more",
        _is_number,
        ("rope_theta", "partial_rotary_factor", "factor", "low_freq_factor", "high_freq_factor",
         "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor",
         "original_max_position_embeddings", "alpha", "llama_4_scaling_beta"),
    ),
    ("a text", _is_text, ("rope_type", "type")),
    ("true or false", lambda value: isinstance(value, bool), ("truncate",)),
    ("a list of numbers of 0 or more", _is_list_of(_is_number), ("short_factor", "long_factor")),
    ("a list of ints", _is_list_of(_is_int), ("mrope_section",)),
)  # fmt: skip
_KINDS: tuple[_Kind, ...] = (
    (
        "a number of 0 or more",
        _is_number,
        ("rope_theta", "rope_local_base_freq", "query_pre_attn_scalar", "partial_rotary_factor",
         "attn_logit_softcapping", "final_logit_softcapping", "rotary_pct", "rotary_emb_base",
         "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling",
         "logit_scale", "scale_emb", "scale_depth", "routed_scaling_factor", "attn_scale",
         "swiglu_alpha", "swiglu_limit", "block_ffn_dim_multiplier", "lm_head_multiplier",
         "key_multiplier", "attention_in_multiplier", "attention_out_multiplier",
         "ssm_in_multiplier", "ssm_out_multiplier", "rope_ratio", "layernorm_epsilon"),
    ),
    (
        "an int of 0 or more",
        _is_int,
        ("sliding_window", "max_window_layers", "decoder_sparse_step",
         "original_max_position_embeddings", "no_rope_layer_interval", "first_k_dense_replace",
         "moe_layer_start_index", "moe_layer_interval", "interleave_moe_layer_step", "rotary_dim",
         "n_shared_experts", "moe_num_shared_experts", "n_group", "topk_group", "floor_scale",
         "attention_chunk_size", "q_lora_rank", "dim_model_base", "num_dense_layers",
         "num_kv_shared_layers", "hidden_size_per_layer_input", "altup_active_idx",
         "attention_q_lora_dim", "num_shared_experts", "param_sink_number"),
    ),
    (
        "true or false",
        lambda value: isinstance(value, bool),
        ("tie_word_embeddings", "use_sliding_window", "attention_bias", "bias", "mlp_bias",
         "norm_topk_prob", "qkv_bias", "use_qkv_bias", "use_bias", "enable_bias",
         "attention_out_bias", "use_qk_norm", "use_parallel_residual", "qk_layernorm",
         "parallel_attn", "new_decoder_architecture", "multi_query", "alibi",
         "attn_temperature_tuning", "rope_interleave", "conv_bias", "tie_embedding",
         "block_auto_adjust_ff_dim", "use_expert_bias", "mamba_conv_bias", "mamba_proj_bias",
         "projectors_bias", "mamba_rms_norm", "mamba_norm_before_gate", "use_conv_bias",
         "attention_k_eq_v", "enable_moe_block", "altup_correct_scale", "add_qkv_bias",
         "add_bias_linear", "position_encoding_2d", "embed_layernorm", "sandwich_norm"),
    ),
    ("a text", _is_text, ("hidden_act", "hidden_activation", "activation_function", "activation",
                         "mamba_hidden_act", "mlp_hidden_act", "hybrid_override_pattern")),
    (
        "an object",
        lambda value: isinstance(value, dict),
        ("rope_scaling", "rope_parameters", "text_config", "per_layer_config"),
    ),
    (
        "an int of 0 or more, or letters",
        lambda value: _is_int(value) or _is_text(value),
        ("sliding_window_pattern",),
    ),
    ("a list of texts", _is_list_of(_is_text), ("layer_types", "architectures",
                                                "layers_block_type")),
    ("a list", lambda value: isinstance(value, list), ("time_step_limit",)),
    ("a list of numbers of 0 or more", _is_list_of(_is_number),
     ("mlp_multipliers", "ssm_multipliers", "activation_sparsity_pattern")),
    ("a list of ints", _is_list_of(_is_int), ("mlp_only_layers", "no_rope_layers", "moe_layers",
                                               "full_attn_idxs",
                                               "attn_layer_indices")),
)  # fmt: skip
_LAYERS = ("full_attention", "sliding_attention")  # rope_parameters may have values for each


def check_types(config: Mapping[str, Any]) -> None:
    """Raise StartError for the first key with a value of the wrong type; null counts as missing."""
    _check("", config, _KINDS)
    for name in ("rope_scaling", "rope_parameters"):
        rope = config.get(name) or {}
        _check(f"{name}.", rope, _ROPE)
        for layer in _LAYERS:
            _check(
                f"{name}.", rope, (("an object", lambda value: isinstance(value, dict), (layer,)),)
            )
            _check(f"{name}.{layer}.", rope.get(layer) or {}, _ROPE)


def _check(prefix: str, config: Mapping[str, Any], kinds: Sequence[_Kind]) -> None:
    for accepted, is_valid, names in kinds:
        for name in names:
            value = config.get(name)
            if value is not None and not is_valid(value):
                quoted = repr(value)[:80]
                raise StartError(f"config.json has {prefix}{name} {quoted}, expected {accepted}")


def size(config: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    """Return the first of `names` that `config` has, else the default.

    Raises StartError unless it is an int over 0 within its limit.
    """
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise StartError(f"config.json has {name} {value!r}, expected an int over 0")
        if value > max_value(name):
            quoted = str(value) if value < 10**40 else "a number of over 40 digits"
            raise StartError(f"config.json has {name} {quoted}, expected at most {max_value(name)}")
        return value
    if default is None:
        raise StartError(f"config.json has no {' or '.join(names)}")
    return default


def number(config: Mapping[str, Any], *names: str) -> float:
    """Return the first of `names` that `config` has.

    Raises StartError unless it is a finite number over 0.
    """
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, int | float) or not 0 < value < 1e30:
            raise StartError(f"config.json has {name} {value!r}, expected a number over 0")
        return float(value)
    raise StartError(f"config.json has no {' or '.join(names)}")
