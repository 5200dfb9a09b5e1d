"""Sizes of vision towers in llama.cpp's files as `vision_config`, and their image processors.

Knows no file of a language model, and which tensors tell a setting.
"""

from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.reader import Blocks, GgufFile, UnreadArray

SIZES = {
    "image_size": "image_size",
    "patch_size": "patch_size",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
}
_EPSILON, _SCALE = "attention.layer_norm_epsilon", "projector.scale_factor"
_DEEP_LAYERS, _OUTPUTS = "clip.vision.is_deepstack_layers", "clip.vision.feature_layer"
_RESOLUTIONS = "clip.vision.image_grid_pinpoints"
_CLASS, _TABLE = "v.class_embd", "v.position_embd.weight"
_MAX_RESOLUTIONS, _MAX_SIDE = 64, 2**14  # pixels
Settings = dict[str, Any]


def number_of(file: GgufFile, key: str, default: int | None = None) -> int:
    """Return a size of a vision tower.  Raises StartError."""
    value = file.metadata.get(f"clip.vision.{key}", default)
    if type(value) is not int or not 0 < value < 2**30:
        shown = "an array" if isinstance(value, UnreadArray) else repr(value)
        raise StartError(f"{file.path} has clip.vision.{key} {shown}, expected a size")
    return value


def siglip(file: GgufFile) -> Settings:
    """Return the sizes of a vision tower as `vision_config`.  Raises StartError."""
    vision: Settings = {name: number_of(file, key) for name, key in SIZES.items()}
    epsilon = file.metadata.get(f"clip.vision.{_EPSILON}")
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise StartError(f"{file.path} has {_EPSILON} {epsilon!r}, expected a small number")
    for whole, part in (("image_size", "patch_size"), ("hidden_size", "num_attention_heads")):
        if vision[whole] % vision[part]:
            raise StartError(
                f"{file.path} has {SIZES[whole]} {vision[whole]}, expected a multiple of "
                f"{SIZES[part]} {vision[part]}"
            )
    activation = "gelu_pytorch_tanh" if file.metadata.get("clip.use_gelu") else "quick_gelu"
    activation = "silu" if file.metadata.get("clip.use_silu") else activation
    return {**vision, "layer_norm_eps": epsilon, "hidden_act": activation, "num_channels": 3}


def _exact(vision: Settings) -> Settings:
    """Return `vision` of a tower whose "gelu" is the exact function."""
    is_gelu = vision["hidden_act"] == "gelu_pytorch_tanh"
    return {**vision, "hidden_act": "gelu"} if is_gelu else vision


def llava(file: GgufFile) -> Settings:
    """Return the sizes of a tower of CLIP, or of SigLIP if there is no class token."""
    if _CLASS in file.tensors:
        return _exact(siglip(file))
    vision = {**siglip(file), "hidden_act": "gelu_pytorch_tanh"}  # whatever the file says of it
    return {**vision, "model_type": "siglip_vision_model"}


def pixtral(file: GgufFile) -> Settings:
    """Return the sizes of a tower of Pixtral."""
    return _exact(siglip(file))


def _qwen(file: GgufFile) -> Settings:
    """Return what the towers of Qwen-VL have alike."""
    vision = siglip(file)
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


def qwen2(file: GgufFile) -> Settings:
    """Return the sizes of Qwen2-VL's tower."""
    vision = _qwen(file)
    width = vision["hidden_size"]
    return {
        **vision,
        "embed_dim": width,
        "hidden_size": vision["out_hidden_size"],
        "mlp_ratio": vision["intermediate_size"] // width,
    }


def qwen2_5(file: GgufFile) -> Settings:
    """Return the sizes of Qwen2.5-VL's tower."""
    vision, pattern = _qwen(file), number_of(file, "n_wa_pattern")
    return {
        **vision,
        "fullatt_block_indexes": list(range(pattern - 1, vision["depth"], pattern)),
        "window_size": number_of(file, "window_size", 112),
        "tokens_per_second": 2,  # of the published models; their files do not have it
    }


def qwen3(file: GgufFile) -> Settings:
    """Return the sizes of the tower of Qwen3-VL and Qwen3.5."""
    side = number_of(file, "image_size") // number_of(file, "patch_size")
    return {
        **_qwen(file),
        "deepstack_visual_indexes": deep_layers(file),
        "num_position_embeddings": side**2,
    }


def glm(file: GgufFile) -> Settings:
    """Return the sizes of GLM-V's tower."""
    vision = siglip(file)
    return {
        **_qwen(file),
        "image_size": vision["image_size"],
        "rms_norm_eps": vision["layer_norm_eps"],
    }


