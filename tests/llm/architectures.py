"""Tiny random checkpoints of the architectures that `checkpoints` does not have, two layers each:
what a configuration of transformers has beyond `checkpoints.SIZES`.

A row is what a newcomer is tested with.  Windows, scales and groups are set so that they matter
within a hundred tokens.
"""

from typing import Any

from tests.llm import gguf_rows

WINDOWED = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]}
NEOX_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
HALF_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
MINISTRAL_ROPE = {
    "type": "yarn",
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.5,
}
OLMO3_ROPE = {
    "full_attention": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
MAMBA = {
    "num_hidden_layers": 3, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 24,
    "mamba_n_groups": 2,
}  # fmt: skip
NEMOTRON = {
    "mamba_num_heads": 8, "mamba_head_dim": 12, "ssm_state_size": 24, "n_groups": 2,
    "head_dim": 16, "layer_norm_epsilon": 1e-5,
}  # fmt: skip
MULTIPLIERS = {
    "num_hidden_layers": 2, "embedding_multiplier": 1.5, "lm_head_multiplier": 0.6,
    "mlp_multipliers": [0.7, 1.3], "key_multiplier": 0.8, "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 1.2, "ssm_in_multiplier": 1.1, "ssm_out_multiplier": 0.7,
    "ssm_multipliers": [0.6, 1.2, 0.8, 1.4, 0.5],
}  # fmt: skip
MLA = {
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
    "head_dim": 8,
}
MLA_YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0,
    "mscale_all_dim": 0.8, "original_max_position_embeddings": 32,
}  # fmt: skip
GROUPED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.8,
}
DELTA_RULE = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
GEMMA4 = {
    "sliding_window": 24,
    "global_head_dim": 32,
    "vocab_size_per_layer_input": 160,
    "tie_word_embeddings": True,
}
GEMMA3N = {
    "sliding_window": 24, "vocab_size_per_layer_input": 150, "hidden_size_per_layer_input": 8,
    "laurel_rank": 8, "num_hidden_layers": 6, "num_kv_shared_layers": 3,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "activation_sparsity_pattern": [0.6, 0.9, 0.0, 0.3, 0.0, 0.0],
    "tie_word_embeddings": True, "final_logit_softcapping": 8.0,
}  # fmt: skip
# name -> (class of transformers, what its config has beyond SIZES)
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0]}),
    "gemma": ("Gemma", {"tie_word_embeddings": True}),
    "gemma3n": ("Gemma3n", GEMMA3N),
    "gemma3n-uneven": (
        "Gemma3n",
        {**GEMMA3N, "altup_num_inputs": 3, "altup_active_idx": 1, "altup_correct_scale": False,
         "intermediate_size": [96, 96, 64, 64, 96, 96]},
    ),
    "gemma4": ("Gemma4", {**GEMMA4, "num_kv_shared_layers": 3, "hidden_size_per_layer_input": 8,
                          "use_double_wide_mlp": True, "num_hidden_layers": 6,
                          "layer_types": ["sliding_attention", "full_attention"] * 3}),
    "gemma4-large": (
        "Gemma4",
        {**GEMMA4, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True,
         "num_global_key_value_heads": 1, "final_logit_softcapping": 8.0, "num_hidden_layers": 3,
         "layer_types": ["sliding_attention", "full_attention", "full_attention"]},
    ),
    "gemma4-moe": (
        "Gemma4",
        {**GEMMA4, "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 8,
         "top_k_experts": 3, "moe_intermediate_size": 32,
         "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "olmo": ("Olmo", {}),
    "olmo2": ("Olmo2", {"attention_bias": True}),
    "olmo3": ("Olmo3", {**WINDOWED, "rope_parameters": OLMO3_ROPE}),
    "granite": (
        "Granite",
        {"embedding_multiplier": 3.0, "residual_multiplier": 0.7, "attention_multiplier": 0.2,
         "logits_scaling": 2.5},
    ),
    "granite4": (
        "GraniteMoeHybrid",
        {"num_local_experts": 0, "shared_intermediate_size": 96, "position_embedding_type": "rope",
         "layer_types": ["attention"] * 2, "attention_multiplier": 0.3},
    ),
    "granite-moe": (
        "GraniteMoe",
        {"num_local_experts": 8, "num_experts_per_tok": 3, "attention_multiplier": 0.3,
         "residual_multiplier": 0.7},
    ),
    "cohere": ("Cohere", {"logit_scale": 0.5, "layer_norm_eps": 1e-6}),
    "cohere-normed": ("Cohere", {"use_qk_norm": True}),
    "cohere2": ("Cohere2", WINDOWED),
    "exaone4": ("Exaone4", WINDOWED),
    "exaone4-full": ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "ernie4_5": ("Ernie4_5", {"use_bias": True}),
    "ernie4_5-moe": (
        "Ernie4_5_Moe",
        {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 32,
         "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_end_index": -1},
    ),
    "ernie4_5-moe-biased": (
        "Ernie4_5_Moe",
        {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 32, "use_bias": True,
         "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_norm_min": 0.7},
    ),
    "hunyuan": (
        "HunYuanDenseV1",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 20.0,
                             "factor": 1.0}},
    ),
    "seed-oss": ("SeedOss", {"attention_out_bias": True, "mlp_bias": True}),
    "ministral": ("Ministral", WINDOWED),
    "ministral3": ("Ministral3", {"rope_parameters": MINISTRAL_ROPE}),
    "glm": ("Glm", {}),
    "glm4": ("Glm4", {}),
    "glm4-moe": ("Glm4Moe", {**GROUPED, "use_qk_norm": True, "attention_bias": True}),
    "dots1": ("Dots1", {**GROUPED, "norm_topk_prob": True}),
    "qwen2-moe": (
        "Qwen2Moe",
        {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
         "shared_expert_intermediate_size": 48},
    ),
    "olmoe": ("Olmoe", {"num_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 32}),
    "phi": ("Phi", {"rope_parameters": HALF_ROPE}),
    "falcon": ("Falcon", {"multi_query": True}),
    "falcon-new": (
        "Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}
    ),
    "falcon-alibi": (
        "Falcon",
        {"alibi": True, "parallel_attn": False, "multi_query": False, "bias": True},
    ),
    "gpt-neox": ("GPTNeoX", {"rope_parameters": NEOX_ROPE}),
    "gpt-neox-serial": (
        "GPTNeoX", {"use_parallel_residual": False, "attention_bias": False}
    ),
    "stablelm": ("StableLm", {"use_qkv_bias": True}),
    "stablelm-parallel": ("StableLm", {"use_parallel_residual": True}),
    "starcoder2": ("Starcoder2", {"sliding_window": 24}),
    "opt": ("OPT", {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "bloom": ("Bloom", {}),
    "gptj": ("GPTJ", {"rotary_dim": 8}),
    "nemotron": ("Nemotron", {"mlp_bias": True}),
    "arcee": ("Arcee", {}),
    "llama4": (
        "Llama4",
        {"num_local_experts": 4, "intermediate_size_mlp": 80, "no_rope_layers": [1, 0],
         "moe_layers": [1], "attention_chunk_size": 512, "floor_scale": 16, "attn_scale": 0.5},
    ),
    "gpt-oss": ("GptOss", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 24,
                           "swiglu_limit": 1.5}),
    "deepseek-v2": ("DeepseekV2", {**MLA, **GROUPED, "topk_method": "group_limited_greedy"}),
    "deepseek-v2-lite": (
        "DeepseekV2",
        {**MLA, **GROUPED, "q_lora_rank": None, "topk_method": "greedy",
         "rope_parameters": MLA_YARN},
    ),
    "deepseek-v3": ("DeepseekV3", {**MLA, **GROUPED}),
    "minicpm3": (
        "MiniCPM3", {**MLA, "scale_emb": 3, "scale_depth": 1.1, "dim_model_base": 16}
    ),
    "lfm2": ("Lfm2", {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2,
                      "block_multiple_of": 16}),
    "lfm2-biased": ("Lfm2", {"num_hidden_layers": 3, "conv_bias": True, "conv_L_cache": 4,
                             "layer_types": ["conv", "conv", "full_attention"],
                             "block_auto_adjust_ff_dim": False}),
    "qwen3-next": (
        "Qwen3Next",
        {**DELTA_RULE, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
         "shared_expert_intermediate_size": 48, "mlp_only_layers": [1]},
    ),
    "lfm2-moe": (
        "Lfm2Moe",
        {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"],
         "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
         "num_dense_layers": 1, "routed_scaling_factor": 1.4},
    ),
    "granite4-mamba": (
        "GraniteMoeHybrid",
        {**MAMBA, "layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 8,
         "num_experts_per_tok": 3, "shared_intermediate_size": 48, "embedding_multiplier": 3.0,
         "residual_multiplier": 0.7, "attention_multiplier": 0.3, "logits_scaling": 2.5},
    ),
    "bamba": ("Bamba", {**MAMBA, "attn_layer_indices": [1], "mamba_proj_bias": True}),
    "falcon-h1": ("FalconH1", {**MAMBA, "mamba_d_ssm": 96, "mamba_d_head": 12, **MULTIPLIERS}),
    "falcon-h1-normed": (
        "FalconH1",
        {**MAMBA, "mamba_d_ssm": 128, "mamba_rms_norm": True,
         "mamba_conv_bias": False, "projectors_bias": True, "time_step_limit": [0.3, 1.2]},
    ),
    "mamba2": ("Mamba2", {"num_heads": 8, "head_dim": 16, "state_size": 24, "n_groups": 2}),
    "nemotron-h": (
        "NemotronH",
        {**NEMOTRON, "hybrid_override_pattern": "M-*M", "use_bias": True, "mlp_bias": True},
    ),
    "nemotron-h-moe": (
        "NemotronH",
        {**NEMOTRON, "hybrid_override_pattern": "ME*E", "n_routed_experts": 8, "n_group": 2,
         "num_experts_per_tok": 3, "topk_group": 1, "moe_intermediate_size": 32,
         "moe_shared_expert_intermediate_size": 48, "moe_latent_size": 24,
         "routed_scaling_factor": 1.4},
    ),
    "qwen3_5": ("Qwen3_5", DELTA_RULE),
    "qwen3_5-moe": (
        "Qwen3_5Moe",
        {**DELTA_RULE, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
         "shared_expert_intermediate_size": 48},
    ),
}  # fmt: skip
# Classes of models with images too.
TEXT_PARTS = ("Gemma3", "Gemma3n", "Gemma4", "Llama4", "Qwen3_5", "Qwen3_5Moe")
ALL = tuple(TRANSFORMERS)
TRANSFORMERS |= gguf_rows.ROWS  # to be written as GGUF files
