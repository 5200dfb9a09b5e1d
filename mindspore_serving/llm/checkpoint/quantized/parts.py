"""A matrix that is stored as several tensors, and the checks that every format shares.

Shapes and types are checked when a checkpoint is opened; nothing is decoded before it is used.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.packing import Packed
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor

Array: TypeAlias = npt.NDArray[Any]
Matrix: TypeAlias = npt.NDArray[np.float32]

FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class QuantizedTensor(StoredTensor):
    """A matrix [outputs, inputs] of another format.

    `dtype` is the format's name and `bits` the largest array in it.  `read` makes integers and
    scales of it if `is_packed`, else floats.  `gather` makes float32 of the outputs of some numbers
    (int32) alone, in a format where that reads no others.
    """

    read: Callable[[], Packed | Matrix]
    is_packed: bool = True
    gather: Callable[[npt.NDArray[np.int32]], Matrix] | None = None

    def rows(self, some: slice) -> "QuantizedTensor":
        """Some of its outputs."""
        count = len(range(*some.indices(self.shape[0])))

        def read() -> Packed | Matrix:
            found = self.read()
            return found.rows(some) if isinstance(found, Packed) else found[some]

        return replace(self, shape=(count, *self.shape[1:]), read=read, gather=None)


class Words(NamedTuple):
    """A checkpoint's quantisation in words, and whether a runtime may have kernels for it."""

    text: str
    is_kept: bool = True


class TensorParts:
    """The tensors of the matrix `module`.weight: those named `module` + "." and more."""

    def __init__(self, module: str, tensors: Mapping[str, StoredTensor]) -> None:
        self.module = module
        self.taken: set[str] = set()
        self._tensors = tensors

    def has(self, leaf: str) -> bool:
        return f"{self.module}.{leaf}" in self._tensors

    def dtype(self, leaf: str) -> str:
        """Of a tensor that is there."""
        return self._tensors[f"{self.module}.{leaf}"].dtype

    def take(self, leaf: str, dtypes: tuple[str, ...], *shapes: tuple[int, ...]) -> Array:
        """The bits of a tensor of one of `dtypes`, and of one of `shapes` if there are any.

        Raises StartError naming a tensor that is missing or another.
        """
        name = f"{self.module}.{leaf}"
        stored = self._tensors.get(name)
        if stored is None:
            raise StartError(f"tensor {name!r} is missing, without which {self.module!r} is broken")
        if stored.dtype not in dtypes:
            raise StartError(f"tensor {name!r} is {stored.dtype}, expected {' or '.join(dtypes)}")
        if shapes and stored.shape not in shapes:
            raise self.wrong(leaf, f"expected {' or '.join(str(list(one)) for one in shapes)}")
        self.taken.add(name)
        return stored.bits.reshape(stored.shape)

    def matrix(self, leaf: str, dtypes: tuple[str, ...]) -> Array:
        """As `take`, of two sizes over 0."""
        bits = self.take(leaf, dtypes)
        if bits.ndim != 2 or 0 in bits.shape:
            raise self.wrong(leaf, "expected a matrix")
        return bits

    def numbers(self, leaf: str, *shapes: tuple[int, ...]) -> Callable[[], Array]:
        """As `take`, of floats: what gives them, float16 as stored and others as float32."""
        bits, dtype = self.take(leaf, FLOATS, *shapes), self.dtype(leaf)
        return lambda: floats(dtype, bits)

    def drop(self, *leaves: str) -> None:
        """Take what is not needed to compute with floats, if it is there."""
        self.taken.update(f"{self.module}.{leaf}" for leaf in leaves if self.has(leaf))

    def wrong(self, leaf: str, expected: str) -> StartError:
        """The error for a tensor that is there."""
        name = f"{self.module}.{leaf}"
        return StartError(f"tensor {name!r} is {list(self._tensors[name].shape)}: {expected}")


def floats(dtype: str, bits: Array) -> Array:
    """float16 as stored, F32 and BF16 as float32."""
    if dtype == "F16":
        return bits.view(np.float16)
    if dtype == "BF16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits
