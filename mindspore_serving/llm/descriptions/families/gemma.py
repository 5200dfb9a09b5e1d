"""The Gemma family: Llama's blocks with norms on both sides and scaled embeddings.

Gemma 4 has larger heads in layers without a window, last layers that share the keys and values of
earlier ones, and an input per layer; Gemma 3n has the latter two, several hidden states (AltUp),
and sparse gates. Knows no runtime.
"""

from dataclasses import replace

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions import layer_kinds
from mindspore_serving.llm.descriptions.architecture import (
    OF_HEAD,
    RMS,
    RMS_PLUS_ONE,
    Architecture,
    Config,
    Experts,
    ParallelMixture,
)
from mindspore_serving.llm.descriptions.config_types import size
from mindspore_serving.llm.descriptions.families.llama import ATTENTION_BIASED, PLAIN, SANDWICH
from mindspore_serving.llm.descriptions.settings import LAYER_INPUTS, PATTERN, TYPED_WINDOW


def _gemma(config: Config) -> Config:
    hidden = size(config, "hidden_size")
    act = config.get("hidden_activation") or config.get("hidden_act")
    tanh = "gelu_pytorch_tanh"  # the first Gemma means this by "gelu"
    return {
        "embedding_multiplier": hidden**0.5,
        "hidden_activation": tanh if act in (None, "gelu") else act,
    }


SPARSE = 10  # first layers of Gemma 3n with sparse gates, unless config.json says otherwise
GEMMA_DEFAULTS = {"tie_word_embeddings": True, "head_dim": 256, "rms_norm_eps": 1e-6}
CAPPED = ("final_logit_softcapping", "query_pre_attn_scalar")
GEMMA = Architecture(
    norm=RMS_PLUS_ONE, read=_gemma, **ATTENTION_BIASED, defaults=GEMMA_DEFAULTS, fixed=PLAIN,
)  # fmt: skip
GEMMA2 = replace(
    GEMMA,
    follows=(*TYPED_WINDOW, *CAPPED, "attn_logit_softcapping"),
    names=SANDWICH,
    defaults={
        **GEMMA_DEFAULTS,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
    },
)
GEMMA3 = replace(
    GEMMA,
    follows=(*TYPED_WINDOW, *CAPPED, PATTERN, "rope_local_base_freq"),
    fixed={**PLAIN, "attn_logit_softcapping": ()},
    unused=("_sliding_window_pattern",),
    names=SANDWICH,
    qk_norm=OF_HEAD,
    defaults={
        **GEMMA_DEFAULTS,
        "query_pre_attn_scalar": 256,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    },
)


def _gemma3_images(architecture: Architecture, config: Config) -> Architecture:
    """Add images, unless the checkpoint is of the text part only, which may have the same class."""
    if not config.get("vision_config"):
        return architecture
    count, window = size(config, "mm_tokens_per_image", default=256), config["sliding_window"]
    if window < count:
        raise StartError(
            f"config.json has sliding_window {window}, expected at least the {count} tokens of an "
            "image (mm_tokens_per_image), which attend to each other"
        )
    return replace(architecture, takes_images=True, has_bidirectional_images=True)


def _gemma4_images(architecture: Architecture, config: Config) -> Architecture:
    """Add images and sounds, unless the checkpoint is of the text part only."""
    if not config.get("vision_config"):
        return architecture
    hears = bool(config.get("audio_config"))
    sees_whole = config.get("use_bidirectional_attention") == "vision"
    return replace(
        architecture, takes_images=True, takes_sounds=hears,
        has_bidirectional_images=sees_whole, bidirectional_windows=sees_whole,
    )  # fmt: skip


def _gemma4(config: Config) -> Config:
    count = size(config, "num_hidden_layers")
    kinds = config.get("layer_types") or [
        layer_kinds.SLIDING if (i + 1) % 6 else layer_kinds.FULL for i in range(count)
    ]
    words = size(config, "vocab_size_per_layer_input")
    if config.get("hidden_size_per_layer_input") and words < size(config, "vocab_size"):
        raise StartError(
            f"config.json has vocab_size_per_layer_input {words}, expected at least vocab_size"
        )
    return {
        **_gemma(config),
        **_global_heads(config, [i for i, kind in enumerate(kinds) if kind == layer_kinds.FULL]),
        "num_experts": size(config, "num_experts") if config.get("enable_moe_block") else None,
        "num_experts_per_tok": config.get("top_k_experts"),
        "norm_topk_prob": True,
        "layer_types": [*kinds[:-1], layer_kinds.FULL],  # the last layer never has a window
    }


