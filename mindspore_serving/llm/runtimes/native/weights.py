"""Weights of a checkpoint for compiled code: matrices where their file is mapped, small copies.

The arrays stay referenced here as long as addresses of them may be used.
"""

from math import prod

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.packing import Packed
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.runtimes.native.kernels.formats import FORMATS, BlockMatrix


class NativeWeights:
    """Matrices by number, and vectors, of `checkpoint`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.matrices: list[BlockMatrix] = []
        self._numbers: dict[str, int] = {}

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
            self._numbers[name] = len(self.matrices)
            self.matrices.append(self._opened(name, (shape[0], shape[1])))
        return self._numbers[name], shape[0]

    def clear(self) -> None:
        """Drop all matrices; addresses of them must not be used any more."""
        self.matrices.clear()

    def _opened(self, name: str, shape: tuple[int, int]) -> BlockMatrix:
        """Return a matrix where its file is mapped, or decoded if no kernel reads its format."""
        stored = self.checkpoint.stored(name)
        kind, array = stored.dtype, stored.bits
        if isinstance(stored, QuantizedTensor) and stored.blocks and kind in FORMATS:
            array = stored.blocks()
        elif kind not in FORMATS or isinstance(stored, QuantizedTensor):
            matrix = integers(self.checkpoint.packed(name), shape)
            if matrix is not None:
                return matrix
            kind, array = "F32", self.checkpoint.f32(name)
        data = np.ascontiguousarray(array).view(np.uint8).reshape(shape[0], -1)
        return BlockMatrix(FORMATS[kind], *shape, data)


def integers(packed: Packed | None, shape: tuple[int, int]) -> BlockMatrix | None:
    """Return a matrix of integers with float16 scales, None if no kernel reads such."""
    if packed is None or not packed.is_plain or packed.minimums is not None or packed.centre:
        return None
    zeros = "" if packed.zeros is None else "_ZEROS"
    group = f"_{packed.group}" if packed.bits == 4 or packed.is_grouped else ""
    format_ = FORMATS.get(f"INT{packed.bits}{group}{zeros}")
    if format_ is None or packed.scales.dtype != np.float16:
        return None
    if shape[1] % max(format_.elements, format_.scale_group):
        return None
    values, scales = (np.ascontiguousarray(part) for part in (packed.values, packed.scales))
    data = values.view(np.uint8).reshape(shape[0], -1)
    points = None if packed.zeros is None else np.ascontiguousarray(packed.zeros)
    return BlockMatrix(format_, *shape, data, scales.reshape(shape[0], -1), points)
