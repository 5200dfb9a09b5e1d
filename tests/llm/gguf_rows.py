"""Tiny checkpoints whose settings GGUF files can say: what llama.cpp takes for granted, or its
converter does not write, is as in the published models.  See `architectures`.
"""

from typing import Any

HALF_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
MLA = {
    "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 12, "num_key_value_heads": 4, "head_dim": 8,
}  # fmt: skip
EXPERTS = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 32, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.8,
}  # fmt: skip
MLA_YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 0.8,
    "mscale_all_dim": 0.8, "original_max_position_embeddings": 32,
}  # fmt: skip
DELTA_RULE = {
    "num_hidden_layers": 4, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
    "linear_key_head_dim": 32, "linear_value_head_dim": 32, "layer_types": None,
}  # fmt: skip
SHARED = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
          "shared_expert_intermediate_size": 48}  # fmt: skip
MAMBA = {"num_heads": 8, "head_dim": 16, "state_size": 32, "n_groups": 2}
NEMOTRON = {
    "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 32, "n_groups": 2,
    "layer_norm_epsilon": 1e-5,
}  # fmt: skip
MULTIPLIERS = {
    "embedding_multiplier": 1.5, "lm_head_multiplier": 0.6, "mlp_multipliers": [0.7, 1.3],
    "key_multiplier": 0.8, "attention_in_multiplier": 0.9, "attention_out_multiplier": 1.2,
    "ssm_in_multiplier": 1.1, "ssm_out_multiplier": 0.7,
    "ssm_multipliers": [0.6, 1.2, 0.8, 1.4, 0.5],
}  # fmt: skip
HYBRID = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 32, "mamba_n_groups": 2}
GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.7, "logits_scaling": 2.5,
           "attention_multiplier": 0.3}  # fmt: skip
