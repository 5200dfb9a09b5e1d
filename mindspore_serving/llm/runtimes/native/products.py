"""Products of a plan: records of kernels for the team of threads, run by compiled code.

A product of integers has two records: rounding of its activations, one chunk for each token, and
the product.  Compiled code writes only the number of tokens, and of experts which row.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.runtimes.native.codes import MAX_ROWS, Column, OpCode
from mindspore_serving.llm.runtimes.native.compiling import compiled
from mindspore_serving.llm.runtimes.native.elementwise import (
    A_STRIDE,
    OUT,
    OUT_STRIDE,
    P0,
    P1,
    P2,
    P3,
    A,
    Integers,
)
from mindspore_serving.llm.runtimes.native.experts import chosen
from mindspore_serving.llm.runtimes.native.kernels.activations import QuantiseArgument
from mindspore_serving.llm.runtimes.native.kernels.formats import (
    Activations,
    BlockMatrix,
)
from mindspore_serving.llm.runtimes.native.kernels.products import (
    ProductArgument,
    ProductMemory,
    num_chunks,
    product_address,
    product_arguments,
    quantise_address,
    quantise_arguments,
)
from mindspore_serving.llm.runtimes.native.kernels.team import RECORD_BYTES, MemberArgument
from mindspore_serving.llm.runtimes.native.memory import call_kernel, store_i64
from mindspore_serving.llm.runtimes.native.plan import NativePlan

_RECORD = RECORD_BYTES // 8
_RECORDS = 3 * _RECORD  # numbers of a product: two records and the end
_ARGUMENTS = len(ProductArgument)
_TOKENS, _OUT, _ACTIVATIONS = (
    ProductArgument.TOKENS.value,
    ProductArgument.OUT.value,
    ProductArgument.ACTIVATIONS.value,
)
_X, _PLAN = QuantiseArgument.X.value, MemberArgument.PLAN.value
_LINE = 64  # bytes that activations are aligned to


class Team(NamedTuple):
    """Threads of kernels, as compiled code calls them: addresses of code and arguments."""

    run: int
    arguments: int


class Products:
    """Memory of the products of a plan, whose rows get addresses of it.

    P0 is the address of the records of the first matrix, P1 that of its arguments, P2 is 1 if
    activations are rounded, P3 the address of the arguments of that.  Those of further matrices,
    one for each expert, follow.
    """

    def __init__(self, plan: NativePlan, matrices: Sequence[BlockMatrix]) -> None:
        self._kept: list[npt.NDArray[Any]] = []
        self._arena = plan.arena.ctypes.data
        integers = [m for m in matrices if m.format.activations != Activations.FLOAT]
        sizes = [m.format.activations.row_bytes(m.columns) for m in integers]
        self._rounded = np.zeros(MAX_ROWS * max(sizes, default=0) + _LINE, np.uint8)
        for op in plan.operations:
            if op[Column.CODE] in (OpCode.PRODUCT, OpCode.EXPERT_PRODUCT):
                count = max(1, op[Column.P1])
                self._allocate(op, matrices[op[Column.P0] : op[Column.P0] + count])

    def clear(self) -> None:
        """Drop the memory; the plan must not be computed any more."""
        self._kept.clear()

    def _allocate(self, op: Integers, matrices: Sequence[BlockMatrix]) -> None:
        kind, columns = matrices[0].format.activations, matrices[0].columns
        x, stride = self._arena + 4 * int(op[Column.A]), 4 * int(op[Column.A_STRIDE])
        out = self._arena + 4 * int(op[Column.OUT])
        rounded = self._rounded.ctypes.data + -self._rounded.ctypes.data % _LINE
        is_float = kind == Activations.FLOAT
        memory = ProductMemory(x if is_float else rounded, out, 4 * int(op[Column.OUT_STRIDE]), 1)
        records = np.zeros((len(matrices), 3, _RECORD), np.int64)
        arguments = np.array([product_arguments(matrix, memory) for matrix in matrices])
        if is_float:
            arguments[:, ProductArgument.ACTIVATION_STRIDE] = stride
        rounding = quantise_arguments(x, stride, rounded, columns, kind)
        for index, matrix in enumerate(matrices):
            address = arguments[index].ctypes.data
            product = (product_address(matrix.format), num_chunks(matrix), address)
            if is_float:
                records[index, 0] = product
            else:
                records[index, 0] = quantise_address(kind), 1, rounding.ctypes.data
                records[index, 1] = product
        op[Column.P0], op[Column.P1] = records.ctypes.data, arguments.ctypes.data
        op[Column.P2], op[Column.P3] = int(not is_float), rounding.ctypes.data
        self._kept += [records, arguments, rounding]


@compiled
def multiply(team: Team, op: Integers, rows: int) -> None:
    """Compute a product of all rows."""
    store_i64(op[P1], _TOKENS, rows)
    if op[P2]:
        store_i64(op[P0], 1, rows)
    store_i64(team.arguments, _PLAN, op[P0])
    call_kernel(team.run, team.arguments, 0)


@compiled
def multiply_experts(team: Team, arena: int, op: Integers, rows: int) -> None:
    """Compute a product of each row with the matrix of its expert."""
    for row in range(rows):
        expert = chosen(arena, op, row)
        records = op[P0] + expert * 8 * _RECORDS
        arguments = op[P1] + expert * 8 * _ARGUMENTS
        x = arena + 4 * (op[A] + row * op[A_STRIDE])
        if op[P2]:
            store_i64(op[P3], _X, x)
            store_i64(records, 1, 1)
        else:
            store_i64(arguments, _ACTIVATIONS, x)
        store_i64(arguments, _OUT, arena + 4 * (op[OUT] + row * op[OUT_STRIDE]))
        store_i64(arguments, _TOKENS, 1)
        store_i64(team.arguments, _PLAN, records)
        call_kernel(team.run, team.arguments, 0)
