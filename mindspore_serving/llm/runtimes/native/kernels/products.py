"""Products of matrices in the blocks of their files with rows of activations.

    address = product_address(matrix.format)       a kernel, see `compiler`
    arguments = product_arguments(matrix, ...)     its int64 numbers
    num_chunks(matrix)                             how many chunks compute all rows of the matrix

Tokens are computed in groups of at most four, row by row of the matrix: a row is read from memory
once, and is in the first cache for further groups.  Sums do not depend on the number of tokens and
of chunks.  `quantise_address` is the kernel that makes int8 activations, one chunk per token.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.native.kernels import floats, k_blocks, small_blocks
from mindspore_serving.llm.runtimes.native.kernels.activations import (
    QuantiseArgument,
    quantise_body,
)
from mindspore_serving.llm.runtimes.native.kernels.compiler import Compiler, compiler
from mindspore_serving.llm.runtimes.native.kernels.emitter import I64, Emitter
from mindspore_serving.llm.runtimes.native.kernels.formats import (
    ActivationLayout,
    Activations,
    BlockMatrix,
    KernelFormat,
)
from mindspore_serving.llm.runtimes.native.kernels.row import ProductRow

Value: TypeAlias = Any
Floats: TypeAlias = npt.NDArray[np.float32]

CHUNK_BYTES = 2**17  # of weights: some microseconds of memory's time
_GROUPS = (4, 2, 1)  # tokens that are computed together


class ProductArgument(IntEnum):
    """Indices of a product's arguments: addresses, and sizes in bytes unless said otherwise."""

    DATA = 0
    ROW_BYTES = 1
    COLUMNS = 2  # count
    SCALES = 3  # of formats with scales of their own, else 0
    ZEROS = 4
    ACTIVATIONS = 5
    ACTIVATION_STRIDE = 6
    ACTIVATION_SCALES = 7  # offset in a row of activations
    ACTIVATION_SUMS = 8
    OUT = 9  # float32 [tokens, rows]
    OUT_STRIDE = 10
    ROWS = 11  # count, of the matrix
    ROWS_PER_CHUNK = 12
    TOKENS = 13  # count


@dataclass(frozen=True, slots=True)
class ProductMemory:
    """Addresses that a product reads activations from and writes to, and the count of tokens.

    `activations` are rows of `ActivationLayout`, `out` is float32 [`num_tokens`, `out_stride`
    bytes].
    """

    activations: int
    out: int
    out_stride: int
    num_tokens: int


def product_address(format_: KernelFormat, using: Compiler | None = None) -> int:
    """Return the address of the kernel that multiplies by matrices of a format."""
    using = using or compiler()
    return using.address(f"product_{format_.name}", lambda e, a, c: _body(format_, e, a, c))


def quantise_address(kind: Activations, using: Compiler | None = None) -> int:
    """Return the address of the kernel that makes activations; StartError for float32."""
    if kind == Activations.FLOAT:
        raise StartError("activations of this format are float32 and are not quantised")
    return (using or compiler()).address(
        f"quantise_{int(kind)}", lambda e, a, c: quantise_body(kind, e, a, c)
    )


