"""Architectures like Llama: RMS norms, gated feed-forward blocks, rotary positions.

A row names only differences. Knows no runtime.
"""

from dataclasses import replace
from typing import Any

from mindspore_serving.llm.descriptions.architecture import (
    OF_ALL,
    OF_HEAD,
    PAIRS,
    Architecture,
    Config,
    Names,
)
from mindspore_serving.llm.descriptions.config_types import size
from mindspore_serving.llm.descriptions.layer_kinds import FULL, SLIDING
from mindspore_serving.llm.descriptions.settings import (
    PATTERN,
    SCALES,
    SWITCHED_WINDOW,
    TYPED_WINDOW,
    WINDOW,
)

# Key of config.json -> the accepted values, for settings that no row supports otherwise.
PLAIN = {"pretraining_tp": (1,), "use_bidirectional_attention": (False,), "clip_qkv": ()}
ERNIE = {**PLAIN, "compression_ratio": (1.0,)}
LATENT_HEADS = ("head_dim", "num_key_value_heads")  # unused: latent attention has other sizes
ATTENTION_BIASED: dict[str, Any] = {"qkv_bias": "attention_bias", "output_bias": "attention_bias"}
AFTER: dict[str, Any] = {  # norms after the blocks
    "after_attention": "post_attention_layernorm",
    "after_mlp": "post_feedforward_layernorm",
}
POST_NORMS = Names(attention_norm="", mlp_norm="", **AFTER)
SANDWICH = Names(mlp_norm="pre_feedforward_layernorm", **AFTER)
FUSED_GATE = ("mlp.gate_up_proj",)

LLAMA = Architecture(
    qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias", fixed=PLAIN,
)  # fmt: skip
WINDOWED: dict[str, Any] = {"sliding_window": 4096}  # default
SWITCHED: dict[str, Any] = {**WINDOWED, "use_sliding_window": False, "max_window_layers": 28}
MISTRAL = Architecture(fixed=PLAIN, follows=TYPED_WINDOW, defaults=WINDOWED)
MINISTRAL3 = replace(MISTRAL, follows=WINDOW, defaults={})
QWEN2 = Architecture(
    qkv_bias=True, follows=SWITCHED_WINDOW, defaults=SWITCHED, fixed=PLAIN,
)  # fmt: skip
QWEN3 = Architecture(
    qkv_bias="attention_bias", output_bias="attention_bias", qk_norm=OF_HEAD,
    follows=SWITCHED_WINDOW, defaults=SWITCHED, fixed=PLAIN,
)  # fmt: skip
INTERNLM2 = Architecture(
    names=Names(
        embedding="model.tok_embeddings", head="output", attention_norm="attention_norm",
        fused="attention.wqkv", qkv=("attention.wq", "attention.wk", "attention.wv"),
        output="attention.wo", mlp_norm="ffn_norm",
        gate_up=("feed_forward.w1", "feed_forward.w3"), down="feed_forward.w2",
    ),
    qkv_bias="bias", output_bias="bias", fixed=PLAIN,
)  # fmt: skip


def _mistral3(architecture: Architecture, config: Config) -> Architecture:
    """Use Mistral's window unless the text model is a Ministral 3.

    Adds images, unless the checkpoint is of the text part only.
    """
    defaults = WINDOWED if config.get("model_type") == "mistral" else architecture.defaults
    takes_images = bool(config.get("vision_config"))
    return replace(architecture, defaults=defaults, takes_images=takes_images)


def _baichuan(architecture: Architecture, config: Config) -> Architecture:
    """Give ALiBi to 13B, which limits positions only in its tokenizer.

    In GGUF files queries, keys and values are separate.
    """
    names = architecture.names if config.get("is_packed", True) else Names()
    return replace(architecture, names=names, alibi="max_position_embeddings" not in config)


def _olmo3(config: Config) -> Config:
    """Leave positions of layers with a window unscaled, whatever config.json says for all."""
    return {"rope_local_base_freq": config.get("rope_theta") or 10000.0}


OLMO2 = Architecture(
    names=POST_NORMS, qk_norm=OF_ALL, **ATTENTION_BIASED, fixed=PLAIN,
)  # fmt: skip
OLMO3 = replace(
    OLMO2, read=_olmo3, follows=TYPED_WINDOW,
    defaults={**WINDOWED, PATTERN: 4, "rope_theta": 500_000.0},
)  # fmt: skip
EXAONE4 = Architecture(
    names=POST_NORMS, qk_norm=OF_HEAD, rotated_windows=True, fixed=PLAIN,
    follows=(*TYPED_WINDOW, PATTERN), defaults={**WINDOWED, PATTERN: 4},
)  # fmt: skip