def _global_heads(config: Config, layers: list[int]) -> Config:
    """Return the heads of `layers`, which have no window.

    `per_layer_config` lists them one by one.
    """
    per_layer = config.get("per_layer_config")
    if per_layer is None:
        heads = config.get("num_global_key_value_heads") if config["attention_k_eq_v"] else None
        return {"num_global_key_value_heads": heads}
    sizes = {
        (layer.get("num_key_value_heads"), layer.get("head_dim"))
        for layer in (per_layer.get(str(number)) or {} for number in layers)
    }
    is_extra = bool(set(per_layer) - set(map(str, layers)))
    if len(sizes) > 1 or is_extra:
        raise StartError(
            f"config.json has per_layer_config {per_layer!r:.80}, expected the same for all layers "
            "without a window, and nothing for layers with a window"
        )
    kv_heads, dim = sizes.pop() if sizes else (None, None)
    return {"num_global_key_value_heads": kv_heads, "global_head_dim": dim}


LATER = replace(GEMMA, norm=RMS, qk_norm=OF_HEAD, value_norm=True)
LATER_SETTINGS = (
    *TYPED_WINDOW, *LAYER_INPUTS, "final_logit_softcapping", "rope_local_base_freq",
)  # fmt: skip
GEMMA4 = replace(
    LATER,
    follows=(
        *LATER_SETTINGS, "attention_k_eq_v", "global_head_dim", "num_global_key_value_heads",
    ),
    names=replace(SANDWICH, scalar="layer_scalar"),
    experts=Experts(
        router="router.proj", prefix="experts", joined=("gate_up_proj", "down_proj"),
        joined_rows=True, parallel=ParallelMixture(),
    ),
    read=_gemma4,
    fixed={**PLAIN, "use_bidirectional_attention": (False, "vision")},  # only for images
    defaults={
        **GEMMA_DEFAULTS,
        "attention_multiplier": 1.0,
        "attention_k_eq_v": False,
        "global_head_dim": 512,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
        "sliding_window": 512,
        "max_position_embeddings": 131072,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional", "partial_rotary_factor": 0.25,
                "rope_theta": 1_000_000.0,
            },
            "sliding_attention": {"rope_theta": 10_000.0},
        },
    },
)  # fmt: skip


def _gemma3n(config: Config) -> Config:
    """Reduce lists to what is read: nothing depends on the width of each feed-forward block."""
    count, width = size(config, "num_hidden_layers"), config.get("intermediate_size")
    shares = config.get("activation_sparsity_pattern")
    return {
        **_gemma(config),
        "intermediate_size": max(width, default=None) if isinstance(width, list) else width,
        "activation_sparsity_pattern": _sparse_layers(count) if shares is None else shares,
    }


def _sparse_layers(count: int) -> list[float]:
    return [0.95 if i < SPARSE < count else 0.0 for i in range(count)]


def _gemma3n_media(architecture: Architecture, config: Config) -> Architecture:
    """Add images and sounds, unless the checkpoint is of the text part only."""
    return replace(
        architecture,
        takes_images=bool(config.get("vision_config")),
        takes_sounds=bool(config.get("audio_config")),
    )


GEMMA3N = replace(
    LATER,
    follows=(
        *LATER_SETTINGS,
        "altup_num_inputs",
        "activation_sparsity_pattern",
    ),
    names=replace(SANDWICH, low_rank="laurel"),
    read=_gemma3n,
    defaults={
        **GEMMA_DEFAULTS,
        "attention_multiplier": 1.0,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window": 512,
        "sliding_window_pattern": 5,
        "num_kv_shared_layers": 15,
        "final_logit_softcapping": 30.0,
        "max_position_embeddings": 32768,
        "vocab_size": 262400,
        "vocab_size_per_layer_input": 262144,
        "hidden_size_per_layer_input": 256,
        "altup_num_inputs": 4,
        "altup_active_idx": 0,
        "altup_correct_scale": True,
    },
)

ROWS: dict[str, Architecture] = {
    "GemmaForCausalLM": GEMMA,
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3ForConditionalGeneration": replace(GEMMA3, variant=_gemma3_images),
    "Gemma3nForCausalLM": GEMMA3N,
    "Gemma3nForConditionalGeneration": replace(GEMMA3N, variant=_gemma3n_media),
    "Gemma4ForCausalLM": GEMMA4,
    "Gemma4ForConditionalGeneration": replace(GEMMA4, variant=_gemma4_images),
}