def rows_per_chunk(matrix: BlockMatrix) -> int:
    """Return how many rows of the matrix a chunk computes."""
    return max(1, CHUNK_BYTES // matrix.data.shape[1])


def num_chunks(matrix: BlockMatrix) -> int:
    """Return how many chunks compute the whole product."""
    return -(-matrix.rows // rows_per_chunk(matrix))


def product_arguments(matrix: BlockMatrix, memory: ProductMemory) -> npt.NDArray[np.int64]:
    """Return the arguments of `product_address`; the caller keeps the arrays of the matrix."""
    layout = ActivationLayout.of(matrix.columns, matrix.format.activations)
    values = {
        ProductArgument.DATA: matrix.data.ctypes.data,
        ProductArgument.ROW_BYTES: matrix.data.shape[1],
        ProductArgument.COLUMNS: matrix.columns,
        ProductArgument.SCALES: 0 if matrix.scales is None else matrix.scales.ctypes.data,
        ProductArgument.ZEROS: 0 if matrix.zeros is None else matrix.zeros.ctypes.data,
        ProductArgument.ACTIVATIONS: memory.activations,
        ProductArgument.ACTIVATION_STRIDE: layout.stride,
        ProductArgument.ACTIVATION_SCALES: layout.scales,
        ProductArgument.ACTIVATION_SUMS: layout.sums,
        ProductArgument.OUT: memory.out,
        ProductArgument.OUT_STRIDE: memory.out_stride,
        ProductArgument.ROWS: matrix.rows,
        ProductArgument.ROWS_PER_CHUNK: rows_per_chunk(matrix),
        ProductArgument.TOKENS: memory.num_tokens,
    }
    return np.array([values[name] for name in ProductArgument], np.int64)


def quantise_arguments(
    x: int, x_stride: int, out: int, columns: int, kind: Activations
) -> npt.NDArray[np.int64]:
    """Return the arguments of `quantise_address`: float32 rows at `x`, `x_stride` bytes apart."""
    layout = ActivationLayout.of(columns, kind)
    values = {
        QuantiseArgument.X: x,
        QuantiseArgument.X_STRIDE: x_stride,
        QuantiseArgument.OUT: out,
        QuantiseArgument.OUT_STRIDE: layout.stride,
        QuantiseArgument.SCALES: layout.scales,
        QuantiseArgument.SUMS: layout.sums,
        QuantiseArgument.COLUMNS: columns,
    }
    return np.array([values[name] for name in QuantiseArgument], np.int64)


def _body(format_: KernelFormat, e: Emitter, arguments: Value, chunk: Value) -> None:
    a = {name: e.load(arguments, I64, 8 * name) for name in ProductArgument}
    first = e.b.mul(chunk, a[ProductArgument.ROWS_PER_CHUNK])
    end = e.b.add(first, a[ProductArgument.ROWS_PER_CHUNK])
    is_last = e.b.icmp_signed("<", a[ProductArgument.ROWS], end)
    with e.loop(first, e.b.select(is_last, a[ProductArgument.ROWS], end)) as row:
        token = e.variable(e.c(0))
        for group in _GROUPS:
            start = e.b.load(token)
            with e.loop(start, a[ProductArgument.TOKENS], group) as t:
                out = e.b.add(a[ProductArgument.OUT], e.b.mul(t, a[ProductArgument.OUT_STRIDE]))
                out = e.b.add(out, e.b.mul(row, e.c(4)))
                for value in _PRODUCTS[format_.activations](format_, e, _row(e, a, row, t, group)):
                    e.store(value, out)
                    out = e.b.add(out, a[ProductArgument.OUT_STRIDE])
            whole = e.b.sdiv(e.b.sub(a[ProductArgument.TOKENS], start), e.c(group))
            e.b.store(e.b.add(start, e.b.mul(whole, e.c(group))), token)


def _row(
    e: Emitter, a: dict[ProductArgument, Value], row: Value, token: Value, group: int
) -> ProductRow:
    """Return where a row of the matrix is, and `group` tokens from `token` on."""
    stride = a[ProductArgument.ACTIVATION_STRIDE]
    first = e.b.add(a[ProductArgument.ACTIVATIONS], e.b.mul(token, stride))
    tokens = [e.b.add(first, e.b.mul(stride, e.c(k))) for k in range(group)]
    return ProductRow(
        address=e.b.add(a[ProductArgument.DATA], e.b.mul(row, a[ProductArgument.ROW_BYTES])),
        columns=a[ProductArgument.COLUMNS],
        index=row,
        tokens=tokens,
        scales=[e.b.add(token, a[ProductArgument.ACTIVATION_SCALES]) for token in tokens],
        sums=[e.b.add(token, a[ProductArgument.ACTIVATION_SUMS]) for token in tokens],
        weight_scales=a[ProductArgument.SCALES],
        weight_zeros=a[ProductArgument.ZEROS],
    )


_PRODUCTS = {
    Activations.FLOAT: floats.row_products,
    Activations.BLOCKS_OF_32: small_blocks.row_products,
    Activations.BLOCKS_OF_256: k_blocks.row_products,
}
