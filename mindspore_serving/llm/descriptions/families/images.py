"""The text models of architectures that take images, which differ from checkpoint to checkpoint.

`llm.images` has what makes rows of embeddings of their images.
"""

from dataclasses import replace

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions.architecture import Architecture, Config
from mindspore_serving.llm.descriptions.families.llama import LLAMA, MISTRAL, PLAIN, QWEN2

_LLAMA_7B = {  # what transformers takes where text_config does not say it
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048,
    "vocab_size": 32000, "rope_theta": 10000.0,
}  # fmt: skip


_TEXT_MODELS = {  # by model_type
    "llama": LLAMA, "mistral": MISTRAL, "qwen2": QWEN2,
}  # fmt: skip


def _text_model(form: Architecture, config: Config) -> Architecture:
    kind = config.get("model_type")
    if kind not in _TEXT_MODELS:
        raise StartError(
            f"config.json has a text_config with model_type {kind!r}, expected one of "
            f"{', '.join(_TEXT_MODELS)}"
        )
    own = _TEXT_MODELS[str(kind)]
    defaults = {**form.defaults, **own.defaults}
    return replace(own, defaults=defaults, cut=False, takes_images=True)


_LLAVA = Architecture(variant=_text_model, fixed=PLAIN, defaults=_LLAMA_7B)
ROWS = {
    "LlavaForConditionalGeneration": _LLAVA,
    "Idefics3ForConditionalGeneration": _LLAVA,
    "SmolVLMForConditionalGeneration": _LLAVA,
}