def _smollm3(config: Config) -> Config:
    """List the layers: those without positions have a window, if windows are switched on."""
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    if kinds is None:
        count, step = size(config, "num_hidden_layers"), size(config, "no_rope_layer_interval")
        rotates = config.get("no_rope_layers") or [(i + 1) % step for i in range(count)]
        kinds = [FULL if has or not config["use_sliding_window"] else SLIDING for has in rotates]
    return {"use_sliding_window": True, "sliding_window": window, "layer_types": kinds}


def _minicpm3(config: Config) -> Config:
    hidden, layers = size(config, "hidden_size"), size(config, "num_hidden_layers")
    return {
        "embedding_multiplier": config.get("scale_emb") or 1.0,
        "residual_multiplier": (config.get("scale_depth") or layers**0.5) / layers**0.5,
        "logits_scaling": hidden / size(config, "dim_model_base", default=hidden),
    }


ROWS: dict[str, Architecture] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "MinistralForCausalLM": MISTRAL,
    "Ministral3ForCausalLM": MINISTRAL3,
    "Mistral3ForConditionalGeneration": replace(MINISTRAL3, variant=_mistral3),
    "Qwen2ForCausalLM": QWEN2,
    "MiMoForCausalLM": replace(
        QWEN2, fixed={**PLAIN, "attention_bias": (True,), "use_mrope": (False,)}
    ),
    "Qwen3ForCausalLM": QWEN3,
    "SmolLM3ForCausalLM": replace(
        LLAMA, read=_smollm3,
        follows=(*TYPED_WINDOW, "use_sliding_window", "no_rope_layers", "no_rope_layer_interval"),
        defaults={
            "tie_word_embeddings": True, "rope_theta": 2_000_000.0, "use_sliding_window": False,
            "no_rope_layer_interval": 4,
        },
    ),
    "SeedOssForCausalLM": replace(
        LLAMA, output_bias="attention_out_bias",
        defaults={"attention_bias": True, "head_dim": 128},
    ),
    "InternLMForCausalLM": Architecture(
        qkv_bias="bias", output_bias="bias", fixed=PLAIN
    ),
    "InternLM2ForCausalLM": INTERNLM2,
    "InternLM3ForCausalLM": Architecture(
        qkv_bias="qkv_bias", output_bias="bias", mlp_bias="bias", fixed=PLAIN
    ),
    "BaichuanForCausalLM": Architecture(
        names=Names(qkv=("self_attn.W_pack",)), variant=_baichuan, fixed=PLAIN
    ),
    "Phi3ForCausalLM": Architecture(
        names=Names(qkv=("self_attn.qkv_proj",), gate_up=FUSED_GATE), follows=WINDOW, fixed=PLAIN,
    ),
    "GraniteForCausalLM": replace(
        LLAMA, follows=SCALES, defaults={"attention_multiplier": 1.0}
    ),
    "Olmo2ForCausalLM": OLMO2,
    "Olmo3ForCausalLM": OLMO3,
    "Exaone4ForCausalLM": EXAONE4,
    "Ernie4_5ForCausalLM": Architecture(
        rope=PAIRS, qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", fixed=ERNIE,
        defaults={"tie_word_embeddings": True, "rope_theta": 500_000.0},
    ),
    "HunYuanDenseV1ForCausalLM": Architecture(
        names=Names(q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm"),
        **ATTENTION_BIASED, qk_norm=OF_HEAD, norm_after_rope=True,
        fixed={**PLAIN, "use_cla": (False,), "use_mla": (False,), "use_qk_norm": (True,),
               "norm_type": ("rms",), "use_rotary_pos_emb": (True,)},
        unused=("cla_share_factor", "attention_head_dim", "add_classification_head",
                "rope_parameters.factor", "rope_scaling.factor"),
    ),
    "GlmForCausalLM": Architecture(
        names=Names(gate_up=FUSED_GATE), rope=PAIRS, qkv_bias="attention_bias", fixed=PLAIN,
        defaults={"attention_bias": True, "partial_rotary_factor": 0.5, "head_dim": 128},
    ),
    "Glm4ForCausalLM": Architecture(
        names=Names(
            gate_up=FUSED_GATE, after_attention="post_self_attn_layernorm",
            after_mlp="post_mlp_layernorm",
        ),
        rope=PAIRS, qkv_bias="attention_bias", fixed=PLAIN,
        defaults={"attention_bias": True, "partial_rotary_factor": 0.5, "head_dim": 128},
    ),
    "MiniCPM3ForCausalLM": Architecture(
        read=_minicpm3, unused=LATENT_HEADS, **ATTENTION_BIASED, mlp_bias="mlp_bias",
        fixed=PLAIN,
        defaults={"tie_word_embeddings": True, "scale_emb": 12, "scale_depth": 1.4,
                  "dim_model_base": 256},
    ),
}  # fmt: skip
