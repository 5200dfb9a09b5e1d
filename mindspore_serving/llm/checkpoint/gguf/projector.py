"""Vision towers in GGUF files of their own, which lie beside their language models or are chosen.

llama.cpp calls this architecture "clip".  Knows its metadata and names of tensors, and those of
the same model in Hugging Face's format.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.configuration import ARCHITECTURE
from mindspore_serving.llm.checkpoint.gguf.pieces import open_gguf
from mindspore_serving.llm.checkpoint.gguf.projector_names import BREAK, LATER_PATCHES, PATCHES
from mindspore_serving.llm.checkpoint.gguf.projector_rows import (
    ROWS,
    ProjectorRow,
    rows_of,
    type_of,
)
from mindspore_serving.llm.checkpoint.gguf.projector_settings import Settings, number_of
from mindspore_serving.llm.checkpoint.gguf.reader import Blocks, GgufFile
from mindspore_serving.llm.checkpoint.gguf.stored import floats_of, halves, stored
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor

MARK = "mmproj"  # part of the names of such files
TOKENS = "tokenizer.ggml.tokens"
_CLIP = "clip"
_NORM = "mm.soft_emb_norm.weight"
_SOUNDS = ("a.", "mm.a.")  # beginnings of names of tensors for sounds, which are not read
_chosen: dict[Path, Path] = {}  # language model -> its tower, in this process


def is_projector(path: Path) -> bool:
    """Return whether the name of a GGUF file says that it has a vision tower."""
    return MARK in path.name.lower()


def choose_projector(path: Path, projector: str | None) -> None:
    """Let the language model `path` have the vision tower `projector` in this process.

    None is the one beside it.  Raises StartError unless both are GGUF files that fit each other.
    """
    _chosen.pop(path.absolute(), None)
    if projector is None:
        return
    if path.is_dir():
        raise StartError(
            f"mmproj is {projector!r}, which is for a model in a GGUF file, and {path} is a "
            "directory: leave it out"
        )
    if not Path(projector).is_file():
        kind = "a directory" if Path(projector).is_dir() else "not there"
        raise StartError(f"mmproj is {projector!r}, which is {kind}, expected a GGUF file")
    file = open_gguf(Path(projector))
    if why := _why_unfit(file, open_gguf(path)):
        raise StartError(f"mmproj is {projector!r}, which {why}")
    _chosen[path.absolute()] = Path(projector).absolute()


def find_projector(path: Path) -> GgufFile | None:
    """Return the file of the vision tower of the language model `path`, if it can be used."""
    return _find(path)[0]


def why_without_images(path: Path) -> str:
    """Return why the vision towers beside the language model `path` are not used; "" if none is."""
    return _find(path)[1]


def _find(path: Path) -> tuple[GgufFile | None, str]:
    if path.absolute() in _chosen:
        return open_gguf(_chosen[path.absolute()]), ""
    files = [file for file in sorted(path.parent.glob("*.gguf")) if is_projector(file)]
    if not files or is_projector(path):
        return None, ""
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        return None, f"there are several files of vision towers ({names}): name one as mmproj"
    try:
        file = open_gguf(files[0])
        why = _why_unfit(file, open_gguf(path))
    except StartError as error:
        return None, str(error)
    return (None, f"{files[0].name} {why}") if why else (file, "")


def _why_unfit(file: GgufFile, model: GgufFile) -> str:
    """Return why the tower in `file` is not one of the language model; "" if it is.

    Raises StartError for settings of the tower that are missing or out of range.
    """
    kind, architecture = file.metadata.get(ARCHITECTURE), model.metadata.get(ARCHITECTURE)
    if kind != _CLIP:
        return f"is of architecture {kind!r}, expected {_CLIP!r}, that of vision towers"
    rows = rows_of(file)
    if not rows:
        return f"has projector_type {type_of(file)!r}, expected one of {', '.join(ROWS)}"
    row = _row_of(rows, model)
    if row is None:
        models = ", ".join(name for each in rows for name in each.models)
        return f"is for {models}, and the model is {architecture!r}"
    width = _projection_width(file, row)
    expected = model.metadata.get(f"{architecture}.embedding_length")
    if width != expected:
        return f"has vectors of {width} numbers, and the model {expected}"
    missing = [text for key, text in row.tokens.items() if key not in _token_ids(row, model)]
    if missing:
        return f"needs the token {missing[0]!r}, which the model lacks"
    with_images({}, model, file)
    processor_of(file)
    return ""


def _row_of(rows: list[ProjectorRow], model: GgufFile) -> ProjectorRow | None:
    """Return the row for the architecture of a language model."""
    architecture = model.metadata.get(ARCHITECTURE)
    return next((row for row in rows if architecture in row.models), None)


def _token_ids(row: ProjectorRow, model: GgufFile) -> Settings:
    """Return the ids of tokens by keys of config.json, without those that the model lacks."""
    ids = _ids_of(model, (*row.tokens.values(), row.other_token))
    first = next(iter(row.tokens))
    other = {first: ids[row.other_token]} if row.other_token in ids else {}
    return other | {key: ids[text] for key, text in row.tokens.items() if text in ids}


@lru_cache(maxsize=4)
def _ids_of(model: GgufFile, texts: tuple[str, ...]) -> dict[str, int]:
    """Return the ids of those tokens with `texts` that a language model has."""
    return {token: index for index, token in enumerate(model.texts(TOKENS)) if token in texts}


def _projection_width(file: GgufFile, row: ProjectorRow) -> int | None:
    blocks = file.tensors.get(next(iter(row.tensors)))
    return blocks.shape[-1 if row.is_turned else 0] if blocks is not None else None


def with_images(config: Settings, model: GgufFile, file: GgufFile) -> Settings:
    """Return config.json of a language model together with its vision tower in `file`."""
    row = _row_of(rows_of(file), model)
    assert row is not None
    vision = row.vision(file)
    text = {"model_type": row.models[model.metadata[ARCHITECTURE]], **row.text(config)}
    return {
        **config,
        **_sections(model, row),
        **row.read(file, vision),
        **_token_ids(row, model),
        "architectures": [row.architecture],
        "model_type": row.model_type,
        "vision_config": {"model_type": row.vision_type, **vision},
        "text_config": text,
    }


def _sections(model: GgufFile, row: ProjectorRow) -> Settings:
    """Return the parts of heads that positions in time, height and width rotate."""
    key = f"{model.metadata[ARCHITECTURE]}.rope.dimension_sections"
    if not row.has_sections:
        return {}
    return {"rope_scaling": {"rope_type": "default", "mrope_section": model.array(key)[:3]}}


def processor_of(file: GgufFile) -> Settings:
    """Return preprocessor_config.json of a vision tower."""
    row = rows_of(file)[0]
    settings = row.processor(file, row.vision(file))
    for name in ("image_mean", "image_std"):
        settings[name] = file.array(f"clip.vision.{name}")
    return settings


def read_tower(file: GgufFile) -> dict[str, StoredTensor]:
    """Return the tensors of a vision tower by Hugging Face's names.

    Raises StartError naming an unknown tensor, or one of a wrong shape.
    """
    row = rows_of(file)[0]
    return dict(
        _renamed(file, row, name, blocks)
        for name, blocks in file.tensors.items()
        if name not in (LATER_PATCHES, BREAK) and not name.startswith(_SOUNDS)
    )


def _renamed(
    file: GgufFile, row: ProjectorRow, name: str, blocks: Blocks
) -> tuple[str, StoredTensor]:
    label = row.name_of(file, name)
    if label is None:
        raise StartError(
            f"{file.path} has a tensor {name!r}, which a tower with projector_type "
            f"{type_of(file)!r} does not have here"
        )
    if name == _NORM:  # the converter adds the 1 of Gemma's norms
        return label, _of_floats(floats_of(blocks) - np.float32(1))
    if name == PATCHES and row.has_square_patches:
        return label, _of_floats(_rows_of_patches(file, blocks))
    later = file.tensors.get(LATER_PATCHES)
    if name == PATCHES and later is not None:  # the converter has split them
        if later.shape != blocks.shape:
            raise _misshapen(file, LATER_PATCHES, later, str(list(blocks.shape)))
        return label, _of_floats(np.stack([floats_of(blocks), floats_of(later)], 2))
    if row.has_pairs and (".attn_q." in name or ".attn_k." in name):
        return label, _in_halves(file, name, blocks)
    return label, stored(blocks)


def _of_floats(numbers: npt.NDArray[np.float32]) -> StoredTensor:
    return StoredTensor("F32", numbers.shape, numbers)


def _rows_of_patches(file: GgufFile, blocks: Blocks) -> npt.NDArray[np.float32]:
    """Return a matrix of [outputs, numbers of a patch row by row, each pixel's colours together].

    Raises StartError unless it is of squares.
    """
    if len(blocks.shape) != 4:
        raise _misshapen(file, PATCHES, blocks, "[outputs, colours, rows, columns]")
    numbers: Any = floats_of(blocks).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(numbers.reshape(len(numbers), -1))


def _in_halves(file: GgufFile, name: str, blocks: Blocks) -> StoredTensor:
    """Return queries or keys in the order of halves of heads.  Raises StartError."""
    heads, rows = number_of(file, "attention.head_count"), blocks.shape[0]
    if rows % (2 * heads):
        raise _misshapen(file, name, blocks, f"rows of {heads} heads of pairs")
    return stored(blocks, halves(rows, heads))


def _misshapen(file: GgufFile, name: str, blocks: Blocks, expected: str) -> StartError:
    return StartError(
        f"{file.path} has a tensor {name!r} of {list(blocks.shape)}, expected {expected}"
    )
