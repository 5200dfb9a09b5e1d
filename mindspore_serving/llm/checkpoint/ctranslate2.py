"""Whisper checkpoints in CTranslate2's form: `model.bin`, as tensors with Hugging Face's names.

A file has a version, the name of a specification, and tensors: name, sizes, type, bytes. All are
views of the mapped file, except 8-bit and 16-bit integers, which become 16-bit floats. Every size
is checked before anything is read.
"""

import re
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.file_check import SPEECH_WEIGHTS as FILE
from mindspore_serving.llm.checkpoint.model_files import CONFIG, read_optional_json
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor

SPECIFICATION = "WhisperSpec"
_VERSIONS = range(4, 7)  # 6 is the newest; before 4, types were sizes
_TYPES: dict[int, tuple[str, Any]] = {  # number -> name as in safetensors, type of the bits
    0: ("F32", "<f4"),
    1: ("I8", "i1"),
    2: ("I16", "<i2"),
    3: ("I32", "<i4"),
    4: ("F16", "<u2"),
    5: ("BF16", "<u2"),
}
_MAX_TENSORS, _MAX_NAME, _MAX_DIMS = 20_000, 512, 8
_INT16_RANGE = 1023.0  # CTranslate2 scales 16-bit weights into this

_IN_LAYERS = {  # of a layer, by stack: roles there -> names in Hugging Face's files
    "encoder": {
        "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "self_attention/linear_1": ("self_attn.out_proj",),
        "self_attention/layer_norm": ("self_attn_layer_norm",),
        "ffn/linear_0": ("fc1",),
        "ffn/linear_1": ("fc2",),
        "ffn/layer_norm": ("final_layer_norm",),
    }
}
_IN_LAYERS["decoder"] = {
    **_IN_LAYERS["encoder"],
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
}
_OUTSIDE_LAYERS = {
    "embeddings": "embed_tokens",
    "position_encodings": "embed_positions",
    "layer_norm": "layer_norm",
    "conv1": "conv1",
    "conv2": "conv2",
}
_KINDS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
_KINDS["encodings"] = "weight"
_LAYER = re.compile(r"(encoder|decoder)/layer_(\d{1,3})/(.+)/(weight|bias|gamma|beta)")
_OTHER = re.compile(r"(encoder|decoder)/(\w+)/(weight|bias|gamma|beta|encodings)")


