"""Integers of 4 and 8 bits with a scale, and usually a zero, for each group of inputs.

This is common to GPTQ, AWQ and compressed-tensors, whatever the order of their words. Knows no
tensor's name.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mindspore_serving.llm.checkpoint.packing import CHUNK, Packed, pack_nibbles, unpack_nibbles
from mindspore_serving.llm.checkpoint.quantized.parts import Array, Matrix, QuantizedTensor


@dataclass(frozen=True, slots=True)
class Grouped:
    """A matrix [outputs, inputs] of `bits`; a weight is scale * (integer - zero).

    `rows` returns the bytes of some outputs [some, inputs * bits / 8], low nibble first. `scales`
    and `zeros` return [outputs, groups]. `index` is the group of each input, None if groups are of
    consecutive inputs.
    """

    shape: tuple[int, int]
    bits: int
    groups: int
    rows: Callable[[slice], Array]
    scales: Callable[[], Array]
    zeros: Callable[[], Array]
    index: Array | None = None

    def tensor(self, kind: str, bits: Array) -> QuantizedTensor:
        """Return the matrix as a tensor of format `kind`; of floats if groups differ in size."""
        counts = np.bincount(self.index, minlength=self.groups) if self.index is not None else None
        if counts is not None and (counts != self.shape[1] / self.groups).any():
            return QuantizedTensor(kind, self.shape, bits, self.matrix, is_packed=False)
        return QuantizedTensor(kind, self.shape, bits, self.packed)

    def packed(self) -> Packed:
        """Return the integers, with inputs in the order of their groups."""
        outputs, inputs = self.shape
        order = None if self.index is None else np.argsort(self.index, kind="stable")
        values = np.empty((outputs, inputs * self.bits // 8), np.uint8)
        for some in self._pieces():
            rows = self.rows(some)
            if order is not None and self.bits == 4:
                rows = pack_nibbles(unpack_nibbles(rows)[:, order])
            elif order is not None:
                rows = rows[:, order]
            values[some] = rows
        scales, zeros = self.scales(), self.zeros()
        group = inputs // self.groups
        packed = Packed(values, scales, self.bits, self.shape, group, zeros=zeros, order=order)
        return without_middle_zeros(packed)

    def matrix(self) -> Matrix:
        """Return the weights as float32."""
        scales, zeros = self.scales().astype(np.float32), self.zeros()
        index = self.index
        if index is None:
            index = np.arange(self.shape[1]) // (self.shape[1] // self.groups)
        result = np.empty(self.shape, np.float32)
        for some in self._pieces():
            rows = self.rows(some)
            integers = unpack_nibbles(rows) if self.bits == 4 else rows
            result[some] = integers.astype(np.float32) - zeros[some][:, index]
            result[some] *= scales[some][:, index]
        return result

    def _pieces(self) -> list[slice]:
        """Return slices of outputs in whole words, small enough for intermediate arrays."""
        outputs, inputs = self.shape
        step = max(8, CHUNK // inputs // 8 * 8)
        return [slice(at, min(at + step, outputs)) for at in range(0, outputs, step)]


def without_middle_zeros(packed: Packed) -> Packed:
    """Return signed integers without zeros, if all zeros are in the middle of the range."""
    middle = 1 << (packed.bits - 1)
    if packed.zeros is None or (packed.zeros != middle).any():
        return packed
    values = np.bitwise_xor(packed.values, 0x80 if packed.bits == 8 else 0x88, out=packed.values)
    return replace(packed, values=values.view(np.int8) if packed.bits == 8 else values, zeros=None)


def fields(words: Array, bits: int) -> Array:
    """Unpack 32-bit words [rows, n] to integers [rows, n * 32 / bits], lowest first."""
    data = np.ascontiguousarray(words).view(np.uint8)
    return unpack_nibbles(data) if bits == 4 else data
