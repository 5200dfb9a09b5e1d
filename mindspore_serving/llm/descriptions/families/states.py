"""Architectures most of whose layers have a state instead of keys and values.

A row names only differences from Llama.
"""

from dataclasses import replace
from typing import Any

from mindspore_serving.llm.descriptions.architecture import (
    CONVOLUTION,
    DELTA_RULE,
    INTERLEAVED,
    OF_HEAD,
    RMS_PLUS_ONE,
    Architecture,
    Config,
    Experts,
    Names,
)
from mindspore_serving.llm.descriptions.config_types import size
from mindspore_serving.llm.descriptions.families.llama import ATTENTION_BIASED, PLAIN
from mindspore_serving.llm.descriptions.layer_kinds import FULL
from mindspore_serving.llm.descriptions.settings import SPARSE


def _lfm2(config: Config) -> Config:
    """List the layers by those that attend, and narrow the feed-forward block."""
    full = config.get("full_attn_idxs")
    kinds = config.get("layer_types")
    if kinds is None and full is not None:
        count = size(config, "num_hidden_layers")
        kinds = [FULL if i in full else CONVOLUTION for i in range(count)]
    return {
        "layer_types": kinds,
        "intermediate_size": _lfm2_width(config),
        "tie_word_embeddings": config.get("tie_embedding", config["tie_word_embeddings"]),
        "first_k_dense_replace": config.get("num_dense_layers"),
    }


def _lfm2_width(config: Config) -> int:
    width = size(config, "block_ff_dim", "intermediate_size")
    if not config["block_auto_adjust_ff_dim"]:
        return width
    width, factor = 2 * width // 3, config.get("block_ffn_dim_multiplier")
    if factor is None:
        return width
    part = size(config, "block_multiple_of")
    return -(-int(factor * width) // part) * part


def _qwen3_next(config: Config) -> Config:
    """List the layers: every `full_attention_interval`-th attends."""
    count, every = size(config, "num_hidden_layers"), size(config, "full_attention_interval")
    kinds = [DELTA_RULE if (i + 1) % every else FULL for i in range(count)]
    return {"layer_types": config.get("layer_types") or kinds}


def _lfm2_moe(architecture: Architecture, config: Config) -> Architecture:
    assert architecture.experts is not None
    correction = "feed_forward.expert_bias" if config["use_expert_bias"] else ""
    return replace(architecture, experts=replace(architecture.experts, correction=correction))


LFM2 = Architecture(
    names=Names(
        norm="model.embedding_norm", attention_norm="operator_norm", mlp_norm="ffn_norm",
        q_norm="self_attn.q_layernorm", k_norm="self_attn.k_layernorm",
        output="self_attn.out_proj", gate_up=("feed_forward.w1", "feed_forward.w3"),
        down="feed_forward.w2",
    ),
    unused=("conv_dim", "conv_dim_out", "conv_use_xavier_init", "block_dim", "block_mlp_init_scale",
            "block_norm_eps", "block_out_init_scale", "block_use_swiglu", "block_use_xavier_init",
            "use_pos_enc", "theta", "num_heads", "conv_bias"),
    qk_norm=OF_HEAD, state=CONVOLUTION, follows=("layer_types",), read=_lfm2, fixed=PLAIN,
    defaults={"tie_word_embeddings": True, "rope_theta": 1_000_000.0, "conv_L_cache": 3,
              "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0,
              "block_multiple_of": 256},
)  # fmt: skip
LFM2_MOE = replace(
    LFM2,
    experts=Experts(
        router="feed_forward.gate", prefix="feed_forward.experts", gate="w1", up="w3", down="w2",
        scores="sigmoid",
    ),
    variant=_lfm2_moe, follows=("layer_types", "norm_topk_prob", "routed_scaling_factor"),
    defaults={**LFM2.defaults, "block_auto_adjust_ff_dim": False, "norm_topk_prob": True,
              "use_expert_bias": True, "num_dense_layers": 2},
)  # fmt: skip


QWEN3_5 = Architecture(
    norm=RMS_PLUS_ONE, qk_norm=OF_HEAD, output_gate=True, state=DELTA_RULE, read=_qwen3_next,
    **ATTENTION_BIASED, follows=("layer_types",), fixed=PLAIN,
    defaults={"partial_rotary_factor": 0.25, "full_attention_interval": 4, "head_dim": 256},
)  # fmt: skip
SHARED = Experts(shared="mlp.shared_expert", shared_gate="mlp.shared_expert_gate")
QWEN3_NEXT = replace(
    QWEN3_5,
    experts=SHARED,
    follows=("layer_types", *SPARSE),
    defaults={**QWEN3_5.defaults, "norm_topk_prob": True},
)
QWEN3_5_MOE = replace(
    QWEN3_NEXT,
    follows=("layer_types",),
    experts=replace(SHARED, joined=("gate_up_proj", "down_proj"), joined_rows=True),
)

IN_THREE_PARTS: dict[str, Any] = {  # positions of images
    "takes_images": True, "image_axes": INTERLEAVED,
    "unused": ("rope_scaling.mrope_interleaved", "rope_parameters.mrope_interleaved"),
}  # fmt: skip
ROWS: dict[str, Architecture] = {
    "MiniCPMV4_6ForConditionalGeneration": replace(QWEN3_5, takes_images=True),
    "Lfm2ForCausalLM": LFM2,
    "Lfm2MoeForCausalLM": LFM2_MOE,
    "Qwen3NextForCausalLM": QWEN3_NEXT,
    "Qwen3_5ForCausalLM": QWEN3_5,
    "Qwen3_5ForConditionalGeneration": replace(QWEN3_5, **IN_THREE_PARTS),
    "Qwen3_5MoeForCausalLM": QWEN3_5_MOE,
    "Qwen3_5MoeForConditionalGeneration": replace(QWEN3_5_MOE, **IN_THREE_PARTS),
}