def read_whisper(directory: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Return the configuration, with Hugging Face's keys, and the tensors of a directory.

    Raises StartError naming the file and what is wrong with it.
    """
    stored = read_tensors(directory / FILE)
    tensors = dict(_translated(stored))
    config = read_optional_json(directory / CONFIG)
    return _configuration(directory, stored, tensors) | {"ctranslate2": config}, tensors


def read_tensors(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file by CTranslate2's names; another name of one is left out.

    Raises StartError: a file of another kind, or one that ends early.
    """
    try:
        file: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r").view(np.ndarray)
    except (OSError, ValueError) as error:
        raise StartError(f"{path} cannot be read: {error}") from None
    reader = _Reader(path, file)
    version, name = reader.number("I"), reader.text()
    if version not in _VERSIONS or name != SPECIFICATION:
        raise StartError(
            f"{path} is {name!r:.80} of version {version}, expected {SPECIFICATION} of version "
            f"{_VERSIONS[0]} to {_VERSIONS[-1]}"
        )
    reader.number("I")  # revision of the specification
    count = reader.number("I")
    if count > _MAX_TENSORS:
        raise StartError(f"{path} has {count} tensors, expected at most {_MAX_TENSORS}")
    return dict(reader.tensor() for _ in range(count))


class _Reader:
    """Position in a mapped file."""

    def __init__(self, path: Path, file: npt.NDArray[np.uint8]) -> None:
        self._path, self._file, self._at = path, file, 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")).tobytes())
        return int(value)

    def text(self) -> str:
        length = self.number("H")
        if not 0 < length <= _MAX_NAME:
            raise StartError(f"{self._path} is broken: it has a name of {length} bytes")
        return self.take(length).tobytes().rstrip(b"\0").decode("utf-8", "replace")

    def tensor(self) -> tuple[str, StoredTensor]:
        name, rank = self.text(), self.number("B")
        if rank > _MAX_DIMS:
            raise StartError(f"{self._path}: {name!r} has {rank} sizes, at most {_MAX_DIMS}")
        shape = tuple(self.number("I") for _ in range(rank))
        kind, size = self.number("B"), self.number("I")
        if kind not in _TYPES:
            raise StartError(f"{self._path}: {name!r} has the unknown type {kind}")
        dtype, bits = _TYPES[kind]
        if prod(shape) * np.dtype(bits).itemsize != size:
            raise StartError(f"{self._path}: {name!r} has {size} bytes, not {shape} of {dtype}")
        return name, StoredTensor(dtype, shape, self.take(size).view(bits).reshape(shape))

    def take(self, count: int) -> npt.NDArray[np.uint8]:
        end = self._at + count
        if end > len(self._file):
            missing = end - len(self._file)
            raise StartError(
                f"{self._path} is truncated: {missing} bytes are missing; download or join its "
                "pieces again"
            )
        taken, self._at = self._file[self._at : end], end
        return taken


def _translated(stored: dict[str, StoredTensor]) -> Iterator[tuple[str, StoredTensor]]:
    for name, tensor in stored.items():
        if layer := _LAYER.fullmatch(name):
            stack, number, role, kind = layer.groups()
            parts = _IN_LAYERS[stack].get(role, ())
            stem = f"model.{stack}.layers.{number}."
        elif other := _OTHER.fullmatch(name):
            stack, role, kind = other.groups()
            parts = (_OUTSIDE_LAYERS[role],) if role in _OUTSIDE_LAYERS else ()
            stem = f"model.{stack}."
        else:
            continue  # settings, and scales of integers
        floats = _to_floats(tensor, stored.get(f"{name}_scale"))
        for part, bits in zip(parts, np.split(floats.bits, len(parts) or 1), strict=False):
            if kind == "bias" and part.endswith("k_proj"):
                continue  # zeros, for keys have no bias
            yield f"{stem}{part}.{_KINDS[kind]}", StoredTensor(floats.dtype, bits.shape, bits)


def _to_floats(tensor: StoredTensor, scale: StoredTensor | None) -> StoredTensor:
    """Return integers times their scales as 16-bit floats, and other tensors as they are."""
    if tensor.dtype not in ("I8", "I16"):
        return tensor
    if scale is None and tensor.dtype == "I8":
        raise StartError("a tensor of 8-bit integers has no scales")
    factor = np.float32(_INT16_RANGE) if scale is None else scale.bits.view(np.float32)
    shape = (-1,) + (1,) * (tensor.bits.ndim - 1)
    values = tensor.bits.astype(np.float32) / np.reshape(factor, shape)
    halves = values.astype(np.float16).view(np.uint16)
    return StoredTensor("F16", tensor.shape, halves)


def _configuration(
    directory: Path, stored: dict[str, StoredTensor], tensors: dict[str, StoredTensor]
) -> dict[str, Any]:
    """Return the settings that Hugging Face's config.json has, by the tensors."""

    def shape(name: str) -> tuple[int, ...]:
        if name not in tensors:
            raise StartError(f"{directory / FILE} has no tensor for {name!r}")
        return tensors[name].shape

    def layers(stack: str) -> int:
        numbers = {
            match[2] for match in map(_LAYER.fullmatch, stored) if match and match[1] == stack
        }
        return len(numbers)

    def heads(stack: str) -> int:
        number = stored.get(f"{stack}/num_heads")
        if number is None:
            raise StartError(f"{directory / FILE} has no {stack}/num_heads")
        return int(number.bits.reshape(-1)[0])

    width, mels, _ = (*shape("model.encoder.conv1.weight"), 0, 0, 0)[:3]
    return {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "d_model": width,
        "num_mel_bins": mels,
        "encoder_layers": layers("encoder"),
        "decoder_layers": layers("decoder"),
        "encoder_attention_heads": heads("encoder"),
        "decoder_attention_heads": heads("decoder"),
        "encoder_ffn_dim": shape("model.encoder.layers.0.fc1.weight")[0],
        "decoder_ffn_dim": shape("model.decoder.layers.0.fc1.weight")[0],
        "max_source_positions": shape("model.encoder.embed_positions.weight")[0],
        "max_target_positions": shape("model.decoder.embed_positions.weight")[0],
        "vocab_size": shape("model.decoder.embed_tokens.weight")[0],
        "scale_embedding": bool(_flag(stored, "decoder/scale_embeddings")),
    }


def _flag(stored: dict[str, StoredTensor], name: str) -> int:
    return int(stored[name].bits.reshape(-1)[0]) if name in stored else 0
