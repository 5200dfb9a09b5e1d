"""Text models of multimodal architectures, which differ from checkpoint to checkpoint.

`llm.images` computes the vectors of their images and sounds.
"""

from collections.abc import Mapping
from dataclasses import replace

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions.architecture import (
    INTERLEAVED,
    SECTIONS,
    Architecture,
    Config,
    Experts,
)
from mindspore_serving.llm.descriptions.families.llama import LLAMA, MISTRAL, PLAIN, QWEN2, QWEN3
from mindspore_serving.llm.descriptions.families.llama import ROWS as LLAMA_LIKE
from mindspore_serving.llm.descriptions.families.mixtures import ROWS as MIXTURES

_LLAMA_7B = {  # defaults of transformers for text_config
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048,
    "vocab_size": 32000, "rope_theta": 10000.0,
}  # fmt: skip
_QWEN_7B = {
    "intermediate_size": 22016, "max_position_embeddings": 32768, "vocab_size": 151936,
    "num_key_value_heads": 32,
}  # fmt: skip
_MISTRAL_7B = {
    "intermediate_size": 14336, "max_position_embeddings": 131072, "num_key_value_heads": 8,
}  # fmt: skip
_VOXTRAL = {
    "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 30,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
    "vocab_size": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1e8,
}  # fmt: skip
# By model_type: the description, and the defaults of transformers that differ from _LLAMA_7B.
_TEXT_MODELS: dict[str, tuple[Architecture, Config]] = {
    "llama": (LLAMA, {}),
    "mistral": (MISTRAL, _MISTRAL_7B),
    "qwen2": (QWEN2, _QWEN_7B),
    "qwen3": (QWEN3, {**_QWEN_7B, "head_dim": 128}),
}


def _text_model(architecture: Architecture, config: Config) -> Architecture:
    kind = config.get("model_type")
    if kind not in _TEXT_MODELS:
        raise StartError(
            f"config.json has a text_config with model_type {kind!r}, expected one of "
            f"{', '.join(_TEXT_MODELS)}"
        )
    text_model, sizes = _TEXT_MODELS[str(kind)]
    defaults = {**_LLAMA_7B, **sizes, **text_model.defaults, **architecture.defaults}
    return replace(text_model, defaults=defaults, takes_images=True)


def _hearing(architecture: Architecture, config: Config) -> Architecture:
    return replace(_text_model(architecture, config), takes_images=False, takes_sounds=True)


def _qwen3_vl(config: Config) -> Config:
    """Count the levels of the vision tower whose features are added to the first layers."""
    vision = config.get("vision_config")
    levels = vision.get("deepstack_visual_indexes") if isinstance(vision, Mapping) else None
    if levels is None:
        return {"image_levels": 3}  # default of transformers
    if not isinstance(levels, list):
        raise StartError(
            f"config.json has deepstack_visual_indexes {levels!r} in vision_config, expected a list"
        )
    return {"image_levels": len(levels)}


_LLAVA = Architecture(variant=_text_model, fixed=PLAIN)
_QWEN2_VL = replace(
    QWEN2, takes_images=True, image_axes=SECTIONS,
    defaults={**QWEN2.defaults, "max_window_layers": 80, "rope_theta": 1_000_000.0},
)  # fmt: skip
_QWEN3_VL = replace(
    QWEN3, takes_images=True, image_axes=INTERLEAVED, read=_qwen3_vl,
    follows=(), defaults={"rope_theta": 500_000.0, "head_dim": 128},
    unused=("rope_scaling.mrope_interleaved", "rope_parameters.mrope_interleaved"),
)  # fmt: skip
_QWEN3_VL_MOE = replace(
    _QWEN3_VL, experts=Experts(joined=("gate_up_proj", "down_proj"), joined_rows=None),
    follows=MIXTURES["Qwen3MoeForCausalLM"].follows,
    defaults={**_QWEN3_VL.defaults, "norm_topk_prob": True},
)  # fmt: skip
_GLM4V = replace(
    LLAMA_LIKE["Glm4ForCausalLM"], takes_images=True, image_axes=SECTIONS,
    defaults={"attention_bias": True, "partial_rotary_factor": 0.5},
)  # fmt: skip
_GLM4V_MOE = replace(
    MIXTURES["Glm4MoeForCausalLM"], takes_images=True, image_axes=SECTIONS,
    defaults={**MIXTURES["Glm4MoeForCausalLM"].defaults, "attention_bias": True},
)  # fmt: skip
_OF_OMNI = ("position_id_per_seconds", "seconds_per_chunk", "user_token_id")
_QWEN2_5_OMNI = replace(
    _QWEN2_VL, takes_sounds=True, unused=_OF_OMNI,
    defaults={**_QWEN2_VL.defaults, "max_window_layers": 28},
)  # fmt: skip
_QWEN3_OMNI = replace(
    MIXTURES["Qwen3MoeForCausalLM"], takes_images=True, takes_sounds=True,
    image_axes=INTERLEAVED, read=_qwen3_vl,
    unused=("max_window_layers", *_QWEN3_VL.unused, *_OF_OMNI),
    defaults={**MIXTURES["Qwen3MoeForCausalLM"].defaults, "norm_topk_prob": True},
)  # fmt: skip
ROWS = {
    "Glm4vForConditionalGeneration": _GLM4V,
    "Glm4vMoeForConditionalGeneration": _GLM4V_MOE,
    "Qwen2VLForConditionalGeneration": _QWEN2_VL,
    "Qwen2AudioForConditionalGeneration": replace(_LLAVA, variant=_hearing),
    "Qwen2_5OmniThinkerForConditionalGeneration": _QWEN2_5_OMNI,
    "Qwen2_5_VLForConditionalGeneration": _QWEN2_VL,
    "Qwen3ASRForConditionalGeneration": replace(
        _LLAVA, variant=_hearing, defaults={"tie_word_embeddings": True}
    ),
    "Qwen3OmniMoeThinkerForConditionalGeneration": _QWEN3_OMNI,
    "Qwen3VLForConditionalGeneration": _QWEN3_VL,
    "Qwen3VLMoeForConditionalGeneration": _QWEN3_VL_MOE,
    "Idefics3ForConditionalGeneration": _LLAVA,
    "InternVLForConditionalGeneration": replace(_LLAVA, defaults={"tie_word_embeddings": True}),
    "LlavaForConditionalGeneration": _LLAVA,
    "LlavaNextForConditionalGeneration": _LLAVA,
    "LlavaOnevisionForConditionalGeneration": _LLAVA,
    "SmolVLMForConditionalGeneration": _LLAVA,
    "VoxtralForConditionalGeneration": replace(_LLAVA, variant=_hearing, defaults=_VOXTRAL),
}
