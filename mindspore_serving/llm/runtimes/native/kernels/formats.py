"""Block formats of matrices: the types of GGUF files, and int4 and int8 of `llm.quantize`.

One table, `FORMATS`.  A row says how many weights a block holds in how many bytes, and how its
activations are stored (`Activations`).  Knows no kernel and no file.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError

BLOCK = 32  # columns that share a scale of activations
TOGETHER = 8  # blocks of a group
GROUP = BLOCK * TOGETHER  # columns of a group
LANES_BYTES = 64  # of one number for each sum of a vector: see `Activations`
SUMS = GROUP + 2 * LANES_BYTES  # offset of sums in a group


class Activations(IntEnum):
    """Storage of activations: float32, or groups of int8 with scales and sums.

    A group is eight blocks of 32 columns.  Its values are in four vectors of 64: columns 8 k to
    8 k + 7 of each block.  Products of 4 neighbours are added, so two sums of a vector belong to a
    block.  The first two vectors have other scales than the last two: 16 columns share a scale.

    After the values come the scales of both halves, two for each block, float32 [2, 16]; and the
    sums of the values with the sign changed, int32 [2, 16], or sums times scales, float32 [2, 16],
    or those of both halves together, float32 [16].
    """

    FLOAT = 0
    INTEGER_SUMS = 1
    FLOAT_SUMS = 2
    FLOAT_SUMS_OF_HALVES = 3

    @property
    def num_sums(self) -> int:
        return 1 if self == self.FLOAT_SUMS else 2

    @property
    def group_bytes(self) -> int:
        return SUMS + LANES_BYTES * self.num_sums

    def row_bytes(self, columns: int) -> int:
        """Return the size of a row of activations."""
        if self == self.FLOAT:
            return 4 * columns
        return -(-columns // GROUP) * self.group_bytes


@dataclass(frozen=True, slots=True)
class KernelFormat:
    """Storage of the weights of a row.

    `scale_group` is the number of weights that share a float16 scale in an array of its own, [rows,
    columns / `scale_group`]; 0 if the scales are in the blocks, -1 if a row has one scale.
    """

    name: str
    elements: int  # weights of a block
    bytes: int  # size of a block
    activations: Activations
    scale_group: int = 0
    has_zeros: bool = False  # unsigned integers, and uint8 zeros in an array of the shape of scales

    def row_bytes(self, columns: int) -> int:
        """Return the size of a row; raise StartError if `columns` are no whole blocks."""
        step = max(self.elements, self.scale_group)
        if columns <= 0 or columns % step:
            raise StartError(
                f"a row of {self.name} has {columns} columns, expected a multiple of {step}"
            )
        return columns // self.elements * self.bytes


_ROWS = (
    KernelFormat("F32", 1, 4, Activations.FLOAT),
    KernelFormat("F16", 1, 2, Activations.FLOAT),
    KernelFormat("BF16", 1, 2, Activations.FLOAT),
    KernelFormat("Q4_0", 32, 18, Activations.INTEGER_SUMS),
    KernelFormat("Q4_1", 32, 20, Activations.FLOAT_SUMS),
    KernelFormat("Q5_0", 32, 22, Activations.INTEGER_SUMS),
    KernelFormat("Q5_1", 32, 24, Activations.FLOAT_SUMS),
    KernelFormat("Q8_0", 32, 34, Activations.INTEGER_SUMS),
    KernelFormat("IQ4_NL", 32, 18, Activations.INTEGER_SUMS),
    KernelFormat("MXFP4", 32, 17, Activations.INTEGER_SUMS),
    KernelFormat("Q2_K", 256, 84, Activations.FLOAT_SUMS_OF_HALVES),
    KernelFormat("Q3_K", 256, 110, Activations.INTEGER_SUMS),
    KernelFormat("Q4_K", 256, 144, Activations.FLOAT_SUMS),
    KernelFormat("Q5_K", 256, 176, Activations.FLOAT_SUMS),
    KernelFormat("Q6_K", 256, 210, Activations.INTEGER_SUMS),
    KernelFormat("IQ4_XS", 256, 136, Activations.INTEGER_SUMS),
    KernelFormat("INT8", 32, 32, Activations.INTEGER_SUMS, scale_group=-1),
    *(
        KernelFormat(f"INT4_{group}", 32, 16, Activations.INTEGER_SUMS, group)
        for group in (32, 64, 128)
    ),
    *(
        KernelFormat(f"INT4_{group}_ZEROS", 32, 16, Activations.FLOAT_SUMS, group, has_zeros=True)
        for group in (32, 64, 128)
    ),
)
FORMATS = {row.name: row for row in _ROWS}


def format_named(name: str) -> KernelFormat:
    """Return the format; raise StartError listing those that have kernels for an unknown one."""
    if name not in FORMATS:
        raise StartError(f"no kernel reads {name}; there are kernels for {', '.join(FORMATS)}")
    return FORMATS[name]


@dataclass(frozen=True, slots=True)
class BlockMatrix:
    """A matrix [rows, columns] in the blocks of a file, which `data` views and nothing copies.

    `data` is uint8 [rows, row bytes], contiguous; `scales` and `zeros` are as `KernelFormat` says.

    Raises StartError if they do not fit each other, so kernels read only memory of these arrays.
    """

    format: KernelFormat
    rows: int
    columns: int
    data: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float16] | None = None
    zeros: npt.NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        row_bytes = self.format.row_bytes(self.columns)
        self._check("data", self.data, "uint8", (self.rows, row_bytes))
        group = self.format.scale_group
        groups = self.columns // group if group > 0 else 1
        if group:
            self._check("scales", self.scales, "float16", (self.rows, groups))
        if self.format.has_zeros:
            self._check("zeros", self.zeros, "uint8", (self.rows, groups))

    def _check(
        self, part: str, array: npt.NDArray[np.generic] | None, dtype: str, shape: tuple[int, int]
    ) -> None:
        if array is None:
            raise StartError(f"a matrix of {self.format.name} has no {part}; it needs {part}")
        fits = array.dtype == dtype and array.shape == shape and array.flags.c_contiguous
        if not fits or not array.dtype.isnative or array.ctypes.data % array.dtype.itemsize:
            raise StartError(
                f"{part} of a matrix of {self.format.name} are {array.dtype} {list(array.shape)}, "
                f"expected contiguous {dtype} {list(shape)}"
            )
