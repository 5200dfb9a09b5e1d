"""A matrix that is stored as several tensors, and the checks that all formats share.

Shapes and dtypes are checked when a checkpoint is opened; nothing is decoded before it is used.
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
DYNAMIC = "dynamic"  # inputs of a matrix are rounded by the largest of each token


@dataclass(frozen=True, slots=True)
class StaticInputs:
    """Rounding of the inputs of an int8 matrix: x / scale + offset, in int8.

    Results are (values x + quant_bias) * deq_scale; `quant_bias`, int32 [outputs], contains the
    bias.  `scale` and `offset` are [1] or [inputs], offsets int8 or float32.  `shift`, [inputs], is
    added to inputs before.
    """

    values: Array  # int8 [outputs, inputs]
    deq_scale: Matrix  # [outputs]
    quant_bias: Array
    scale: Matrix
    offset: Array
    shift: Matrix | None = None

    def key(self) -> bytes:
        """Return what is equal where inputs are rounded alike."""
        arrays = (self.scale, self.offset, *(() if self.shift is None else (self.shift,)))
        return b"static" + b"".join(array.tobytes() for array in arrays)

    def rows(self, some: slice | npt.NDArray[np.intp]) -> "StaticInputs":
        """Return some of the outputs."""
        fields = ("values", "deq_scale", "quant_bias")
        return replace(self, **{field: getattr(self, field)[some] for field in fields})

    def columns(self, some: slice | npt.NDArray[np.intp], *, has_bias: bool) -> "StaticInputs":
        """Return some of the inputs; without `has_bias` another part adds `quant_bias`."""
        fields = ("scale", "offset", "shift")
        cut = {f: v[some] for f in fields if (v := getattr(self, f)) is not None and len(v) > 1}
        bias = self.quant_bias if has_bias else np.zeros_like(self.quant_bias)
        return replace(self, values=self.values[:, some], quant_bias=bias, **cut)


@dataclass(frozen=True, slots=True)
class QuantizedTensor(StoredTensor):
    """A matrix [outputs, inputs] in another format.

    `dtype` is the format's name, and `bits` its largest array. `read` returns integers and scales
    if `is_packed`, else floats. `gather` returns float32 rows for int32 indices, in a format where
    it need not read other rows. `inputs` says how the format rounds inputs, "" if it does not.
    `blocks` returns the rows as the format stores them, uint8 [outputs, bytes], if it has blocks.
    """

    read: Callable[[], Packed | Matrix]
    is_packed: bool = True
    gather: Callable[[npt.NDArray[np.int32]], Matrix] | None = None
    inputs: StaticInputs | str = ""
    blocks: Callable[[], npt.NDArray[np.uint8]] | None = None

    def rows(self, some: slice | npt.NDArray[np.intp]) -> "QuantizedTensor":
        """Return some of the outputs, in the order of their indices."""
        count = len(np.arange(self.shape[0])[some])

        def read() -> Packed | Matrix:
            matrix = self.read()
            return matrix.rows(some) if isinstance(matrix, Packed) else matrix[some]

        inputs = self.inputs.rows(some) if isinstance(self.inputs, StaticInputs) else self.inputs
        shape = (count, *self.shape[1:])
        return replace(self, shape=shape, read=read, gather=None, inputs=inputs, blocks=None)


class FormatName(NamedTuple):
    """Name of a checkpoint's format, and whether a runtime may have kernels for it."""

    text: str
    has_kernels: bool = True


class TensorParts:
    """Tensors of the matrix `module`.weight: those with names below `module`."""

    def __init__(self, module: str, tensors: Mapping[str, StoredTensor]) -> None:
        self.module = module
        self.taken: set[str] = set()
        self.added: dict[str, StoredTensor] = {}
        self._tensors = tensors

    def has(self, leaf: str) -> bool:
        """Return whether there is such a tensor."""
        return f"{self.module}.{leaf}" in self._tensors

    def dtype(self, leaf: str) -> str:
        """Return the dtype of an existing tensor."""
        return self._tensors[f"{self.module}.{leaf}"].dtype

    def take(self, leaf: str, dtypes: tuple[str, ...], *shapes: tuple[int, ...]) -> Array:
        """Return the bits of a tensor with one of `dtypes` and, if there are any, one of `shapes`.

        Raises StartError naming a tensor that is missing or different.
        """
        name = f"{self.module}.{leaf}"
        stored = self._tensors.get(name)
        if stored is None:
            raise StartError(f"tensor {name!r} is missing, which {self.module!r} needs")
        if stored.dtype not in dtypes:
            raise StartError(f"tensor {name!r} is {stored.dtype}, expected {' or '.join(dtypes)}")
        if shapes and stored.shape not in shapes:
            raise self.wrong(leaf, f"expected {' or '.join(str(list(shape)) for shape in shapes)}")
        self.taken.add(name)
        return stored.bits.reshape(stored.shape)

    def matrix(self, leaf: str, dtypes: tuple[str, ...]) -> Array:
        """Return the bits of a tensor with two sizes over 0, as `take` does."""
        bits = self.take(leaf, dtypes)
        if bits.ndim != 2 or 0 in bits.shape:
            raise self.wrong(leaf, "expected a matrix")
        return bits

    def numbers(self, leaf: str, *shapes: tuple[int, ...]) -> Callable[[], Array]:
        """Return a function that returns a tensor of floats, as `floats` does."""
        bits, dtype = self.take(leaf, FLOATS, *shapes), self.dtype(leaf)
        return lambda: floats(dtype, bits)

    def drop(self, *leaves: str) -> None:
        """Mark tensors as used that are not needed to compute with floats."""
        self.taken.update(f"{self.module}.{leaf}" for leaf in leaves if self.has(leaf))

    def add(self, leaf: str, stored: StoredTensor) -> None:
        """Add a tensor that others of the matrix contain."""
        self.added[f"{self.module}.{leaf}"] = stored

    def wrong(self, leaf: str, expected: str) -> StartError:
        """Return the error for an existing tensor."""
        name = f"{self.module}.{leaf}"
        return StartError(f"tensor {name!r} is {list(self._tensors[name].shape)}: {expected}")


def floats(dtype: str, bits: Array) -> Array:
    """Return F16 as float16, F32 and BF16 as float32."""
    if dtype == "F16":
        return bits.view(np.float16)
    if dtype == "BF16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits
