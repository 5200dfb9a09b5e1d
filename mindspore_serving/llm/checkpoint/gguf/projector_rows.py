"""Kinds of vision towers in llama.cpp's files as rows: models, tensors, sizes, image processors."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from mindspore_serving.llm.checkpoint.gguf import projector_names as names
from mindspore_serving.llm.checkpoint.gguf import projector_settings as settings
from mindspore_serving.llm.checkpoint.gguf.projector_settings import Settings
from mindspore_serving.llm.checkpoint.gguf.reader import GgufFile

TYPES = ("clip.vision.projector_type", "clip.projector_type")
MLP = "mlp"  # the type of the first files, which do not have the key
_LAYER_NAME = re.compile(
    r"v\.blk\.(\d+)\.(\w+)\.(weight|bias|(?:input|output)_(?:min|max))", re.ASCII
)
_DEEP_NAME = re.compile(r"v\.deepstack\.(\d+)\.(\w+)\.(weight|bias)", re.ASCII)
_DEEP_PARTS = {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}
_TURNED = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
_QWEN_TOKENS = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorRow:
    """A kind of projector.

    Attributes:
        architecture: the first of `architectures` in config.json.
        model_type: of config.json; `vision_type` is that of its vision_config.
        models: `model_type` of the text part by its architecture in GGUF files.
        tokens: keys of config.json and texts of tokens.
        other_token: text of the token of images in language models that lack that of `tokens`.
        tensors: names of tensors beside the layers; the first is the last matrix.
        mark: name of a tensor that only files of this kind have; "" for any file.
        layer: names of a layer's tensors below `path`, which has {} for its number.
        vision: returns `vision_config`.
        read: returns further settings of config.json.
        text: returns settings of `text_config`, of those of the language model.
        processor: returns preprocessor_config.json.
        has_sections: tokens have positions in time, height and width.
        has_pairs: rows of queries and keys are in the order of rotated pairs.
        has_square_patches: patches are stored as squares, which were rows of numbers.
        is_turned: the last matrix has the order [inputs, outputs].
    """

    architecture: str
    model_type: str
    vision_type: str
    models: Mapping[str, str]
    tokens: Mapping[str, str]
    other_token: str = ""
    tensors: Mapping[str, str]
    mark: str = ""
    processor: Callable[[GgufFile, Settings], Settings]
    layer: Mapping[str, str] = field(default_factory=lambda: names.SIGLIP_LAYER)
    path: str = "vision_tower.encoder.layers.{}"
    vision: Callable[[GgufFile], Settings] = settings.siglip
    read: Callable[[GgufFile, Settings], Settings] = settings.nothing
    text: Callable[[Settings], Settings] = settings.no_text
    has_sections: bool = False
    has_pairs: bool = False
    has_square_patches: bool = False
    is_turned: bool = False

    def name_of(self, file: GgufFile, name: str) -> str | None:
        """Return Hugging Face's name of a tensor; None for one that such a tower lacks."""
        if name in self.tensors:
            return self.tensors[name]
        if match := _LAYER_NAME.fullmatch(name):
            return self._name_in_layer(file, *match.groups())
        match, layers = _DEEP_NAME.fullmatch(name), settings.deep_layers(file)
        if match is not None and int(match[1]) in layers and match[2] in _DEEP_PARTS:
            stem = f"visual.deepstack_merger_list.{layers.index(int(match[1]))}"
            return f"{stem}.{_DEEP_PARTS[match[2]]}.{match[3]}"
        return None

    def _name_in_layer(self, file: GgufFile, number: str, role: str, leaf: str) -> str | None:
        stem = self.path.format(number)
        if f"{role}.{leaf}" in self.layer:
            return f"{stem}.{self.layer[f'{role}.{leaf}']}"
        if role in _TURNED and settings.has_turned_matrices(file):
            role = _TURNED[role]
        if role not in self.layer:
            return None
        part = self.layer[role]
        if leaf not in ("weight", "bias"):  # of what is clipped around a matrix
            part = part.removesuffix(".linear")
        return f"{stem}.{part}.{leaf}"


def type_of(file: GgufFile) -> str:
    """Return the type of the projector in a file."""
    return str(next((file.metadata[key] for key in TYPES if key in file.metadata), MLP))


def rows_of(file: GgufFile) -> list[ProjectorRow]:
    """Return the rows of a file's kind, one for each family of language models; [] if none."""
    rows = [row for row in ROWS.get(type_of(file), ()) if not row.mark or row.mark in file.tensors]
    return [row for row in rows if row.mark == rows[0].mark]


def _qwen_row(
    family: str,
    model: str,
    tensors: Mapping[str, str],
    layer: Mapping[str, str],
    vision: Callable[[GgufFile], Settings],
) -> ProjectorRow:
    """Return the row of a family of Qwen-VL for files of the language model `model`."""
    kind = family.lower().replace("vl", "_vl").replace("__", "_").replace("moe", "_moe")
    return ProjectorRow(
        architecture=f"{family}ForConditionalGeneration",
        model_type=kind,
        vision_type=f"{kind}_vision",
        models={model: f"{kind}_text"},
        tokens=_QWEN_TOKENS,
        tensors=tensors,
        processor=settings.qwen_processor,
        layer=layer,
        path="visual.blocks.{}",
        vision=vision,
        has_sections=True,
    )


def _qwen3_row(family: str, model: str) -> ProjectorRow:
    return _qwen_row(family, model, names.QWEN3_TENSORS, names.QWEN3_LAYER, settings.qwen3)


