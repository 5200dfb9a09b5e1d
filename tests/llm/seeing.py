"""Tiny random models that take images, with processor, tokenizer and chat template, made by
transformers; and what transformers computes with them.
"""

import base64
import inspect
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.llm.loader import OpenedModel
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.step import Row, Step
from tests.llm.architectures import DELTA_RULE, GROUPED

Parts: TypeAlias = Sequence[str | Image.Image]

MARKS = ["<unk>", "<s>", "</s>", "<image>", "<fake_token_around_image>", "<global-img>"]
MARKS += ["<start_of_image>", "<end_of_image>", "[IMG_BREAK]", "[IMG_END]", "<img>", "</img>"]
MARKS += [f"<row_{row}_col_{column}>" for row in (1, 2, 3, 4) for column in (1, 2, 3, 4)]
IMAGE = 3  # the token that stands for a vector
NO_MARKS: Mapping[str, str] = {}
# Kind -> its own marks, in place of those that it lacks.
OTHER_MARKS = {
    "minicpm-v": {
        "<image>": "<|image_pad|>", "<fake_token_around_image>": "<image>",
        "<global-img>": "</image>", "<start_of_image>": "<slice>", "<end_of_image>": "</slice>",
        "<img>": "<image_id>", "</img>": "</image_id>",
    }
}  # fmt: skip
VIDEO = 5  # in Qwen-VL's videos
TEMPLATE = (  # knows parts alone, as those of such models do
    "{% for message in messages %}{{ message['role'] }}:{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "initializer_range": 0.2,
}
CLIP = {**VISION, "model_type": "clip_vision_model", "projection_dim": 32}
SIGLIP = {**VISION, "model_type": "siglip_vision_model"}
SEES_WHOLE = "gemma3-siglip"  # tokens of an image see one another
SEES_BY_WINDOW = "gemma4-large-images"  # they do in layers with a window
BIDIRECTIONAL = (SEES_WHOLE, SEES_BY_WINDOW)
GEMMA_TEXT = {
    "head_dim": 16,
    "tie_word_embeddings": False,  # lest every token be followed by itself
    "query_pre_attn_scalar": 16,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention"],
}
GEMMA = {
    "vision_config": SIGLIP, "mm_tokens_per_image": 16, "tie_word_embeddings": False,
    "boi_token_index": 6, "eoi_token_index": 7, "image_token_index": IMAGE,
}  # fmt: skip
LLAVA = {"vision_config": CLIP, "vision_feature_layer": -2}
TILED = {"vision_config": VISION, "scale_factor": 2, "pad_token_id": 0}
MROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [3, 2, 3]}
GLM_ROPE = {**MROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}
QWEN = {"patch_size": 8, "num_heads": 4, "depth": 3, "initializer_range": 0.2}
QWEN2_VL = {
    "vision_config": {**QWEN, "embed_dim": 32, "hidden_size": 64},
    "tie_word_embeddings": False,
}  # fmt: skip
QWEN2_5_VL = {
    "vision_config": {
        **QWEN, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64,
        "window_size": 32, "fullatt_block_indexes": [1],
    },
    "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_VL = {
    "vision_config": {
        **QWEN, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64,
        "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 2],
    },
    "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_5 = {"vision_config": {k: v for k, v in QWEN3_VL["vision_config"].items() if "deep" not in k}}
GLM4V = {
    "vision_config": {
        **QWEN, "num_heads": 2, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64,
        "image_size": 48,
    },
    "tie_word_embeddings": False,
}  # fmt: skip
RESOLUTIONS = [[32, 32], [32, 64], [64, 32], [64, 64], [32, 128], [64, 96]]
NEXT = {**LLAVA, "image_grid_pinpoints": RESOLUTIONS}
ONEVISION = {
    "vision_config": SIGLIP, "image_grid_pinpoints": RESOLUTIONS,
    "vision_aspect_ratio": "anyres_max_3",  # less than the vectors of 6 tiles
}  # fmt: skip
INTERNVL = {
    "vision_config": {**VISION, "model_type": "internvl_vision", "image_size": [32, 32],
                      "patch_size": [8, 8]},
    "tie_word_embeddings": False,
}  # fmt: skip
MINICPM = {
    "vision_config": {
        k: v for k, v in {**VISION, "patch_size": 4}.items() if k != "initializer_range"
    },
    "insert_layer_id": 1,
}
PIXTRAL = {**VISION, "model_type": "pixtral", "head_dim": 8, "image_size": 64}
ROWS_OF_PATCHES = {
    "vision_config": PIXTRAL, "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
}  # fmt: skip
GEMMA4_TEXT = {
    "head_dim": 16, "global_head_dim": 32, "sliding_window": 96, "tie_word_embeddings": False,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
LAYER_INPUTS = {
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 294, "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
}  # fmt: skip
GEMMA4 = {
    "vision_config": {**VISION, "model_type": "gemma4_vision", "head_dim": 8, "patch_size": 4,
                      "num_key_value_heads": 4, "pooling_kernel_size": 2,
                      "position_embedding_size": 64},
    "boi_token_id": 6, "eoi_token_id": 7, "tie_word_embeddings": False,
}  # fmt: skip
# Kind -> what its text model has beside.
TEXTS: dict[str, dict[str, Any]] = {
    SEES_WHOLE: GEMMA_TEXT,
    "gemma4-images": {**GEMMA4_TEXT, **LAYER_INPUTS},
    SEES_BY_WINDOW: {**GEMMA4_TEXT, "hidden_size_per_layer_input": 0,
                     "use_bidirectional_attention": "vision"},
    "qwen2-vl": {"rope_parameters": MROPE},
    "qwen2.5-vl": {"rope_parameters": MROPE},
    "qwen3-vl": {"rope_parameters": MROPE, "head_dim": 16},
    "qwen3-vl-moe": {
        "rope_parameters": MROPE, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
    },
    "qwen3.5": {
        **DELTA_RULE, "rope_parameters": {**MROPE, "partial_rotary_factor": 0.5},
        "initializer_range": 0.1,
    },
    "minicpm-v": {
        **DELTA_RULE, "rope_parameters": {**MROPE, "partial_rotary_factor": 0.5},
        "initializer_range": 0.1,
    },
    "glm4v": {"rope_parameters": GLM_ROPE},
    "glm4v-moe": {
        **GROUPED, "rope_parameters": GLM_ROPE, "attention_bias": True, "initializer_range": 0.1,
    },
}  # fmt: skip
MERGED = {"vision_config": PIXTRAL, "spatial_merge_size": 2, "tie_word_embeddings": False}
# name -> (class, text model, what its config has beside, beginning of its image processor's class)
KINDS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "llava": ("Llava", "llama", LLAVA, "CLIP"),
    "llava-qwen2": ("Llava", "qwen2", LLAVA, "CLIP"),
    "llava-siglip": (
        "Llava", "mistral",
        {**LLAVA, "vision_config": SIGLIP, "vision_feature_select_strategy": "full"}, "Siglip",
    ),
    SEES_WHOLE: ("Gemma3", "gemma3_text", GEMMA, "Gemma3"),
    "gemma4-images": ("Gemma4", "gemma4_text", GEMMA4, "Gemma4"),
    SEES_BY_WINDOW: ("Gemma4", "gemma4_text", GEMMA4, "Gemma4"),
    "smolvlm": ("SmolVLM", "llama", TILED, "SmolVLM"),
    "idefics3": ("Idefics3", "llama", TILED, "Idefics3"),
    "qwen2-vl": ("Qwen2VL", "qwen2_vl_text", QWEN2_VL, "Qwen2VL"),
    "qwen2.5-vl": ("Qwen2_5_VL", "qwen2_5_vl_text", QWEN2_5_VL, "Qwen2VL"),
    "qwen3-vl": ("Qwen3VL", "qwen3_vl_text", QWEN3_VL, "Qwen2VL"),
    "qwen3-vl-moe": ("Qwen3VLMoe", "qwen3_vl_moe_text", QWEN3_VL, "Qwen2VL"),
    "qwen3.5": ("Qwen3_5", "qwen3_5_text", QWEN3_5, "Qwen2VL"),
    "glm4v": ("Glm4v", "glm4v_text", GLM4V, "Glm4v"),
    "glm4v-moe": ("Glm4vMoe", "glm4v_moe_text", GLM4V, "Glm4v"),
    "llava-next": ("LlavaNext", "mistral", NEXT, "LlavaNext"),
    "llava-onevision": ("LlavaOnevision", "qwen2", ONEVISION, "LlavaOnevision"),
    "internvl": ("InternVL", "qwen2", INTERNVL, "GotOcr2"),
    "internvl-qwen3": (
        "InternVL", "qwen3", {**INTERNVL, "tie_word_embeddings": True}, "GotOcr2",
    ),
    "minicpm-v": ("MiniCPMV4_6", "qwen3_5_text", MINICPM, "MiniCPMV4_6"),
    "pixtral": ("Llava", "mistral", ROWS_OF_PATCHES, "Pixtral"),
    "mistral3-images": ("Mistral3", "mistral", MERGED, "Pixtral"),
    "ministral3-images": ("Mistral3", "ministral3", MERGED, "Pixtral"),
}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "CLIP": {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
    "Siglip": {"size": {"height": 32, "width": 32}},
    "Gemma3": {"size": {"height": 32, "width": 32}},
    "Gemma4": {"patch_size": 4, "max_soft_tokens": 70, "pooling_kernel_size": 2},
    "SmolVLM": {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}},
    "Idefics3": {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}},
    "Qwen2VL": {"size": {"shortest_edge": 32 * 32, "longest_edge": 64 * 64}, "patch_size": 8},
    "Glm4v": {"size": {"shortest_edge": 2048, "longest_edge": 2 * 64 * 64}, "patch_size": 8},
    "LlavaNext": {
        "size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32},
        "image_grid_pinpoints": RESOLUTIONS,
    },
    "LlavaOnevision": {
        "size": {"height": 32, "width": 32}, "image_grid_pinpoints": RESOLUTIONS,
    },
    "MiniCPMV4_6": {"scale_resolution": 32, "patch_size": 4, "max_slice_nums": 4},
    "GotOcr2": {"size": {"height": 32, "width": 32}, "max_patches": 6},
    "Pixtral": {"size": {"longest_edge": 64}},
}  # fmt: skip
# Arguments that the processor of a family gives to its image processor.
OPTIONS: dict[str, dict[str, Any]] = {
    "internvl": {"crop_to_patches": True},
    "internvl-qwen3": {"crop_to_patches": True},
    "pixtral": {"patch_size": 8},
    "mistral3-images": {"patch_size": 16},
    "ministral3-images": {"patch_size": 16},
}
# Input of the model that says which tokens are of images.
MARKS_OF_IMAGES = {SEES_WHOLE: "token_type_ids", SEES_BY_WINDOW: "mm_token_type_ids"}
# Their images have tokens, and positions in height and width, by their size.
BY_SIZE = tuple(kind for kind, row in KINDS.items() if row[3] in ("Qwen2VL", "Glm4v"))