WINDOWS = {"sliding_window": 24, "num_hidden_layers": 4}
# name -> (class of transformers, what its config has beyond SIZES)
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "gguf-smollm3": ("SmolLM3", {"num_hidden_layers": 4}),
    "gguf-phi2": ("Phi", {"rope_parameters": HALF_ROPE, "num_key_value_heads": 4,
                          "intermediate_size": 256}),
    "gguf-starcoder2": ("Starcoder2", {"sliding_window": None}),
    "gguf-gpt-oss": (
        "GptOss", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 24}
    ),
    "gguf-hunyuan": (
        "HunYuanDenseV1",
        {"max_position_embeddings": 32768,
         "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 20.0,
                             "factor": 1.0}},
    ),
    "gguf-command-r": (
        "Cohere", {"logit_scale": 0.5, "tie_word_embeddings": True}
    ),
    "gguf-command-r-plus": (
        "Cohere", {"logit_scale": 0.5, "tie_word_embeddings": True, "use_qk_norm": True}
    ),
    "gguf-cohere2": (
        "Cohere2", {**WINDOWS, "rotary_pct": 1.0, "tie_word_embeddings": True}
    ),
    "gguf-exaone4": ("Exaone4", WINDOWS),
    "gguf-bloom": ("Bloom", {"seq_length": 512}),
    "gguf-gptneox": (
        "GPTNeoX",
        {"rotary_pct": 0.25, "rope_parameters": {**HALF_ROPE, "partial_rotary_factor": 0.25}},
    ),
    "gguf-falcon": ("Falcon", {"multi_query": True, "num_kv_heads": 1}),
    "gguf-falcon-new": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "gguf-deepseek2-lite": (
        "DeepseekV2",
        {**MLA, **EXPERTS, "q_lora_rank": None, "topk_method": "greedy",
         "rope_parameters": MLA_YARN},
    ),
    "gguf-deepseek3": (
        "DeepseekV3", {**MLA, **EXPERTS, "n_group": 4, "topk_group": 2, "norm_topk_prob": True,
                       "scoring_func": "sigmoid"}
    ),
    "gguf-minicpm3": (
        "MiniCPM3",
        {**MLA, "v_head_dim": 16, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
    ),
    "gguf-glm4moe": (
        "Glm4Moe", {**EXPERTS, "use_qk_norm": True, "attention_bias": True,
                    "norm_topk_prob": True}
    ),
    "gguf-ernie4_5": ("Ernie4_5", {}),
    "gguf-ernie4_5-moe": (
        "Ernie4_5_Moe",
        {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 24,
         "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_end_index": -1,
         "num_hidden_layers": 3},
    ),
    "gguf-dots1": (
        "Dots1", {**EXPERTS, "norm_topk_prob": True, "num_key_value_heads": 4,
                  "scoring_func": "sigmoid"}
    ),
    "gguf-lfm2": (
        "Lfm2",
        {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2,
         "block_auto_adjust_ff_dim": False, "tie_word_embeddings": True},
    ),
    "gguf-lfm2-moe": (
        "Lfm2Moe",
        {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"],
         "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
         "num_dense_layers": 1, "tie_word_embeddings": True},
    ),
    "gguf-llama4": (
        "Llama4",
        {"num_local_experts": 4, "intermediate_size": 32, "intermediate_size_mlp": 80,
         "num_hidden_layers": 4, "interleave_moe_layer_step": 2, "num_experts_per_tok": 1},
    ),
    "gguf-gemma3n": (
        "Gemma3n",
        {"sliding_window": 24, "vocab_size_per_layer_input": 160, "laurel_rank": 8,
         "hidden_size_per_layer_input": 16, "num_hidden_layers": 6, "num_kv_shared_layers": 3,
         "layer_types": ["sliding_attention", "full_attention"] * 3,
         "activation_sparsity_pattern": [0.6, 0.9, 0.0, 0.3, 0.0, 0.0],
         "tie_word_embeddings": True},
    ),
    "gguf-qwen3-next": ("Qwen3Next", {**DELTA_RULE, **SHARED}),
    "gguf-qwen35": ("Qwen3_5", DELTA_RULE),
    "gguf-qwen35-moe": ("Qwen3_5Moe", {**DELTA_RULE, **SHARED}),
    "gguf-mamba2": ("Mamba2", MAMBA),
    "gguf-falcon-h1": ("FalconH1", {**HYBRID, **MULTIPLIERS, "mamba_d_ssm": 128}),
    "gguf-falcon-h1-normed": (
        "FalconH1", {**HYBRID, "mamba_d_ssm": 128, "mamba_rms_norm": True,
                     "mamba_norm_before_gate": False}
    ),
    "gguf-granite-hybrid": (
        "GraniteMoeHybrid",
        {**HYBRID, **GRANITE, "num_hidden_layers": 3, "num_local_experts": 0,
         "layer_types": ["mamba", "attention", "mamba"], "shared_intermediate_size": 96,
         "attention_bias": True},
    ),
    "gguf-granite-hybrid-moe": (
        "GraniteMoeHybrid",
        {**HYBRID, **GRANITE, "num_hidden_layers": 3, "num_local_experts": 8,
         "layer_types": ["mamba", "attention", "mamba"], "shared_intermediate_size": 48,
         "num_experts_per_tok": 3, "intermediate_size": 32},
    ),
    "gguf-bamba": ("Bamba", {**HYBRID, "attn_layer_indices": [1]}),
    "gguf-nemotron-h": ("NemotronH", {**NEMOTRON, "hybrid_override_pattern": "M-*M"}),
    "gguf-nemotron-h-moe": (
        "NemotronH",
        {**NEMOTRON, **EXPERTS, "hybrid_override_pattern": "ME*E", "n_shared_experts": 1,
         "moe_shared_expert_intermediate_size": 48, "moe_latent_size": 32, "topk_group": 1,
         "norm_topk_prob": True},
    ),
    "gguf-olmo2": ("Olmo2", {}),
    "gguf-olmoe": ("Olmoe", {"num_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 32,
                             "rms_norm_eps": 1e-5, "num_key_value_heads": 4}),
}  # fmt: skip