def gemma4(file: GgufFile) -> Settings:
    """Return the sizes of Gemma 4's tower.

    Raises StartError unless queries fit the heads, and the table of positions rows and columns.
    """
    vision = siglip(file)
    heads, queries = vision["num_attention_heads"], file.tensors.get("v.blk.0.attn_q.weight")
    rows = queries.shape[0] if queries else 0
    if not rows or rows % heads:
        raise StartError(f"{file.path} has {rows} rows of queries, expected those of {heads} heads")
    table = file.tensors.get(_TABLE)
    shape = list(table.shape) if table else None
    if shape is None or len(shape) != 3 or shape[::2] != [2, vision["hidden_size"]]:
        raise StartError(
            f"{file.path} has {_TABLE} {shape}, expected [2, positions, {vision['hidden_size']}]"
        )
    return {
        **vision,
        "head_dim": rows // heads,
        "num_key_value_heads": heads,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": vision["layer_norm_eps"],
        "pooling_kernel_size": number_of(file, _SCALE, 3),
        "position_embedding_size": shape[1],
        "use_clipped_linears": "v.blk.0.attn_q.input_max" in file.tensors,
        "standardize": "v.std_bias" in file.tensors,
    }


def internvl(file: GgufFile) -> Settings:
    """Return the sizes of InternVL's tower."""
    vision = siglip(file)
    return {
        **vision,
        "image_size": [vision["image_size"]] * 2,
        "patch_size": [vision["patch_size"]] * 2,
        "hidden_act": "gelu",
        "attention_bias": "v.blk.0.attn_q.bias" in file.tensors,
        "use_qk_norm": "v.blk.0.attn_q_norm.weight" in file.tensors,
        "norm_type": "layer_norm" if "v.blk.0.ln1.bias" in file.tensors else "rms_norm",
    }


def deep_layers(file: GgufFile) -> list[int]:
    """Return the numbers of the layers whose outputs are projected too."""
    if _DEEP_LAYERS not in file.metadata:
        return []
    return [index for index, is_deep in enumerate(file.array(_DEEP_LAYERS)) if is_deep]


def nothing(file: GgufFile, vision: Settings) -> Settings:
    """Return no settings beside `vision_config`."""
    return {}


def internvl_scale(file: GgufFile, vision: Settings) -> Settings:
    """Return how many patches InternVL merges into a vector."""
    return {"downsample_ratio": 1 / number_of(file, _SCALE, 2)}


def idefics(file: GgufFile, vision: Settings) -> Settings:
    """Return how many patches Idefics3 merges into a vector."""
    return {"scale_factor": number_of(file, _SCALE, 2)}


def gemma3(file: GgufFile, vision: Settings) -> Settings:
    """Return the number of vectors of an image of Gemma 3."""
    side = vision["image_size"] // vision["patch_size"] // number_of(file, _SCALE, 4)
    return {"mm_tokens_per_image": side**2}


def llava_outputs(file: GgufFile, vision: Settings) -> Settings:
    """Return the layers whose outputs are joined: those in the file, or the last that it has.

    Raises StartError.
    """
    count = vision["num_hidden_layers"]
    layers = file.array(_OUTPUTS) if _OUTPUTS in file.metadata else [count]
    if not layers or any(type(n) is not int or not 0 <= n <= count for n in layers):
        raise StartError(
            f"{file.path} has {_OUTPUTS} {str(layers)[:80]}, expected numbers up to {count}"
        )
    return {
        "vision_feature_layer": layers if len(layers) > 1 else layers[0],
        "vision_feature_select_strategy": "default" if _CLASS in file.tensors else "full",
        "projector_hidden_act": "gelu",
    }


def llava_next(file: GgufFile, vision: Settings) -> Settings:
    """Return what `llava_outputs` does, and the resolutions at which images are cut into tiles."""
    return {**llava_outputs(file, vision), "image_grid_pinpoints": _resolutions(file, vision)}


def _resolutions(file: GgufFile, vision: Settings) -> list[list[int]]:
    numbers, side = file.array(_RESOLUTIONS), vision["image_size"]
    is_fit = all(type(n) is int and 0 < n <= _MAX_SIDE and n % side == 0 for n in numbers)
    if not is_fit or len(numbers) % 2 or not 0 < len(numbers) <= 2 * _MAX_RESOLUTIONS:
        raise StartError(
            f"{file.path} has {_RESOLUTIONS} {str(numbers)[:80]}, expected pairs of multiples of "
            f"image_size {side}"
        )
    return [numbers[at : at + 2] for at in range(0, len(numbers), 2)]


def mistral3(file: GgufFile, vision: Settings) -> Settings:
    """Return the settings of Mistral 3, and of Pixtral, which does not join patches."""
    return {
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "projector_hidden_act": "gelu",
        "spatial_merge_size": number_of(file, "spatial_merge_size", 1),
    }


def mistral3_text(text: Settings) -> Settings:
    """Return the setting of the text model that its projector shares."""
    return {"rms_norm_eps": text.get("rms_norm_eps", 1e-5)}


