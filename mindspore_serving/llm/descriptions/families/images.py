"""Text models of multimodal architectures, which differ from checkpoint to checkpoint.

`llm.images` computes the vectors of their images.
"""

from dataclasses import replace

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions.architecture import Architecture, Config
from mindspore_serving.llm.descriptions.families.llama import LLAMA, MISTRAL, PLAIN, QWEN2, QWEN3

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
    return replace(text_model, defaults=defaults, shardable=False, takes_images=True)


_LLAVA = Architecture(variant=_text_model, fixed=PLAIN)
ROWS = {
    "Idefics3ForConditionalGeneration": _LLAVA,
    "InternVLForConditionalGeneration": replace(_LLAVA, defaults={"tie_word_embeddings": True}),
    "LlavaForConditionalGeneration": _LLAVA,
    "LlavaNextForConditionalGeneration": _LLAVA,
    "LlavaOnevisionForConditionalGeneration": _LLAVA,
    "SmolVLMForConditionalGeneration": _LLAVA,
}
