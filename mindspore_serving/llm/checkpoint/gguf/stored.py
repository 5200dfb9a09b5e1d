"""A tensor of a GGUF file as a checkpoint stores it, rows or columns in another order.

Floats are put in that order at once, quantised matrices when they are read.  Knows no name.
"""

from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.checkpoint.gguf.decoding import FORMS, decode
from mindspore_serving.llm.checkpoint.gguf.reader import Blocks
from mindspore_serving.llm.checkpoint.packing import Packed, merged, unpack
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor
from mindspore_serving.llm.checkpoint.safetensors import BITS, StoredTensor

Order: TypeAlias = npt.NDArray[np.intp]  # which of the file's is the first, the second ..


def stored(blocks: Blocks, rows: Order | None = None, columns: Order | None = None) -> StoredTensor:
    """The tensor, its `rows` alone if there are any.  `columns` is the order of parts of a row,
    which are all as wide."""
    shape = blocks.shape if rows is None else (len(rows), *blocks.shape[1:])
    if blocks.kind not in FORMS:
        bits: npt.NDArray[Any] = _rows(blocks, rows).view(BITS[blocks.kind])
        return StoredTensor(blocks.kind, shape, bits if columns is None else _turn(bits, columns))
    parts = 1 if columns is None else len(columns)
    is_packed = shape[-1] // parts % FORMS[blocks.kind].group == 0  # no scale is of two of them
    read = partial(_decoded, blocks, rows, columns, is_packed)
    gather = partial(_gathered, blocks) if rows is None and columns is None else None
    return QuantizedTensor(blocks.kind, shape, blocks.rows, read, is_packed, gather)


def _rows(blocks: Blocks, rows: Order | None) -> npt.NDArray[np.uint8]:
    return blocks.rows if rows is None else blocks.rows.reshape(blocks.shape[0], -1)[rows]


def _turn(array: npt.NDArray[Any], columns: Order) -> npt.NDArray[Any]:
    parts = array.reshape(len(array), len(columns), -1)
    turned: npt.NDArray[Any] = np.take(parts, columns, 1)
    return turned.reshape(array.shape)


def _decoded(
    blocks: Blocks, rows: Order | None, columns: Order | None, is_packed: bool
) -> Packed | npt.NDArray[np.float32]:
    found = decode(blocks.kind, _rows(blocks, rows), blocks.shape[-1])
    if not is_packed:
        return unpack(found) if columns is None else _turn(unpack(found), columns)
    return found if columns is None else merged([found], lambda some: _turn(some[0], columns))


def _gathered(blocks: Blocks, some: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    return unpack(decode(blocks.kind, blocks.rows[some], blocks.shape[-1]))
