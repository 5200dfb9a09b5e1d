"""Products of matrices in the blocks of their files with rows of activations.

    address = product_address(matrix.format)       a kernel, see `compiler`
    arguments = product_arguments(matrix, ...)     its int64 numbers
    num_chunks(matrix)                             how many chunks compute all rows of the matrix

Tokens are computed in groups, each with all rows of a chunk: those are read from memory once, and
are in the second cache for further groups.  Sums do not depend on the number of
tokens and of chunks.  `quantise_address` is the kernel that makes int8 activations, one chunk for
each token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.native.kernels import floats, groups, k_blocks, small_blocks
from mindspore_serving.llm.runtimes.native.kernels.activations import (
    QuantiseArgument,
    quantise_body,
)
from mindspore_serving.llm.runtimes.native.kernels.compiler import Compiler, compiler
from mindspore_serving.llm.runtimes.native.kernels.emitter import I64, Emitter, InstructionSet
from mindspore_serving.llm.runtimes.native.kernels.formats import (
    Activations,
    BlockMatrix,
    KernelFormat,
)
from mindspore_serving.llm.runtimes.native.kernels.row import ProductRow, ProductTokens

Value: TypeAlias = Any
Floats: TypeAlias = npt.NDArray[np.float32]

CHUNK_BYTES = 2**17  # of weights: some microseconds of memory's time
_TILES = ((4, 1), (2, 2), (1, 4))  # tokens, and rows, that are computed together
_LARGE_TILES = ((8, 1), *_TILES)  # where there are 32 registers
_STEP = 4  # rows of a chunk are whole tiles


class ProductArgument(IntEnum):
    """Indices of a product's arguments: addresses, and sizes in bytes unless said otherwise."""

    DATA = 0
    ROW_BYTES = 1
    COLUMNS = 2  # count
    SCALES = 3  # of formats with scales of their own, else 0
    ZEROS = 4
    ACTIVATIONS = 5
    ACTIVATION_STRIDE = 6
    OUT = 7  # float32 [tokens, rows]
    OUT_STRIDE = 8
    ROWS = 9  # count, of the matrix
    ROWS_PER_CHUNK = 10
    TOKENS = 11  # count


class TaskArgument(IntEnum):
    """Indices of the arguments of `task_address`."""

    CHUNKS = 0  # of each product
    ACTIVATIONS = 1  # address of those of all products, which the kernel does not read
    PRODUCTS = 2  # from here on: of each the address of the kernel, and of its arguments


@dataclass(frozen=True, slots=True)
class ProductMemory:
    """Addresses that a product reads activations from and writes to, and the count of tokens.

    `activations` are rows of `Activations`, `out` is float32 [`num_tokens`, `out_stride`
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


def task_address(using: Compiler | None = None) -> int:
    """Return the address of the kernel whose chunks are those of several products."""
    return (using or compiler()).address("product_task", _task_body)


def num_chunks(matrix: BlockMatrix) -> int:
    """Return how many chunks compute the whole product."""
    return -(-matrix.rows // _whole_tiles(CHUNK_BYTES // matrix.data.shape[1]))


def _whole_tiles(rows: int) -> int:
    return max(1, rows // _STEP) * _STEP


def product_arguments(
    matrix: BlockMatrix, memory: ProductMemory, chunks: int = 0
) -> npt.NDArray[np.int64]:
    """Return the arguments of `product_address`; the caller keeps the arrays of the matrix.

    There are `chunks`, or `num_chunks`; more than those would be empty.
    """
    rows = -(-matrix.rows // (chunks or num_chunks(matrix)))
    values = {
        ProductArgument.DATA: matrix.data.ctypes.data,
        ProductArgument.ROW_BYTES: matrix.data.shape[1],
        ProductArgument.COLUMNS: matrix.columns,
        ProductArgument.SCALES: 0 if matrix.scales is None else matrix.scales.ctypes.data,
        ProductArgument.ZEROS: 0 if matrix.zeros is None else matrix.zeros.ctypes.data,
        ProductArgument.ACTIVATIONS: memory.activations,
        ProductArgument.ACTIVATION_STRIDE: matrix.format.activations.row_bytes(matrix.columns),
        ProductArgument.OUT: memory.out,
        ProductArgument.OUT_STRIDE: memory.out_stride,
        ProductArgument.ROWS: matrix.rows,
        ProductArgument.ROWS_PER_CHUNK: -(-rows // _STEP) * _STEP,
        ProductArgument.TOKENS: memory.num_tokens,
    }
    return np.array([values[name] for name in ProductArgument], np.int64)


def quantise_arguments(
    x: int, x_stride: int, out: int, columns: int, kind: Activations
) -> npt.NDArray[np.int64]:
    """Return the arguments of `quantise_address`: float32 rows at `x`, `x_stride` bytes apart."""
    values = {
        QuantiseArgument.X: x,
        QuantiseArgument.X_STRIDE: x_stride,
        QuantiseArgument.OUT: out,
        QuantiseArgument.OUT_STRIDE: kind.row_bytes(columns),
        QuantiseArgument.COLUMNS: columns,
    }
    return np.array([values[name] for name in QuantiseArgument], np.int64)


def _body(format_: KernelFormat, e: Emitter, arguments: Value, chunk: Value) -> None:
    a = {name: e.load(arguments, I64, 8 * name) for name in ProductArgument}
    first = e.b.mul(chunk, a[ProductArgument.ROWS_PER_CHUNK])
    end = e.b.add(first, a[ProductArgument.ROWS_PER_CHUNK])
    is_last = e.b.icmp_signed("<", a[ProductArgument.ROWS], end)
    end = e.b.select(is_last, a[ProductArgument.ROWS], end)
    token = e.variable(e.c(0))
    has_many_registers = e.instructions == InstructionSet.AVX512_VNNI
    for num_tokens, num_rows in _LARGE_TILES if has_many_registers else _TILES:
        start = e.b.load(token)
        last = e.b.add(end, e.c(num_rows - 1))
        with (
            e.loop(start, a[ProductArgument.TOKENS], num_tokens) as t,
            e.loop(first, last, num_rows) as row,
        ):
            numbers = _numbers(e, row, num_rows, end)
            _tile(format_, e, a, numbers, (t, num_tokens))
        whole = _whole(e, e.b.sub(a[ProductArgument.TOKENS], start), num_tokens)
        e.b.store(e.b.add(start, whole), token)


def _whole(e: Emitter, number: Value, step: int) -> Value:
    """Return the largest multiple of `step` that is not above `number`."""
    return e.b.mul(e.b.sdiv(number, e.c(step)), e.c(step))


def _numbers(e: Emitter, row: Value, count: int, end: Value) -> list[Value]:
    """Return the numbers of some rows from `row` on, the last row's again beyond the end."""
    numbers, last = [row], e.b.sub(end, e.c(1))
    for k in range(1, count):
        number = e.b.add(row, e.c(k))
        numbers.append(e.b.select(e.b.icmp_signed("<", number, last), number, last))
    return numbers


