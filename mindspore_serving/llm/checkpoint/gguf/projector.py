"""Vision towers in GGUF files of their own (mmproj-*.gguf), which lie beside their language models.

llama.cpp calls this architecture "clip".  Knows its metadata and names of tensors, and those of
the same model in Hugging Face's format.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.configuration import ARCHITECTURE
from mindspore_serving.llm.checkpoint.gguf.pieces import open_gguf
from mindspore_serving.llm.checkpoint.gguf.projector_rows import LATER_PATCHES, ROWS, ProjectorRow
from mindspore_serving.llm.checkpoint.gguf.reader import Blocks, GgufFile
from mindspore_serving.llm.checkpoint.gguf.stored import floats_of, stored
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor

MARK = "mmproj"  # part of the names of such files
TYPE = "clip.projector_type"
TOKENS = "tokenizer.ggml.tokens"
Settings = dict[str, Any]


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


def _projection_width(file: GgufFile, row: ProjectorRow) -> int | None:
    blocks = file.tensors.get(next(iter(row.tensors)))
    if blocks is None:
        return None
    return blocks.shape[-1] if "input_projection" in next(iter(row.tensors)) else blocks.shape[0]


def with_images(config: Settings, model: GgufFile, file: GgufFile) -> Settings:
    """Return config.json of a language model together with its vision tower in `file`."""
    row = ROWS[file.metadata[TYPE]]
    vision = row.vision(file)
    ids = _ids_of(model, tuple(row.tokens.values()))
    return {
        **config,
        **_sections(model, row),
        **row.read(file, vision),
        **{key: ids[text] for key, text in row.tokens.items()},
        "architectures": [row.architecture],
        "model_type": row.model_type,
        "vision_config": {"model_type": row.vision_type, **vision},
        "text_config": {"model_type": row.models[model.metadata[ARCHITECTURE]]},
    }


def _sections(model: GgufFile, row: ProjectorRow) -> Settings:
    """Return the parts of heads that positions in time, height and width rotate."""
    key = f"{model.metadata[ARCHITECTURE]}.rope.dimension_sections"
    if not row.has_sections:
        return {}
    return {"rope_scaling": {"rope_type": "default", "mrope_section": model.array(key)[:3]}}


def processor_of(file: GgufFile) -> Settings:
    """Return preprocessor_config.json of a vision tower."""
    row = ROWS[file.metadata[TYPE]]
    settings = row.processor(file, row.vision(file))
    for name in ("image_mean", "image_std"):
        settings[name] = file.array(f"clip.vision.{name}")
    return settings


def read_tower(file: GgufFile) -> dict[str, StoredTensor]:
    """Return the tensors of a vision tower by Hugging Face's names.

    Raises StartError naming an unknown tensor.
    """
    row = ROWS[file.metadata[TYPE]]
    return dict(
        _renamed(file, row, name, blocks)
        for name, blocks in file.tensors.items()
        if name != LATER_PATCHES
    )


def _renamed(
    file: GgufFile, row: ProjectorRow, name: str, blocks: Blocks
) -> tuple[str, StoredTensor]:
    if name == "mm.soft_emb_norm.weight":  # the converter adds the 1 of Gemma's norms
        numbers = floats_of(blocks) - np.float32(1)
        return row.tensors[name], StoredTensor("F32", numbers.shape, numbers)
    label = row.name_of(file, name)
    if label is None:
        raise StartError(
            f"{file.path} has a tensor {name!r}, which a tower with projector_type "
            f"{file.metadata[TYPE]!r} does not have here"
        )
    later = file.tensors.get(LATER_PATCHES)
    if name != LATER_PATCHES.removesuffix(".1") or later is None:
        return label, stored(blocks)
    frames = np.stack([floats_of(blocks), floats_of(later)], 2)  # the converter has split them
    return label, StoredTensor("F32", frames.shape, frames)
