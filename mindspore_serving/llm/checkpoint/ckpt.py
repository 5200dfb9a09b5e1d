"""MindSpore's `.ckpt` format: tensors of a mapped file by name.

The file is a protobuf message: Checkpoint { repeated Value value = 1 }, Value { tag = 1,
tensor = 2 }, tensor { dims = 1, tensor_type = 2, tensor_content = 3 }.  These few fields are read
here, because the protobuf library copies all contents and ends at 2 GiB.  Knows neither MindSpore
nor what the tensors mean.
"""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.safetensors import BITS, StoredTensor

Span: TypeAlias = tuple[int, int]  # begin and end in the file

# tensor_type -> the name of the type here.
_WIDE = [(word, bits) for word in ("Float", "Int", "UInt") for bits in (64, 32, 16)]
TYPES = {f"{word}{bits}": f"{word[0]}{bits}" for word, bits in _WIDE}
TYPES |= {"Int8": "I8", "UInt8": "U8", "BFloat16": "BF16", "Bool": "BOOL"}
TEXT = "str"  # the tensor_type of what is no tensor: a note of who saved the file
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # protobuf's wire types
ENCRYPTED = b"\xd8\x5e\x3a\x7f"  # how an encrypted file begins
CRC_MARK, CRC_BYTES = b"crc_num", 10  # the mark and a big-endian number end a file saved with a CRC
MAX_ENTRIES = 2**20
MAX_DIMS = 32


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the file; a large tensor is several in a row, each with all of its `dims`."""

    name: str
    kind: str
    dims: tuple[int, ...]
    content: Span


def read_ckpt(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file; texts stored among them are left out.

    Views of the mapped file, which need not be aligned.  A checksum in the file is verified.
    Raises StartError naming the file, and the tensor that is wrong.
    """
    reader = _Reader(path)
    tensors: dict[str, StoredTensor] = {}
    for name, run in groupby(reader.entries(), attrgetter("name")):
        entries = list(run)
        if name in tensors:
            raise StartError(f"{path}: tensor {name!r} is there twice")
        if entries[0].kind != TEXT:
            tensors[name] = reader.tensor(entries)
    return tensors


