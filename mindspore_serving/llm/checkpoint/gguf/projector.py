"""Vision towers in GGUF files of their own (mmproj-*.gguf), which lie beside their language models.

llama.cpp calls this architecture "clip".  Knows its metadata and names of tensors, and those of
the same model in Hugging Face's format.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.configuration import ARCHITECTURE
from mindspore_serving.llm.checkpoint.gguf.pieces import open_gguf
from mindspore_serving.llm.checkpoint.gguf.reader import Blocks, GgufFile, UnreadArray
from mindspore_serving.llm.checkpoint.gguf.stored import floats_of, stored
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor

MARK = "mmproj"  # part of the names of such files
TYPE = "clip.projector_type"
TOKENS = "tokenizer.ggml.tokens"
SIZES = {
    "image_size": "image_size",
    "patch_size": "patch_size",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
}
_EPSILON, _SCALE = "attention.layer_norm_epsilon", "projector.scale_factor"
_PATCHES = {
    "v.patch_embd.weight": "embeddings.patch_embedding.weight",
    "v.patch_embd.bias": "embeddings.patch_embedding.bias",
    "v.position_embd.weight": "embeddings.position_embedding.weight",
    "v.post_ln.weight": "post_layernorm.weight",
    "v.post_ln.bias": "post_layernorm.bias",
}
_LAYER = {
    "ln1": "layer_norm1", "ln2": "layer_norm2", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_out": "self_attn.out_proj",
    "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2",
}  # fmt: skip
_NAME = re.compile(r"v\.blk\.(\d+)\.(\w+)\.(weight|bias)")
Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Row:
    """A kind of projector.

    `models` has the `model_type` of the text part by its architecture in GGUF files.  `tokens` has
    keys of config.json and texts of tokens, and `tensors` the names of the projection.
    """

    architecture: str
    model_type: str
    vision_type: str
    models: Mapping[str, str]
    tokens: Mapping[str, str]
    tensors: Mapping[str, str]
    read: Callable[[GgufFile, Settings], Settings]
    processor: Callable[[GgufFile, Settings], Settings]


def _idefics(file: GgufFile, vision: Settings) -> Settings:
    return {"scale_factor": _number(file, _SCALE, 2)}


def _idefics_processor(file: GgufFile, vision: Settings) -> Settings:
    size = vision["image_size"]
    longest = _number(file, "preproc_image_size", 4 * size)
    return {
        "image_processor_type": "SmolVLMImageProcessor",
        "size": {"longest_edge": longest},
        "max_image_size": {"longest_edge": size},
    }


def _gemma3(file: GgufFile, vision: Settings) -> Settings:
    side = vision["image_size"] // vision["patch_size"] // _number(file, _SCALE, 4)
    return {"mm_tokens_per_image": side**2}


def _gemma3_processor(file: GgufFile, vision: Settings) -> Settings:
    size = vision["image_size"]
    return {
        "image_processor_type": "Gemma3ImageProcessor",
        "size": {"height": size, "width": size},
    }


ROWS = {
    "idefics3": _Row(
        "SmolVLMForConditionalGeneration", "smolvlm", "smolvlm_vision",
        {"llama": "llama"},
        {"image_token_id": "<image>"},
        {"mm.model.fc.weight": "connector.modality_projection.proj.weight"},
        _idefics,
        _idefics_processor,
    ),
    "gemma3": _Row(
        "Gemma3ForConditionalGeneration", "gemma3", "siglip_vision_model",
        {"gemma3": "gemma3_text"},
        {
            "image_token_id": "<image_soft_token>",
            "boi_token_id": "<start_of_image>",
            "eoi_token_id": "<end_of_image>",
        },
        {
            "mm.input_projection.weight": "multi_modal_projector.mm_input_projection_weight",
            "mm.soft_emb_norm.weight": "multi_modal_projector.mm_soft_emb_norm.weight",
        },
        _gemma3,
        _gemma3_processor,
    ),
}  # fmt: skip


def is_projector(path: Path) -> bool:
    """Return whether the name of a GGUF file says that it has a vision tower."""
    return MARK in path.name.lower()


def find_projector(path: Path) -> GgufFile | None:
    """Return the file of the vision tower beside the language model `path`, if it can be used."""
    return _find(path)[0]


def why_without_images(path: Path) -> str:
    """Return why the vision towers beside the language model `path` are not used; "" if none is."""
    return _find(path)[1]


def _find(path: Path) -> tuple[GgufFile | None, str]:
    files = [file for file in sorted(path.parent.glob("*.gguf")) if is_projector(file)]
    if not files or is_projector(path):
        return None, ""
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        return None, f"there are several files of vision towers ({names}): keep one"
    try:
        file = open_gguf(files[0])
    except StartError as error:
        return None, str(error)
    why = _why_unfit(file, open_gguf(path))
    return (None, f"{files[0].name} {why}") if why else (file, "")


def _why_unfit(file: GgufFile, model: GgufFile) -> str:
    kind, architecture = file.metadata.get(TYPE), model.metadata.get(ARCHITECTURE)
    row = ROWS.get(str(kind))
    if row is None:
        return f"has projector_type {kind!r}, expected one of {', '.join(ROWS)}"
    if architecture not in row.models:
        return f"is for {', '.join(row.models)}, and the model is {architecture!r}"
    width = _projection_width(file, row)
    expected = model.metadata.get(f"{architecture}.embedding_length")
    if width != expected:
        return f"has vectors of {width} numbers, and the model {expected}"
    ids = _ids_of(model, tuple(row.tokens.values()))
    missing = [text for text in row.tokens.values() if text not in ids]
    return f"needs the token {missing[0]!r}, which the model lacks" if missing else ""


@lru_cache(maxsize=4)
def _ids_of(model: GgufFile, texts: tuple[str, ...]) -> dict[str, int]:
    """Return the ids of those tokens with `texts` that a language model has."""
    return {token: index for index, token in enumerate(model.texts(TOKENS)) if token in texts}


def _projection_width(file: GgufFile, row: _Row) -> int | None:
    blocks = file.tensors.get(next(iter(row.tensors)))
    if blocks is None:
        return None
    return blocks.shape[-1] if "input_projection" in next(iter(row.tensors)) else blocks.shape[0]


def with_images(config: Settings, model: GgufFile, file: GgufFile) -> Settings:
    """Return config.json of a language model together with its vision tower in `file`."""
    row, vision = ROWS[file.metadata[TYPE]], _vision_of(file)
    ids = _ids_of(model, tuple(row.tokens.values()))
    return {
        **config,
        **row.read(file, vision),
        **{key: ids[text] for key, text in row.tokens.items()},
        "architectures": [row.architecture],
        "model_type": row.model_type,
        "vision_config": {"model_type": row.vision_type, **vision},
        "text_config": {"model_type": row.models[model.metadata[ARCHITECTURE]]},
    }


def processor_of(file: GgufFile) -> Settings:
    """Return preprocessor_config.json of a vision tower."""
    settings = ROWS[file.metadata[TYPE]].processor(file, _vision_of(file))
    for name in ("image_mean", "image_std"):
        settings[name] = file.array(f"clip.vision.{name}")
    return settings


def read_tower(file: GgufFile) -> dict[str, StoredTensor]:
    """Return the tensors of a vision tower by Hugging Face's names.

    Raises StartError naming an unknown tensor.
    """
    row = ROWS[file.metadata[TYPE]]
    return dict(_renamed(file, row, name, blocks) for name, blocks in file.tensors.items())


def _renamed(file: GgufFile, row: _Row, name: str, blocks: Blocks) -> tuple[str, StoredTensor]:
    if name == "mm.soft_emb_norm.weight":  # the converter adds the 1 of Gemma's norms
        numbers = floats_of(blocks) - np.float32(1)
        return row.tensors[name], StoredTensor("F32", numbers.shape, numbers)
    if name in row.tensors:
        return row.tensors[name], stored(blocks)
    match = _NAME.fullmatch(name)
    if match is not None and match[2] in _LAYER:
        part = f"encoder.layers.{match[1]}.{_LAYER[match[2]]}.{match[3]}"
    elif name in _PATCHES:
        part = _PATCHES[name]
    else:
        raise StartError(
            f"{file.path} has a tensor {name!r}, which a tower with projector_type "
            f"{file.metadata[TYPE]!r} does not have here"
        )
    return f"vision_tower.{part}", stored(blocks)


def _vision_of(file: GgufFile) -> Settings:
    """Return the sizes of a vision tower as `vision_config`.  Raises StartError."""
    vision: Settings = {name: _number(file, key) for name, key in SIZES.items()}
    epsilon = file.metadata.get(f"clip.vision.{_EPSILON}")
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise StartError(f"{file.path} has {_EPSILON} {epsilon!r}, expected a small number")
    if vision["image_size"] % vision["patch_size"]:
        raise StartError(
            f"{file.path} has image_size {vision['image_size']}, expected a multiple of patch_size "
            f"{vision['patch_size']}"
        )
    activation = "gelu_pytorch_tanh" if file.metadata.get("clip.use_gelu") else "quick_gelu"
    return {**vision, "layer_norm_eps": epsilon, "hidden_act": activation, "num_channels": 3}


def _number(file: GgufFile, key: str, default: int | None = None) -> int:
    value = file.metadata.get(f"clip.vision.{key}", default)
    if type(value) is not int or not 0 < value < 2**20:
        shown = "an array" if isinstance(value, UnreadArray) else repr(value)
        raise StartError(f"{file.path} has clip.vision.{key} {shown}, expected a size")
    return value
