"""Kinds of vision towers in llama.cpp's files as rows: names of tensors, sizes, image processors.

Knows no file of a language model.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.reader import GgufFile, UnreadArray

LATER_PATCHES = "v.patch_embd.weight.1"  # of the second of two frames
SIZES = {
    "image_size": "image_size",
    "patch_size": "patch_size",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
}
_EPSILON, _SCALE = "attention.layer_norm_epsilon", "projector.scale_factor"
_DEEP_LAYERS = "clip.vision.is_deepstack_layers"
_LAYER_NAME = re.compile(r"v\.blk\.(\d+)\.(\w+)\.(weight|bias)")
_DEEP_NAME = re.compile(r"v\.deepstack\.(\d+)\.(\w+)\.(weight|bias)")
Settings = dict[str, Any]


def _both(names: Mapping[str, str]) -> dict[str, str]:
    """Return names of weights and biases, for those of both."""
    ends = ("weight", "bias")
    return {f"{old}.{end}": f"{new}.{end}" for old, new in names.items() for end in ends}


_SIGLIP_PATCHES = {
    **_both({"v.patch_embd": "vision_tower.embeddings.patch_embedding"}),
    "v.position_embd.weight": "vision_tower.embeddings.position_embedding.weight",
    **_both({"v.post_ln": "vision_tower.post_layernorm"}),
}
_SIGLIP_LAYER = {
    "ln1": "layer_norm1", "ln2": "layer_norm2", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_out": "self_attn.out_proj",
    "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2",
}  # fmt: skip
_QWEN_LAYER = {
    "ln1": "norm1", "ln2": "norm2", "attn_q": "attn.q_proj", "attn_k": "attn.k_proj",
    "attn_v": "attn.v_proj", "attn_qkv": "attn.qkv", "attn_out": "attn.proj",
}  # fmt: skip
_QWEN2_LAYER = {**_QWEN_LAYER, "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
_QWEN2_5_LAYER = {
    **_QWEN_LAYER, "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
_QWEN3_LAYER = {**_QWEN_LAYER, "ffn_up": "mlp.linear_fc1", "ffn_down": "mlp.linear_fc2"}
_INTERN_LAYER = {
    "ln1": "layernorm_before", "ln2": "layernorm_after", "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj", "attn_v": "attention.v_proj",
    "attn_q_norm": "attention.q_norm", "attn_k_norm": "attention.k_norm",
    "attn_out": "attention.projection_layer", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2",
    "ls1.weight": "lambda_1", "ls2.weight": "lambda_2",
}  # fmt: skip
_INTERN_TENSORS = {
    **_both(
        {
            "mm.model.mlp.3": "multi_modal_projector.linear_2",
            "mm.model.mlp.1": "multi_modal_projector.linear_1",
            "mm.model.mlp.0": "multi_modal_projector.layer_norm",
            "v.patch_embd": "vision_tower.embeddings.patch_embeddings.projection",
        }
    ),
    "v.class_embd": "vision_tower.embeddings.cls_token",
    "v.position_embd.weight": "vision_tower.embeddings.position_embeddings",
}  # fmt: skip
_DEEP_PARTS = {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}
_QWEN2_TENSORS = _both(
    {
        "mm.2": "visual.merger.mlp.2", "mm.0": "visual.merger.mlp.0",
        "v.post_ln": "visual.merger.ln_q", "v.patch_embd": "visual.patch_embed.proj",
    }
)  # fmt: skip
_QWEN3_TENSORS = {
    **_both(
        {
            "mm.2": "visual.merger.linear_fc2", "mm.0": "visual.merger.linear_fc1",
            "v.post_ln": "visual.merger.norm", "v.patch_embd": "visual.patch_embed.proj",
        }
    ),
    "v.position_embd.weight": "visual.pos_embed.weight",
}  # fmt: skip
_QWEN_TOKENS = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}


def _siglip(file: GgufFile) -> Settings:
    """Return the sizes of a vision tower as `vision_config`.  Raises StartError."""
    vision: Settings = {name: number_of(file, key) for name, key in SIZES.items()}
    epsilon = file.metadata.get(f"clip.vision.{_EPSILON}")
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise StartError(f"{file.path} has {_EPSILON} {epsilon!r}, expected a small number")
    if vision["image_size"] % vision["patch_size"]:
        raise StartError(
            f"{file.path} has image_size {vision['image_size']}, expected a multiple of patch_size "
            f"{vision['patch_size']}"
        )
    activation = "gelu_pytorch_tanh" if file.metadata.get("clip.use_gelu") else "quick_gelu"
    activation = "silu" if file.metadata.get("clip.use_silu") else activation
    return {**vision, "layer_norm_eps": epsilon, "hidden_act": activation, "num_channels": 3}


def _qwen(file: GgufFile) -> Settings:
    """Return what the towers of Qwen-VL have alike."""
    vision = _siglip(file)
    return {
        "patch_size": vision["patch_size"],
        "spatial_merge_size": number_of(file, "spatial_merge_size", 2),
        "temporal_patch_size": 2,
        "num_heads": vision["num_attention_heads"],
        "depth": vision["num_hidden_layers"],
        "hidden_act": vision["hidden_act"],
        "hidden_size": vision["hidden_size"],
        "intermediate_size": vision["intermediate_size"],
        "out_hidden_size": number_of(file, "projection_dim"),
    }


def _qwen2(file: GgufFile) -> Settings:
    vision = _qwen(file)
    width = vision["hidden_size"]
    return {
        **vision,
        "embed_dim": width,
        "hidden_size": vision["out_hidden_size"],
        "mlp_ratio": vision["intermediate_size"] // width,
    }


def _qwen2_5(file: GgufFile) -> Settings:
    vision, pattern = _qwen(file), number_of(file, "n_wa_pattern")
    return {
        **vision,
        "fullatt_block_indexes": list(range(pattern - 1, vision["depth"], pattern)),
        "window_size": number_of(file, "window_size", 112),
        "tokens_per_second": 2,  # of the published models; their files do not have it
    }


def _qwen3(file: GgufFile) -> Settings:
    side = number_of(file, "image_size") // number_of(file, "patch_size")
    return {
        **_qwen(file),
        "deepstack_visual_indexes": _deep_layers(file),
        "num_position_embeddings": side**2,
    }


def _internvl(file: GgufFile) -> Settings:
    vision = _siglip(file)
    return {
        **vision,
        "image_size": [vision["image_size"]] * 2,
        "patch_size": [vision["patch_size"]] * 2,
        "hidden_act": "gelu",
        "attention_bias": "v.blk.0.attn_q.bias" in file.tensors,
        "use_qk_norm": "v.blk.0.attn_q_norm.weight" in file.tensors,
        "norm_type": "layer_norm" if "v.blk.0.ln1.bias" in file.tensors else "rms_norm",
    }


def _internvl_scale(file: GgufFile, vision: Settings) -> Settings:
    return {"downsample_ratio": 1 / number_of(file, _SCALE, 2)}


def _internvl_processor(file: GgufFile, vision: Settings) -> Settings:
    height, width = vision["image_size"]
    return {
        "image_processor_type": "GotOcr2ImageProcessor",
        "size": {"height": height, "width": width},
        "max_patches": number_of(file, "preproc_max_tiles", 12),
    }


def _deep_layers(file: GgufFile) -> list[int]:
    if _DEEP_LAYERS not in file.metadata:
        return []
    return [index for index, is_deep in enumerate(file.array(_DEEP_LAYERS)) if is_deep]


def _nothing(file: GgufFile, vision: Settings) -> Settings:
    return {}


def _idefics(file: GgufFile, vision: Settings) -> Settings:
    return {"scale_factor": number_of(file, _SCALE, 2)}


def _idefics_processor(file: GgufFile, vision: Settings) -> Settings:
    size = vision["image_size"]
    longest = number_of(file, "preproc_image_size", 4 * size)
    return {
        "image_processor_type": "SmolVLMImageProcessor",
        "size": {"longest_edge": longest},
        "max_image_size": {"longest_edge": size},
    }


def _gemma3(file: GgufFile, vision: Settings) -> Settings:
    side = vision["image_size"] // vision["patch_size"] // number_of(file, _SCALE, 4)
    return {"mm_tokens_per_image": side**2}


def _gemma3_processor(file: GgufFile, vision: Settings) -> Settings:
    size = vision["image_size"]
    return {
        "image_processor_type": "Gemma3ImageProcessor",
        "size": {"height": size, "width": size},
    }


def _qwen_processor(file: GgufFile, vision: Settings) -> Settings:
    """Return the settings for images, whose sizes are those of the published models."""
    token = (vision["patch_size"] * vision["spatial_merge_size"]) ** 2
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": vision["patch_size"],
        "merge_size": vision["spatial_merge_size"],
        "temporal_patch_size": vision["temporal_patch_size"],
        "size": {
            "shortest_edge": number_of(file, "image_min_pixels", 4 * token),
            "longest_edge": number_of(file, "image_max_pixels", 16384 * token),
        },
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorRow:
    """A kind of projector.

    Attributes:
        architecture: the first of `architectures` in config.json.
        model_type: of config.json; `vision_type` is that of its vision_config.
        models: `model_type` of the text part by its architecture in GGUF files.
        tokens: keys of config.json and texts of tokens.
        tensors: names of tensors beside the layers; the first is the last matrix.
        layer: names of a layer's tensors below `path`, which has {} for its number.
        vision: returns `vision_config`.
        read: returns further settings of config.json.
        processor: returns preprocessor_config.json.
        has_sections: tokens have positions in time, height and width.
    """

    architecture: str
    model_type: str
    vision_type: str
    models: Mapping[str, str]
    tokens: Mapping[str, str]
    tensors: Mapping[str, str]
    processor: Callable[[GgufFile, Settings], Settings]
    layer: Mapping[str, str] = field(default_factory=lambda: _SIGLIP_LAYER)
    path: str = "vision_tower.encoder.layers.{}"
    vision: Callable[[GgufFile], Settings] = _siglip
    read: Callable[[GgufFile, Settings], Settings] = _nothing
    has_sections: bool = False

    def name_of(self, file: GgufFile, name: str) -> str | None:
        """Return Hugging Face's name of a tensor; None for one that such a tower lacks."""
        if name in self.tensors:
            return self.tensors[name]
        match = _LAYER_NAME.fullmatch(name)
        if match is not None and f"{match[2]}.{match[3]}" in self.layer:
            return f"{self.path.format(match[1])}.{self.layer[f'{match[2]}.{match[3]}']}"
        if match is not None and match[2] in self.layer:
            return f"{self.path.format(match[1])}.{self.layer[match[2]]}.{match[3]}"
        match, layers = _DEEP_NAME.fullmatch(name), _deep_layers(file)
        if match is not None and int(match[1]) in layers and match[2] in _DEEP_PARTS:
            stem = f"visual.deepstack_merger_list.{layers.index(int(match[1]))}"
            return f"{stem}.{_DEEP_PARTS[match[2]]}.{match[3]}"
        return None