def _task_body(e: Emitter, arguments: Value, chunk: Value) -> None:
    """Write the kernel that computes a chunk of one of several products."""
    chunks = e.load(arguments, I64, 8 * TaskArgument.CHUNKS)
    product = e.b.add(arguments, e.b.mul(e.b.udiv(chunk, chunks), e.c(16)))
    kernel, inner = (e.load(product, I64, 8 * (TaskArgument.PRODUCTS + k)) for k in range(2))
    kind = ir.FunctionType(ir.VoidType(), [I64, I64])
    e.b.call(e.b.inttoptr(kernel, kind.as_pointer()), [inner, e.b.urem(chunk, chunks)])


def _tile(
    format_: KernelFormat, e: Emitter, a: dict[ProductArgument, Value],
    numbers: Sequence[Value], tokens: tuple[Value, int],
) -> None:  # fmt: skip
    """Write the products of some rows of the matrix with some tokens."""
    token, num_tokens = tokens
    tile = _activations(e, a, token, num_tokens)
    addresses = [
        e.b.add(a[ProductArgument.DATA], e.b.mul(number, a[ProductArgument.ROW_BYTES]))
        for number in numbers
    ]
    matrix_rows = [
        ProductRow(address, number) for address, number in zip(addresses, numbers, strict=True)
    ]
    out = e.b.add(a[ProductArgument.OUT], e.b.mul(token, a[ProductArgument.OUT_STRIDE]))
    if format_.activations == Activations.FLOAT:
        products = floats.products(format_, e, matrix_rows, tile)
    else:
        products = groups.products(format_, _READERS[format_.name], e, matrix_rows, tile)
    for of_token in products:
        for number, value in zip(numbers, of_token, strict=True):
            e.store(value, out, e.b.mul(number, e.c(4)))
        out = e.b.add(out, a[ProductArgument.OUT_STRIDE])


def _activations(
    e: Emitter, a: dict[ProductArgument, Value], token: Value, count: int
) -> ProductTokens:
    stride = a[ProductArgument.ACTIVATION_STRIDE]
    first = e.b.add(a[ProductArgument.ACTIVATIONS], e.b.mul(token, stride))
    return ProductTokens(
        addresses=[e.b.add(first, e.b.mul(stride, e.c(k))) for k in range(count)],
        columns=a[ProductArgument.COLUMNS],
        row_bytes=a[ProductArgument.ROW_BYTES],
        weight_scales=a[ProductArgument.SCALES],
        weight_zeros=a[ProductArgument.ZEROS],
    )


_READERS = {**k_blocks.READERS, **small_blocks.READERS}