def build(directory: Path, kind: str, name: str = "") -> Path:
    """The model's directory, below `directory`."""
    target = directory / (name or kind)
    target.mkdir(parents=True)
    template = TEMPLATE.replace("<image>", _mark(kind))
    size = write_tokenizer(target, template, OTHER_MARKS.get(kind, {}))
    prefix, text_model, more, _ = KINDS[kind]
    text = {**TEXT, **TEXTS.get(kind, {}), "model_type": text_model, "vocab_size": size}
    config = getattr(transformers, f"{prefix}Config")(
        text_config=text, image_token_id=IMAGE, **({"video_token_id": VIDEO} | more)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(kind.encode()))
        model = getattr(transformers, f"{prefix}ForConditionalGeneration")(config)
        if kind == SEES_WHOLE:  # tokens differ by what is before them, not by the last one alone
            model.get_input_embeddings().weight.data *= 0.1
            model.lm_head.weight.data *= 4
            projection = model.model.multi_modal_projector.mm_input_projection_weight
            projection.data.normal_(0.0, 0.2)  # the library begins with zeros
            for name, weight in model.named_parameters():
                if name.endswith(("q_norm.weight", "k_norm.weight")):
                    weight.data += 1
    model.get_output_embeddings().weight.data[[IMAGE, VIDEO]] = 0  # answers have no images
    model.save_pretrained(target)
    processor(kind).save_pretrained(target)
    return target


