"""Values of an architecture that config.json may leave out.  Plain tables."""

from typing import Any

# Where the architecture's default differs from Llama's.
DEFAULTS: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {
        "tie_word_embeddings": True,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
    },
    "Qwen2ForCausalLM": {"use_sliding_window": False},
    "Qwen3ForCausalLM": {"use_sliding_window": False},
    "Qwen3MoeForCausalLM": {"use_sliding_window": False},
    "Gemma2ForCausalLM": {
        "tie_word_embeddings": True,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
    },
    "Gemma3ForCausalLM": {
        "tie_word_embeddings": True,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "rms_norm_eps": 1e-6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    },
    "MixtralForCausalLM": {"norm_topk_prob": True},
}
DEFAULTS["Gemma3ForConditionalGeneration"] = DEFAULTS["Gemma3ForCausalLM"]
QKV_BIASED = ("Qwen2ForCausalLM",)
QK_NORMED = (
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
)
