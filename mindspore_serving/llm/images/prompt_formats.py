"""Image prompt formats of architectures: placeholder tokens for an image's vectors, and marks.

A chat template writes one placeholder per image, which is expanded here. Knows no tokenizer and no
pixels.
"""

from collections.abc import Callable

from mindspore_serving.llm.images.gemma_formats import gemma3, gemma3n, gemma4
from mindspore_serving.llm.images.llava_formats import llava, llava_next, llava_onevision
from mindspore_serving.llm.images.prompt_format import Config, ImagePromptFormat
from mindspore_serving.llm.images.qwen_formats import glm_v, qwen2_vl, qwen3_vl
from mindspore_serving.llm.images.row_formats import mistral3
from mindspore_serving.llm.images.tile_formats import idefics, internvl, minicpm

_ROWS: dict[str, Callable[[Config], ImagePromptFormat | None]] = {
    "Gemma3ForConditionalGeneration": gemma3,
    "Gemma3nForConditionalGeneration": gemma3n,
    "Gemma4ForConditionalGeneration": gemma4,
    "Glm4vForConditionalGeneration": glm_v,
    "Glm4vMoeForConditionalGeneration": glm_v,
    "Idefics3ForConditionalGeneration": idefics,
    "InternVLForConditionalGeneration": internvl,
    "LlavaForConditionalGeneration": llava,
    "LlavaNextForConditionalGeneration": llava_next,
    "LlavaOnevisionForConditionalGeneration": llava_onevision,
    "MiniCPMV4_6ForConditionalGeneration": minicpm,
    "Mistral3ForConditionalGeneration": mistral3,
    "Qwen2VLForConditionalGeneration": qwen2_vl,
    "Qwen2_5OmniThinkerForConditionalGeneration": qwen2_vl,
    "Qwen2_5_VLForConditionalGeneration": qwen2_vl,
    "Qwen3OmniMoeThinkerForConditionalGeneration": qwen3_vl,
    "Qwen3VLForConditionalGeneration": qwen3_vl,
    "Qwen3VLMoeForConditionalGeneration": qwen3_vl,
    "Qwen3_5ForConditionalGeneration": qwen3_vl,
    "Qwen3_5MoeForConditionalGeneration": qwen3_vl,
    "SmolVLMForConditionalGeneration": idefics,
}
ARCHITECTURES = tuple(_ROWS)


def find_prompt_format(config: Config) -> ImagePromptFormat | None:
    """Return the format of the model with this config.json, None if it takes no images.

    Raises StartError for a missing key.
    """
    names = config.get("architectures") or [""]
    return _ROWS[names[0]](config) if names[0] in _ROWS else None