def _mark(kind: str) -> str:
    """Return the text that a template writes for an image."""
    if kind in BY_SIZE:
        return "<start_of_image><image><end_of_image>"
    image = OTHER_MARKS.get(kind, {}).get("<image>", "<image>")
    return "<start_of_image>" if kind == SEES_WHOLE else image


def processor(kind: str) -> Any:
    prefix = KINDS[kind][3]
    return getattr(transformers, f"{prefix}ImageProcessorPil")(**SIZES[prefix])


def write_tokenizer(
    directory: Path, template: str, other_marks: Mapping[str, str] = NO_MARKS
) -> int:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    marks = [other_marks.get(name, name) for name in MARKS]
    vocabulary = {text: number for number, text in enumerate([*marks, *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(marks)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(template)
    return len(vocabulary)


def image(seed: int, width: int = 50, height: int = 40) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def encoded(image: Image.Image, kind: str = "PNG") -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return base64.b64encode(buffer.getvalue()).decode()


def uri(image: Image.Image) -> str:
    return f"data:image/png;base64,{encoded(image)}"


def part(image: Image.Image | str) -> dict[str, Any]:
    """An image of a content, by itself or by its URL."""
    url = image if isinstance(image, str) else uri(image)
    return {"type": "image_url", "image_url": {"url": url}}


def chat(*parts: str | Image.Image) -> list[dict[str, Any]]:
    """A conversation of one message."""
    content = [
        {"type": "text", "text": one} if isinstance(one, str) else part(one) for one in parts
    ]
    return [{"role": "user", "content": content}]


def check(opened: OpenedModel, reference: "Reference", chat_parts: Parts, params: Any) -> None:
    """Logits and greedy tokens of an opened model are those of transformers."""
    images = [part for part in chat_parts if not isinstance(part, str)]
    check_prompt(opened, reference, Generate(messages=chat(*chat_parts), params=params), images)


def check_prompt(opened: OpenedModel, reference: Any, request: Generate, images: Any) -> None:
    """Do what `check` does for a request, whose images and sounds `reference` takes."""
    processor = Processor(
        opened.tokenizer, opened.chat_template, opened.card(),
        images=opened.images, sounds=opened.sounds, tower=opened.tower,
    )  # fmt: skip
    prepared, engine = processor.prepare(request), opened.engine
    ids, prompt_images = prepared.prompt_ids, prepared.options.get("images")
    read, features, positions = prompt_images.inputs(ids, 0) if prompt_images else (ids, None, None)
    row = Row(
        read, 0, range(-(-len(ids) // engine.block_size)), len(ids),
        features=features, rope_positions=positions,
    )  # fmt: skip
    logits = engine.runner.run(Step((row,)))
    assert np.abs(logits - reference.logits(ids, images)).max() < 1e-4
    prepared.add_to(engine, "1")
    tokens: list[int] = []
    while engine.has_work:
        tokens += [token for _, answer in engine.step() for token in answer.token_ids]
    assert tokens == reference.greedy(ids, images, request.params.max_tokens)


class Reference:
    """What transformers computes with the model in a directory."""

    def __init__(self, directory: Path, kind: str) -> None:
        self._processor = processor(kind)
        self._is_by_size = kind in BY_SIZE
        self._options = OPTIONS.get(kind, {})
        self._is_nested = kind == "llava-onevision"  # else several images are cut as one is
        self._marks = MARKS_OF_IMAGES.get(kind)
        self.model = transformers.AutoModelForImageTextToText.from_pretrained(
            directory, dtype=torch.float32
        ).eval()

    def logits(self, ids: Sequence[int], images: Sequence[Image.Image]) -> np.ndarray:
        with torch.inference_mode():
            return self.model(**self._inputs(ids, images)).logits[0].numpy()

    def vector(self, ids: Sequence[int], images: Sequence[Image.Image]) -> np.ndarray:
        """Return the state of the last token, scaled to length 1."""
        with torch.inference_mode():
            states = self.model.model(**self._inputs(ids, images)).last_hidden_state
            return torch.nn.functional.normalize(states[0, -1], dim=0).numpy()

    def greedy(self, ids: Sequence[int], images: Sequence[Image.Image], count: int) -> list[int]:
        with torch.inference_mode():
            generated = self.model.generate(
                **self._inputs(ids, images),
                max_new_tokens=count,
                do_sample=False,
                eos_token_id=None,
            )
        return generated[0, len(ids) :].tolist()

    def _inputs(self, ids: Sequence[int], images: Sequence[Image.Image]) -> dict[str, Any]:
        tokens = torch.tensor([list(ids)])
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        if images:
            batch = [list(images)] if self._is_nested else list(images)
            prepared = self._processor(batch, return_tensors="pt", **self._options)
            accepted = inspect.signature(self.model.forward).parameters
            inputs |= {name: x for name, x in prepared.items() if name in accepted}
        if self._is_by_size:
            inputs["mm_token_type_ids"] = (tokens == IMAGE).int()
        if self._marks:
            inputs[self._marks] = (tokens == IMAGE).long()
        return inputs
