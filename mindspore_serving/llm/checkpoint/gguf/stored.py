"""Tensors of a GGUF file as a checkpoint stores them, with rows or columns in another order.

Floats are reordered at once, quantised matrices when they are read. Knows no names except those of
DeepSeek's latent attention. There llama.cpp has the matrix that expands keys and values in two
parts, keys [heads, rank, features], transposed, and values [heads, features, rank]; checkpoints
have one matrix with, head by head, the rows of keys and then of values.
"""

from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.decoding import FORMATS, decode
from mindspore_serving.llm.checkpoint.gguf.reader import Blocks
from mindspore_serving.llm.checkpoint.packing import Packed, merged, unpack
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor, floats
from mindspore_serving.llm.checkpoint.safetensors import BITS, StoredTensor

LATENT = LATENT_KEYS, LATENT_VALUES = "attn_k_b", "attn_v_b"
Order: TypeAlias = npt.NDArray[np.intp]  # indices into the file's rows or columns


def stored(blocks: Blocks, rows: Order | None = None, columns: Order | None = None) -> StoredTensor:
    """Return the tensor, or only its `rows`.

    `columns` is the order of equally wide parts of a row.
    """
    shape = blocks.shape if rows is None else (len(rows), *blocks.shape[1:])
    if blocks.kind not in FORMATS:
        bits: npt.NDArray[Any] = _rows(blocks, rows).view(BITS[blocks.kind])
        return StoredTensor(
            blocks.kind, shape, bits if columns is None else _reorder(bits, columns)
        )
    parts = 1 if columns is None else len(columns)
    is_packed = shape[-1] // parts % FORMATS[blocks.kind].group == 0  # no scale spans two parts
    read = partial(_decoded, blocks, rows, columns, is_packed)
    gather = partial(_gathered, blocks) if rows is None and columns is None else None
    as_stored = partial(_rows, blocks, rows) if columns is None else None
    return QuantizedTensor(
        blocks.kind, shape, blocks.rows, read, is_packed, gather, blocks=as_stored
    )


def joined(blocks: tuple[Blocks, Blocks]) -> StoredTensor:
    """Return two matrices, the second below the first; of floats if their types differ."""
    first, second = blocks
    shape = (first.shape[0] + second.shape[0], *first.shape[1:])
    if first.kind == second.kind:
        if first.kind not in FORMATS:
            return stored(Blocks(first.kind, shape, np.concatenate([first.rows, second.rows])))
        return QuantizedTensor(first.kind, shape, first.rows, partial(_joined, blocks))
    read = partial(_joined_floats, blocks)
    return QuantizedTensor("joined", shape, first.rows, read, is_packed=False)


def halves(count: int, heads: int) -> Order:
    """Return the order 0, 2, 4 .. 1, 3, 5 of the rows of each head.

    Rotated pairs are adjacent in llama.cpp and half a head apart in checkpoints.
    """
    return np.arange(count).reshape(heads, -1, 2).swapaxes(1, 2).ravel()


def floats_of(blocks: Blocks) -> npt.NDArray[np.float32]:
    """Return the numbers of a tensor, in its shape."""
    if blocks.kind in FORMATS:
        return unpack(decode(blocks.kind, blocks.rows, blocks.shape[-1])).reshape(blocks.shape)
    numbers = floats(blocks.kind, blocks.rows.view(BITS[blocks.kind]))
    return np.asarray(numbers, np.float32).reshape(blocks.shape)


def _joined(blocks: tuple[Blocks, Blocks]) -> Packed:
    parts = [decode(part.kind, part.rows, part.shape[-1]) for part in blocks]
    return merged(parts, np.concatenate)


def _joined_floats(blocks: tuple[Blocks, Blocks]) -> npt.NDArray[np.float32]:
    both: npt.NDArray[np.float32] = np.concatenate([floats_of(part) for part in blocks])
    return both


def _rows(blocks: Blocks, rows: Order | None) -> npt.NDArray[np.uint8]:
    return blocks.rows if rows is None else blocks.rows.reshape(blocks.shape[0], -1)[rows]


def _reorder(array: npt.NDArray[Any], columns: Order) -> npt.NDArray[Any]:
    parts = array.reshape(len(array), len(columns), -1)
    reordered: npt.NDArray[Any] = np.take(parts, columns, 1)
    return reordered.reshape(array.shape)


def _decoded(
    blocks: Blocks, rows: Order | None, columns: Order | None, is_packed: bool
) -> Packed | npt.NDArray[np.float32]:
    packed = decode(blocks.kind, _rows(blocks, rows), blocks.shape[-1])
    if not is_packed:
        return unpack(packed) if columns is None else _reorder(unpack(packed), columns)
    return packed if columns is None else merged([packed], lambda some: _reorder(some[0], columns))


def _gathered(blocks: Blocks, some: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    return unpack(decode(blocks.kind, blocks.rows[some], blocks.shape[-1]))


def latent_expansion(layer: str, keys: Blocks, values: Blocks | None) -> StoredTensor:
    """Return the matrix that expands latent vectors to keys and values, built when it is read.

    Raises StartError unless both parts have as many heads and the same rank.
    """
    shape = keys.shape
    if values is None or len(shape) != 3 or values.shape[::2] != shape[:2]:
        other = values.shape if values else None
        raise StartError(
            f"{layer} has {LATENT_KEYS} {list(shape)} and {LATENT_VALUES} {other}, expected "
            "[heads, rank, features] and [heads, features, rank]"
        )
    rows = shape[0] * (shape[2] + values.shape[1])
    read = partial(_both_parts, keys, values)
    return QuantizedTensor("joined", (rows, shape[1]), keys.rows, read, is_packed=False)


def _both_parts(keys: Blocks, values: Blocks) -> npt.NDArray[np.float32]:
    parts = [floats_of(keys).swapaxes(1, 2), floats_of(values)]
    both: npt.NDArray[np.float32] = np.concatenate(parts, 1)
    return both.reshape(-1, keys.shape[1])