class _Reader:
    """Walks the fields of one mapped file; every length is checked before it is used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if path.stat().st_size == 0:
            raise StartError(f"{path} is empty")
        mapped: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
        self._bytes = mapped.view(np.ndarray)
        if self._bytes[:4].tobytes() == ENCRYPTED:
            raise StartError(f"{path} is encrypted; save it again without enc_key")
        self._end = self._checked_end()

    def entries(self) -> Iterator[Entry]:
        for count, (number, value) in enumerate(self._fields((0, self._end))):
            if count >= MAX_ENTRIES:
                raise StartError(f"{self._path} has more than {MAX_ENTRIES} tensors")
            if number != 1:
                raise self._broken(f"field {number} at its top")
            yield self._entry(self._span(value))

    def tensor(self, entries: list[Entry]) -> StoredTensor:
        """The tensor that is stored in `entries`, one after another."""
        first = entries[0]
        where = f"{self._path}: tensor {first.name!r}"
        dtype = TYPES.get(first.kind)
        if dtype is None:
            raise StartError(f"{where} has type {first.kind!r}, expected one of {', '.join(TYPES)}")
        if any((entry.kind, entry.dims) != (first.kind, first.dims) for entry in entries):
            raise StartError(f"{where} is there twice, with another type or shape")
        size = sum(end - begin for begin, end in (entry.content for entry in entries))
        item = BITS[dtype].itemsize
        shape = () if first.dims == (0,) and size == item else first.dims
        if prod(shape) * item != size or prod(max(dim, 1) for dim in shape) >= 2**60:
            raise StartError(f"{where} has {size} bytes, expected {list(shape)} of {dtype}")
        parts = [self._bytes[begin:end] for begin, end in (entry.content for entry in entries)]
        bits = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return StoredTensor(dtype, shape, bits.view(BITS[dtype]).reshape(shape))

    def _entry(self, span: Span) -> Entry:
        name, tensor = "", None
        for number, value in self._fields(span):
            if number == 1:
                name = self._text(value)
            elif number == 2:
                tensor = self._span(value)
        if not name:
            raise self._broken("a tensor without a name")
        if tensor is None:
            raise StartError(f"{self._path}: {name!r} is no tensor (a map parameter?)")
        return self._tensor(name, tensor)

    def _tensor(self, name: str, span: Span) -> Entry:
        dims: list[int] = []
        kind, content = "", (0, 0)
        for number, value in self._fields(span):
            if number == 1:
                dims += [value] if isinstance(value, int) else self._packed(value)
            elif number == 2:
                kind = self._text(value)
            elif number == 3:
                content = self._span(value)
        if len(dims) > MAX_DIMS:
            raise StartError(f"{self._path}: tensor {name!r} has {len(dims)} dimensions")
        return Entry(name, kind, tuple(dims), content)

    def _fields(self, span: Span) -> Iterator[tuple[int, int | Span]]:
        """(number, value) of the fields of a message; a value with a length is a span."""
        at, end = span
        while at < end:
            key, at = self._varint(at, end)
            number, wire = key >> 3, key & 7
            value: int | Span
            if wire == VARINT:
                value, at = self._varint(at, end)
            elif wire in (BYTES, FIXED64, FIXED32):
                size = {FIXED64: 8, FIXED32: 4}.get(wire, 0)
                if wire == BYTES:
                    size, at = self._varint(at, end)
                if size > end - at:
                    raise self._broken(f"{size} bytes at {at}, where {end - at} are left")
                value, at = (at, at + size), at + size
            else:
                raise self._broken(f"wire type {wire} at {at}")
            yield number, value

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """The number at `at`, and where it ends."""
        result = shift = 0
        for index in range(at, min(end, at + 10)):
            byte = int(self._bytes[index])
            result |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return result, index + 1
        raise self._broken(f"a number without an end at {at}")

    def _packed(self, span: Span) -> list[int]:
        at, end = span
        numbers: list[int] = []
        while at < end and len(numbers) <= MAX_DIMS:
            number, at = self._varint(at, end)
            numbers.append(number)
        return numbers

    def _span(self, value: int | Span) -> Span:
        if isinstance(value, int):
            raise self._broken("a number in place of bytes")
        return value

    def _text(self, value: int | Span) -> str:
        begin, end = self._span(value)
        try:
            return self._bytes[begin:end].tobytes().decode()
        except UnicodeDecodeError:
            raise self._broken(f"a name that is not UTF-8 at {begin}") from None

    def _checked_end(self) -> int:
        """Where the message ends: before the checksum, if there is one, which must be right."""
        end = len(self._bytes) - len(CRC_MARK) - CRC_BYTES
        tail = self._bytes[max(end, 0) :].tobytes()
        if end < 0 or not tail.startswith(CRC_MARK):
            return len(self._bytes)
        content: Any = self._bytes[:end]
        if zlib.crc32(content) != int.from_bytes(tail[len(CRC_MARK) :], "big"):
            raise StartError(f"{self._path} does not have the checksum in it: it is damaged")
        return end

    def _broken(self, found: str) -> StartError:
        return StartError(f"{self._path} has {found}: cut off, damaged, or no MindSpore checkpoint")


MINDFORMERS_EMBEDDING = "model.tok_embeddings.embedding_weight"  # no other library has this name
MINDFORMERS_FUSED = (".attention.w_qkv.", ".feed_forward.w_gate_hidden.")
MINDFORMERS = (
    ("model.tok_embeddings.embedding_weight", "model.embed_tokens.weight"),
    ("model.norm_out.", "model.norm."),
    (".attention.wq.", ".self_attn.q_proj."),
    (".attention.wk.", ".self_attn.k_proj."),
    (".attention.wv.", ".self_attn.v_proj."),
    (".attention.wo.", ".self_attn.o_proj."),
    (".attention_norm.", ".input_layernorm."),
    (".ffn_norm.", ".post_attention_layernorm."),
    (".feed_forward.w1.", ".mlp.gate_proj."),
    (".feed_forward.w2.", ".mlp.down_proj."),
    (".feed_forward.w3.", ".mlp.up_proj."),
)
# The parameters of mindspore.nn.Embedding and LayerNorm, which MindNLP's models are built of.
LEAVES = {"embedding_table": "weight", "gamma": "weight", "beta": "bias"}


def hugging_face_names(names: Iterable[str]) -> dict[str, str]:
    """Name that MindFormers, MindNLP or Hugging Face gives -> Hugging Face's, for all `names`.

    Raises StartError: matrices that MindFormers has fused, two names that become one.
    """
    names = list(names)
    is_mindformers = MINDFORMERS_EMBEDDING in names
    rename = _mindformers if is_mindformers else _mindnlp
    renamed = {name: rename(name) for name in names}
    origins: dict[str, str] = {}
    for name, new in renamed.items():
        if new in origins:
            raise StartError(f"tensors {origins[new]!r} and {name!r} both are {new!r}")
        origins[new] = name
    return renamed


def _mindformers(name: str) -> str:
    if any(part in name for part in MINDFORMERS_FUSED):
        raise StartError(
            f"tensor {name!r} is fused, in an order that depends on how it was trained; convert "
            "the checkpoint with qkv_concat=False first"
        )
    for theirs, ours in MINDFORMERS:
        name = name.replace(theirs, ours)
    return name


def _mindnlp(name: str) -> str:
    stem, dot, leaf = name.rpartition(".")
    return f"{stem}{dot}{LEAVES.get(leaf, leaf)}" if dot else name
