"""Weights of a checkpoint for compiled code: matrices where their file is mapped, small copies.

The arrays stay referenced here as long as addresses of them may be used.
"""

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.runtimes.native.products import BF16, F16, F32

_KINDS = {"F32": (F32, 4), "F16": (F16, 2), "BF16": (BF16, 2)}


class NativeWeights:
    """Matrices by number, and vectors, of `checkpoint`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._rows: list[tuple[int, int, int, int]] = []
        self._numbers: dict[str, int] = {}
        self._arrays: list[npt.NDArray[Any]] = []

    def has(self, name: str) -> bool:
        return self.checkpoint.has(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.checkpoint.shape(name)

    def vector(self, name: str, length: int) -> npt.NDArray[np.float32]:
        """Return a tensor of `length` numbers.  Raises StartError for another shape."""
        shape = self.shape(name)
        if prod(shape) != length:
            raise StartError(f"tensor {name!r} is {list(shape)}, expected {length} numbers")
        return np.asarray(self.checkpoint.f32(name), np.float32).reshape(-1)

    def matrix(self, name: str, columns: int) -> tuple[int, int]:
        """Return number and rows of a matrix.  Raises StartError unless it has `columns`."""
        shape = self.shape(name)
        if len(shape) != 2 or shape[1] != columns or not shape[0]:
            raise StartError(f"tensor {name!r} is {list(shape)}, expected [*, {columns}]")
        if name not in self._numbers:
            self._numbers[name] = len(self._rows)
            self._rows.append(self._described(name, shape))
        return self._numbers[name], shape[0]

    def table(self) -> npt.NDArray[np.int64]:
        """Return the matrices: address, kind, bytes of a row, columns."""
        return np.array(self._rows, np.int64).reshape(-1, 4)

    def clear(self) -> None:
        """Drop all arrays; addresses of them must not be used any more."""
        self._arrays.clear()

    def _described(self, name: str, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
        stored = self.checkpoint.stored(name)
        kind, array = stored.dtype, stored.bits
        if kind not in _KINDS or self.checkpoint.is_quantized(name):
            kind, array = "F32", self.checkpoint.f32(name)
        code, item = _KINDS[kind]
        array = np.ascontiguousarray(array)
        if array.nbytes != prod(shape) * item or array.ctypes.data % item:
            raise StartError(
                f"tensor {name!r} has {array.nbytes} bytes for {list(shape)} of {kind}"
            )
        self._arrays.append(array)
        return array.ctypes.data, code, shape[1] * item, shape[1]