def gemma4_text(text: Settings) -> Settings:
    """Return how tokens of an image see each other: in both directions, but in small models.

    Files do not have it.  Of the published models those with inputs of layers do not.
    """
    is_small = bool(text.get("hidden_size_per_layer_input"))
    return {
        "use_bidirectional_attention": None if is_small else "vision",
        "sliding_window": text.get("sliding_window"),
    }


def no_text(text: Settings) -> Settings:
    """Return no settings of the text model."""
    return {}


def internvl_processor(file: GgufFile, vision: Settings) -> Settings:
    """Return preprocessor_config.json of InternVL."""
    height, width = vision["image_size"]
    return {
        "image_processor_type": "GotOcr2ImageProcessor",
        "size": {"height": height, "width": width},
        "max_patches": number_of(file, "preproc_max_tiles", 12),
    }


def idefics_processor(file: GgufFile, vision: Settings) -> Settings:
    """Return preprocessor_config.json of Idefics3 and SmolVLM."""
    size = vision["image_size"]
    longest = number_of(file, "preproc_image_size", 4 * size)
    return {
        "image_processor_type": "SmolVLMImageProcessor",
        "size": {"longest_edge": longest},
        "max_image_size": {"longest_edge": size},
    }


def gemma3_processor(file: GgufFile, vision: Settings) -> Settings:
    """Return preprocessor_config.json of Gemma 3."""
    return {"image_processor_type": "Gemma3ImageProcessor", "size": _square(vision)}


def gemma4_processor(file: GgufFile, vision: Settings) -> Settings:
    """Return preprocessor_config.json of Gemma 4, with the largest number of vectors."""
    token = (vision["patch_size"] * vision["pooling_kernel_size"]) ** 2
    return {
        "image_processor_type": "Gemma4ImageProcessor",
        "max_soft_tokens": number_of(file, "image_max_pixels", 280 * token) // token,
        "patch_size": vision["patch_size"],
        "pooling_kernel_size": vision["pooling_kernel_size"],
    }


def llava_processor(file: GgufFile, vision: Settings) -> Settings:
    """Return preprocessor_config.json of LLaVA."""
    if _CLASS not in file.tensors:
        return {"image_processor_type": "SiglipImageProcessor", "size": _square(vision)}
    return {"image_processor_type": "CLIPImageProcessor", **_cropped(vision)}


def llava_next_processor(file: GgufFile, vision: Settings) -> Settings:
    """Return preprocessor_config.json of LLaVA-NeXT."""
    size = {} if _CLASS in file.tensors else {"size": _square(vision)}
    return {
        "image_processor_type": "LlavaNextImageProcessor",
        "image_grid_pinpoints": _resolutions(file, vision),
        **_cropped(vision),
        **size,
    }


def _cropped(vision: Settings) -> Settings:
    return {"size": {"shortest_edge": vision["image_size"]}, "crop_size": _square(vision)}


def _square(vision: Settings) -> Settings:
    return {"height": vision["image_size"], "width": vision["image_size"]}


def pixtral_processor(file: GgufFile, vision: Settings) -> Settings:
    """Return preprocessor_config.json of Pixtral and Mistral 3."""
    return {
        "image_processor_type": "PixtralImageProcessor",
        "size": {"longest_edge": vision["image_size"]},
        "patch_size": vision["patch_size"],
    }


def qwen_processor(file: GgufFile, vision: Settings) -> Settings:
    """Return preprocessor_config.json of Qwen-VL, with the sizes of the published models."""
    token = (vision["patch_size"] * vision["spatial_merge_size"]) ** 2
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        **_by_size(file, vision, 4 * token, 16384 * token),
    }


def glm_processor(file: GgufFile, vision: Settings) -> Settings:
    """Return preprocessor_config.json of GLM-V, with the sizes of the published models."""
    return {
        "image_processor_type": "Glm4vImageProcessor",
        **_by_size(file, vision, 112**2, 12288 * 28**2),
    }


def _by_size(file: GgufFile, vision: Settings, smallest: int, largest: int) -> Settings:
    return {
        "patch_size": vision["patch_size"],
        "merge_size": vision["spatial_merge_size"],
        "temporal_patch_size": vision["temporal_patch_size"],
        "size": {
            "shortest_edge": number_of(file, "image_min_pixels", smallest),
            "longest_edge": number_of(file, "image_max_pixels", largest),
        },
    }


def has_turned_matrices(file: GgufFile) -> bool:
    """Return whether the two matrices of a layer have each other's name, as in older files."""
    down: Blocks | None = file.tensors.get("v.blk.0.ffn_down.weight")
    width = file.metadata.get("clip.vision.feed_forward_length")
    return down is not None and down.shape[-1] != width and down.shape[0] == width
