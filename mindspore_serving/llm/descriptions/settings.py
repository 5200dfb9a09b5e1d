"""Settings of config.json: those that are read, those without effect, and unknown ones.

A setting is followed if a description reads it, which `TrackedSettings` records. Those in
`OPTIONAL` are read only for architectures that have them. Settings that change no result are in
`WITHOUT_EFFECT`, or in the `unused` of an architecture. Knows no tensor.
"""

from collections.abc import Iterator, Mapping
from typing import Any

_ROPE = ("rope_parameters", "rope_scaling")
_NESTED = (*_ROPE, "full_attention", "sliding_attention")

WINDOW = ("sliding_window",)
TYPED_WINDOW = (*WINDOW, "layer_types")
SWITCHED_WINDOW = (*TYPED_WINDOW, "use_sliding_window", "max_window_layers")
PATTERN = "sliding_window_pattern"
SCALES = ("embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier")
PROJECTION_SCALES = (
    "embedding_multiplier", "lm_head_multiplier", "attention_in_multiplier",
    "attention_out_multiplier", "key_multiplier", "mlp_multipliers", "ssm_in_multiplier",
    "ssm_out_multiplier", "ssm_multipliers",
)  # fmt: skip
GATED = ("norm_topk_prob",)
SPARSE = (*GATED, "mlp_only_layers", "decoder_sparse_step")
GROUPED = (*GATED, "n_group", "topk_group", "routed_scaling_factor", "n_shared_experts")
DENSE_FIRST = (*GROUPED, "first_k_dense_replace")
LAYER_INPUTS = ("num_kv_shared_layers", "hidden_size_per_layer_input", "vocab_size_per_layer_input")
# Read only for architectures whose row names them (`Architecture.follows`).
OPTIONAL = frozenset({
    *SWITCHED_WINDOW, PATTERN, *SCALES, *PROJECTION_SCALES, *SPARSE, *DENSE_FIRST, *LAYER_INPUTS,
    "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar",
    "rope_local_base_freq", "attention_k_eq_v", "global_head_dim", "num_global_key_value_heads",
    "altup_num_inputs", "activation_sparsity_pattern", "no_rope_layers",
    "no_rope_layer_interval", "attn_temperature_tuning", "moe_layer_end_index",
    "moe_num_shared_experts", "moe_latent_size", "moe_norm_min",
})  # fmt: skip

