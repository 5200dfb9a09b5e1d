"""Text models of multimodal architectures, which differ from checkpoint to checkpoint.

`llm.images` computes the vectors of their images.
"""

from dataclasses import replace

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions.architecture import Architecture, Config
from mindspore_serving.llm.descriptions.families.llama import LLAMA, MISTRAL, PLAIN, QWEN2

_LLAMA_7B = {  # defaults of transformers for text_config
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048,
    "vocab_size": 32000, "rope_theta": 10000.0,
}  # fmt: skip


_TEXT_MODELS = {  # by model_type
    "llama": LLAMA, "mistral": MISTRAL, "qwen2": QWEN2,
}  # fmt: skip


def _text_model(architecture: Architecture, config: Config) -> Architecture:
    kind = config.get("model_type")
    if kind not in _TEXT_MODELS:
        raise StartError(
            f"config.json has a text_config with model_type {kind!r}, expected one of "
            f"{', '.join(_TEXT_MODELS)}"
        )
    text_model = _TEXT_MODELS[str(kind)]
    defaults = {**architecture.defaults, **text_model.defaults}
    return replace(text_model, defaults=defaults, shardable=False, takes_images=True)


_LLAVA = Architecture(variant=_text_model, fixed=PLAIN, defaults=_LLAMA_7B)
ROWS = {
    "LlavaForConditionalGeneration": _LLAVA,
    "Idefics3ForConditionalGeneration": _LLAVA,
    "SmolVLMForConditionalGeneration": _LLAVA,
}