_LLAVA = ProjectorRow(
    architecture="LlavaForConditionalGeneration",
    model_type="llava",
    vision_type="clip_vision_model",
    models={"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"},
    tokens={"image_token_id": "<image>"},
    other_token="<unk>",
    tensors=names.LLAVA_TENSORS,
    processor=settings.llava_processor,
    vision=settings.llava,
    read=settings.llava_outputs,
)
_LLAVA_NEXT = replace(
    _LLAVA, architecture="LlavaNextForConditionalGeneration", model_type="llava_next",
    tensors=names.LLAVA_NEXT_TENSORS, mark="model.image_newline",
    processor=settings.llava_next_processor, read=settings.llava_next,
)  # fmt: skip
_PIXTRAL = replace(
    _LLAVA, vision_type="pixtral", tokens={"image_token_id": "[IMG]"}, other_token="",
    tensors=names.PIXTRAL_TENSORS, processor=settings.pixtral_processor,
    layer=names.PIXTRAL_LAYER, path="vision_tower.transformer.layers.{}",
    vision=settings.pixtral, read=settings.mistral3, has_pairs=True,
)  # fmt: skip
_MISTRAL3 = replace(
    _PIXTRAL, architecture="Mistral3ForConditionalGeneration", model_type="mistral3",
    models={"llama": "mistral", "mistral3": "ministral3"}, mark="mm.patch_merger.weight",
    text=settings.mistral3_text,
)  # fmt: skip
_GLM = ProjectorRow(
    architecture="Glm4vForConditionalGeneration",
    model_type="glm4v",
    vision_type="glm4v_vision",
    models={"glm4": "glm4v_text"},
    tokens={"image_token_id": "<|image|>", "video_token_id": "<|video|>"},
    tensors=names.GLM_TENSORS,
    processor=settings.glm_processor,
    layer=names.QWEN2_5_LAYER,
    path="visual.blocks.{}",
    vision=settings.glm,
    has_sections=True,
)
ROWS: dict[str, tuple[ProjectorRow, ...]] = {
    "internvl": (
        ProjectorRow(
            architecture="InternVLForConditionalGeneration",
            model_type="internvl",
            vision_type="internvl_vision",
            models={"qwen2": "qwen2", "qwen3": "qwen3", "llama": "llama"},
            tokens={"image_token_id": "<IMG_CONTEXT>"},
            tensors=names.INTERN_TENSORS,
            processor=settings.internvl_processor,
            layer=names.INTERN_LAYER,
            path="vision_tower.encoder.layer.{}",
            vision=settings.internvl,
            read=settings.internvl_scale,
        ),
    ),
    "idefics3": (
        ProjectorRow(
            architecture="SmolVLMForConditionalGeneration",
            model_type="smolvlm",
            vision_type="smolvlm_vision",
            models={"llama": "llama"},
            tokens={"image_token_id": "<image>"},
            tensors=names.IDEFICS_TENSORS,
            processor=settings.idefics_processor,
            read=settings.idefics,
        ),
    ),
    "gemma3": (
        ProjectorRow(
            architecture="Gemma3ForConditionalGeneration",
            model_type="gemma3",
            vision_type="siglip_vision_model",
            models={"gemma3": "gemma3_text"},
            tokens={
                "image_token_id": "<image_soft_token>",
                "boi_token_id": "<start_of_image>",
                "eoi_token_id": "<end_of_image>",
            },
            tensors=names.GEMMA3_TENSORS,
            processor=settings.gemma3_processor,
            read=settings.gemma3,
            is_turned=True,
        ),
    ),
    "gemma4v": (
        ProjectorRow(
            architecture="Gemma4ForConditionalGeneration",
            model_type="gemma4",
            vision_type="gemma4_vision",
            models={"gemma4": "gemma4_text"},
            tokens={
                "image_token_id": "<|image|>",
                "boi_token_id": "<|image>",
                "eoi_token_id": "<image|>",
            },
            tensors=names.GEMMA4_TENSORS,
            processor=settings.gemma4_processor,
            layer=names.GEMMA4_LAYER,
            vision=settings.gemma4,
            text=settings.gemma4_text,
            has_square_patches=True,
        ),
    ),
    MLP: (_LLAVA_NEXT, _LLAVA),
    "pixtral": (_MISTRAL3, _PIXTRAL),
    "glm4v": (
        _GLM,
        replace(
            _GLM, architecture="Glm4vMoeForConditionalGeneration", model_type="glm4v_moe",
            vision_type="glm4v_moe_vision", models={"glm4moe": "glm4v_moe_text"},
        ),
    ),
    "qwen2vl_merger": (
        _qwen_row(
            "Qwen2VL", "qwen2vl", names.QWEN2_TENSORS, names.QWEN2_LAYER, settings.qwen2
        ),
    ),
    "qwen2.5vl_merger": (
        _qwen_row(
            "Qwen2_5_VL", "qwen2vl", names.QWEN2_TENSORS, names.QWEN2_5_LAYER, settings.qwen2_5
        ),
    ),
    "qwen3vl_merger": (
        _qwen3_row("Qwen3VL", "qwen3vl"),
        _qwen3_row("Qwen3VLMoe", "qwen3vlmoe"),
        _qwen3_row("Qwen3_5", "qwen35"),
        _qwen3_row("Qwen3_5Moe", "qwen35moe"),
    ),
}  # fmt: skip