# Reason why settings change no result of any architecture -> their names.
WITHOUT_EFFECT: Mapping[str, tuple[str, ...]] = {
    "training": (
        "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop",
        "classifier_dropout", "classifier_dropout_prob", "dropout", "embd_pdrop",
        "embedding_dropout", "hidden_dropout", "hidden_dropout_prob", "layerdrop",
        "mlp_dropout", "qa_dropout", "resid_pdrop", "residual_dropout",
        "seq_classif_dropout", "token_classifier_dropout", "initializer_range",
        "initializer_factor", "initializer_cutoff_factor", "init_std",
        "rescale_prenorm_residual", "time_step_min", "time_step_max", "time_step_floor",
        "router_aux_loss_coef", "router_jitter_noise", "router_z_loss_coef",
        "aux_loss_alpha", "seq_aux", "z_loss_weight", "z_loss_coefficient",
        "output_router_logits", "moe_use_aux_free", "moe_capacity",
        "gradient_checkpointing", "use_reentrant", "bias_dropout_fusion", "altup_coef_clip",
        "bias_update_speed", "deterministic_flash_attn", "sparse_pred_ignore_index",
        "sparse_prediction", "decoder_bias", "classifier_bias",
    ),
    "implementation or dtype of the same computation": (
        "use_cache", "dtype", "torch_dtype", "attn_implementation", "_attn_implementation",
        "_attn_implementation_autoset", "_flash_attn_2_enabled", "use_flash_attn",
        "flash_attn", "chunk_size", "mamba_chunk_size", "chunk_size_feed_forward",
        "use_mamba_kernels", "residual_in_fp32", "fp32_residual_connection",
        "attention_softmax_in_fp32", "apply_query_key_layer_scaling",
        "reorder_and_upcast_attn", "slow_but_exact", "mamba_ssm_cache_dtype",
        "cache_implementation", "reference_compile", "repad_logits_with_grad",
        "use_bfloat16", "use_fused_rms_norm", "fuse_rms_norm", "ep_size", "ep_group",
        "tensor_parallel_degree", "sequence_parallel", "moe_shared_expert_overlap",
        "use_kernels", "num_logits_to_keep", "keys_to_ignore_at_inference", "torchscript",
    ),
    "sizes that follow from tensors": (
        "moe_intermediate_size", "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size", "laurel_rank", "time_step_rank",
        "qk_head_dim", "use_double_wide_mlp", "type_vocab_size",
    ),
    "read elsewhere: tokens, labels, quantised matrices, images, heads": (
        "architectures", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id",
        "sep_token_id", "cls_token_id", "mask_token_id", "eod_token_id", "im_start_id",
        "im_end_id", "pad_id", "bos_id", "eos_id", "sep_id", "decoder_start_token_id",
        "suppress_tokens", "begin_suppress_tokens", "id2label", "label2id", "num_labels",
        "problem_type", "quantization_config", "compression_config", "text_config",
        "vision_config", "audio_config", "classifier_pooling", "classifier_activation",
        "classifier_from_token", "method", "sentence_transformers",
        "sbert_ce_default_activation_function", "image_token_id", "image_token_index",
        "_pad_token_id", "scale_factor", "vision_feature_layer",
        "vision_feature_select_strategy", "mm_tokens_per_image",
        "multimodal_projector_bias", "projector_hidden_act", "image_seq_length",
        "spatial_merge_size", "image_grid_pinpoints", "vision_aspect_ratio", "downsample_ratio",
        "use_image_newline_parameter", "video_token_index", "vision_soft_tokens_per_image",
        "audio_soft_tokens_per_image", "audio_token_id", "video_token_id", "vision_token_id",
        "audio_token_index", "insert_layer_id", "downsample_mode", "merge_kernel_size",
        "merger_times", "patch_size", "image_size", "drop_vision_last_layer",
        "timestamp_token_id",
        *(f"{part}_{side}_token_id" for part in ("image", "video", "vision", "audio")
        for side in ("start", "end")),
        *(f"{mark}_token_{kind}" for mark in ("boi", "eoi", "boa", "eoa") for kind in ("id",
        "index")),
    ),
    "heads that are not computed": (
        "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
        "summary_first_dropout", "num_nextn_predict_layers", "num_mtp_layers",
        "mtp_num_hidden_layers", "mtp_layers_block_type", "mtp_use_dedicated_embeddings",
        "token_classification_bias",
    ),
    "metadata of the file, and outputs of its library": (
        "model_type", "transformers_version", "_name_or_path", "_commit_hash", "auto_map",
        "custom_pipelines", "unsloth_version", "unsloth_fixed", "finetuning_task",
        "task_specific_params", "return_dict", "output_attentions", "output_hidden_states",
        "is_encoder_decoder", "cross_attention_hidden_size", "tie_encoder_decoder",
        "tokenizer_class", "prefix", "tf_legacy_loss", "pruned_heads",
        "remove_invalid_values", "ignore_index", "language", "model_max_length",
        "tokenizer_type", "vocab_file", "base_model_name_or_path",
    ),
    "generation, for which generation_config.json is read": (
        "max_length", "min_length", "do_sample", "early_stopping", "num_beams",
        "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p",
        "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences",
        "output_scores", "return_dict_in_generate", "forced_bos_token_id",
        "forced_eos_token_id", "exponential_decay_length_penalty", "max_new_tokens",
    ),
}  # fmt: skip
NEUTRAL = frozenset(name for names in WITHOUT_EFFECT.values() for name in names)


class TrackedSettings(dict[str, Any]):
    """Settings that record which of them are read.

    Rotary parameters are recorded one by one, as "rope_parameters.factor".
    """

    def __init__(
        self, settings: Mapping[str, Any], read: set[str] | None = None, prefix: str = ""
    ) -> None:
        super().__init__(settings)
        self.read = set() if read is None else read
        self._prefix = prefix

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(self._prefix + key)
        return self[key] if super().__contains__(key) else default

    def __getitem__(self, key: str) -> Any:
        self.read.add(self._prefix + key)
        value = super().__getitem__(key)
        if key in _NESTED and isinstance(value, dict):
            return TrackedSettings(value, self.read, f"{self._prefix}{key}.")
        return value

    def __contains__(self, key: object) -> bool:
        self.read.add(f"{self._prefix}{key}")
        return super().__contains__(key)


def flattened(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` (config.json) with the text part of a multimodal model merged into it."""
    text, tied = config.get("text_config"), "tie_word_embeddings"
    if not isinstance(text, dict):
        return dict(config)
    return {**config, **text, **({tied: True} if config.get(tied) is True else {})}


def settings_of(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Iterate over the settings, as (recorded name, value)."""
    for key, value in config.items():
        if key in _NESTED and isinstance(value, dict):
            yield from settings_of(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