def number_of(file: GgufFile, key: str, default: int | None = None) -> int:
    """Return a size of a vision tower.  Raises StartError."""
    value = file.metadata.get(f"clip.vision.{key}", default)
    if type(value) is not int or not 0 < value < 2**30:
        shown = "an array" if isinstance(value, UnreadArray) else repr(value)
        raise StartError(f"{file.path} has clip.vision.{key} {shown}, expected a size")
    return value


def _qwen_row(
    family: str,
    model: str,
    tensors: Mapping[str, str],
    layer: Mapping[str, str],
    vision: Callable[[GgufFile], Settings],
) -> ProjectorRow:
    """Return the row of a family of Qwen-VL for files of the language model `model`."""
    kind = family.lower().replace("vl", "_vl").replace("__", "_")
    return ProjectorRow(
        architecture=f"{family}ForConditionalGeneration",
        model_type=kind,
        vision_type=f"{kind}_vision",
        models={model: f"{kind}_text"},
        tokens=_QWEN_TOKENS,
        tensors=tensors,
        processor=_qwen_processor,
        layer=layer,
        path="visual.blocks.{}",
        vision=vision,
        has_sections=True,
    )


ROWS = {
    "internvl": ProjectorRow(
        architecture="InternVLForConditionalGeneration",
        model_type="internvl",
        vision_type="internvl_vision",
        models={"qwen2": "qwen2", "qwen3": "qwen3", "llama": "llama"},
        tokens={"image_token_id": "<IMG_CONTEXT>"},
        tensors=_INTERN_TENSORS,
        processor=_internvl_processor,
        layer=_INTERN_LAYER,
        path="vision_tower.encoder.layer.{}",
        vision=_internvl,
        read=_internvl_scale,
    ),
    "idefics3": ProjectorRow(
        architecture="SmolVLMForConditionalGeneration",
        model_type="smolvlm",
        vision_type="smolvlm_vision",
        models={"llama": "llama"},
        tokens={"image_token_id": "<image>"},
        tensors={
            "mm.model.fc.weight": "connector.modality_projection.proj.weight", **_SIGLIP_PATCHES,
        },
        processor=_idefics_processor,
        read=_idefics,
    ),
    "gemma3": ProjectorRow(
        architecture="Gemma3ForConditionalGeneration",
        model_type="gemma3",
        vision_type="siglip_vision_model",
        models={"gemma3": "gemma3_text"},
        tokens={
            "image_token_id": "<image_soft_token>",
            "boi_token_id": "<start_of_image>",
            "eoi_token_id": "<end_of_image>",
        },
        tensors={
            "mm.input_projection.weight": "multi_modal_projector.mm_input_projection_weight",
            "mm.soft_emb_norm.weight": "multi_modal_projector.mm_soft_emb_norm.weight",
            **_SIGLIP_PATCHES,
        },
        processor=_gemma3_processor,
        read=_gemma3,
    ),
    "qwen2vl_merger": _qwen_row("Qwen2VL", "qwen2vl", _QWEN2_TENSORS, _QWEN2_LAYER, _qwen2),
    "qwen2.5vl_merger": _qwen_row(
        "Qwen2_5_VL", "qwen2vl", _QWEN2_TENSORS, _QWEN2_5_LAYER, _qwen2_5
    ),
    "qwen3vl_merger": _qwen_row("Qwen3VL", "qwen3vl", _QWEN3_TENSORS, _QWEN3_LAYER, _qwen3),
}  # fmt: skip
