"""Products of a plan: records of kernels for the team of threads, run by compiled code.

A product of integers has two records: rounding of its activations, one chunk for each row, and the
product.  Compiled code writes only the number of rows.  Those of experts have one record for the
matrices of all of them that were chosen, of which each is read once: compiled code lists those
matrices, with their rows, which follow one another.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.runtimes.native.codes import Column, OpCode, max_rows
from mindspore_serving.llm.runtimes.native.compiling import compiled
from mindspore_serving.llm.runtimes.native.elementwise import (
    OUT,
    OUT_STRIDE,
    P0,
    P1,
    P2,
    P3,
    P4,
    P5,
    P6,
    WIDTH,
    Integers,
)
from mindspore_serving.llm.runtimes.native.experts import chosen
from mindspore_serving.llm.runtimes.native.kernels.choices import (
    BODIES,
    TENSORS,
    choices_address,
)
from mindspore_serving.llm.runtimes.native.kernels.formats import (
    Activations,
    BlockMatrix,
)
from mindspore_serving.llm.runtimes.native.kernels.products import (
    ProductArgument,
    ProductMemory,
    TaskArgument,
    num_chunks,
    product_address,
    product_arguments,
    quantise_address,
    quantise_arguments,
    task_address,
)
from mindspore_serving.llm.runtimes.native.kernels.team import RECORD_BYTES, MemberArgument
from mindspore_serving.llm.runtimes.native.memory import call_kernel, int64_array, store_i64
from mindspore_serving.llm.runtimes.native.plan import NativePlan

_RECORD = RECORD_BYTES // 8
_RECORDS = 3 * _RECORD  # numbers of a product: two records and the end
_ARGUMENTS = len(ProductArgument)
_TOKENS, _OUT, _ACTIVATIONS = (
    ProductArgument.TOKENS.value,
    ProductArgument.OUT.value,
    ProductArgument.ACTIVATIONS.value,
)
_STRIDE, _PLAN = ProductArgument.ACTIVATION_STRIDE.value, MemberArgument.PLAN.value
_CHUNKS, _X, _HEADER = map(int, TaskArgument)
_LINE = 64  # bytes that activations are aligned to


class Team(NamedTuple):
    """Threads of kernels, as compiled code calls them: addresses of code and arguments."""

    run: int
    arguments: int


class Products:
    """Memory of the products of a plan, whose rows get addresses of it.

    P0 is the address of the records, P1 that of the arguments, P2 is 1 if activations are rounded.
    For experts P3 is the number of matrices, P5 the address of the list of those to be computed
    (`TaskArgument`), P6 that of the kernel of each.
    """

    def __init__(self, plan: NativePlan, matrices: Sequence[BlockMatrix]) -> None:
        self._kept: list[npt.NDArray[Any]] = []
        self._arena = plan.arena.ctypes.data
        uses = [
            (op, matrices[op[Column.P0] : op[Column.P0] + max(1, op[Column.P1])])
            for op in plan.operations
            if op[Column.CODE] in (OpCode.PRODUCT, OpCode.EXPERT_PRODUCT)
        ]
        sizes = [
            max_rows(int(op[Column.PER_TOKEN])) * kind.row_bytes(first.columns)
            for op, (first, *_) in uses
            if (kind := first.format.activations) != Activations.FLOAT
        ]
        self._rounded = np.zeros(max(sizes, default=0) + _LINE, np.uint8)
        for op, multiplied in uses:
            self._allocate(op, multiplied)
        for op in plan.operations:
            if op[Column.CODE] in BODIES:
                for column in TENSORS:
                    op[column] = self._arena + 4 * op[column] if op[column] >= 0 else -1
                op[Column.P6] = choices_address(OpCode(op[Column.CODE]))

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
        # All experts of a product have the same number of chunks.
        chunks = max(map(num_chunks, matrices))
        arguments = np.array([product_arguments(matrix, memory, chunks) for matrix in matrices])
        if is_float:
            arguments[:, ProductArgument.ACTIVATION_STRIDE] = stride
        kernels = np.array([product_address(matrix.format) for matrix in matrices], np.int64)
        product = kernels[0], chunks, arguments.ctypes.data
        if op[Column.CODE] == OpCode.EXPERT_PRODUCT:
            listed = np.zeros(_HEADER + 2 * len(matrices), np.int64)
            listed[_CHUNKS], listed[_X] = chunks, memory.activations
            product = task_address(), 1, listed.ctypes.data
            op[Column.P3], op[Column.P5] = len(matrices), listed.ctypes.data
            op[Column.P6] = kernels.ctypes.data
            self._kept += [listed, kernels]
        records = np.zeros((3, _RECORD), np.int64)
        if is_float:
            records[0] = product
        else:
            rounding = quantise_arguments(x, stride, rounded, columns, kind)
            records[0] = quantise_address(kind), 1, rounding.ctypes.data
            records[1] = product
            self._kept.append(rounding)
        op[Column.P0], op[Column.P1] = records.ctypes.data, arguments.ctypes.data
        op[Column.P2] = int(not is_float)
        self._kept += [records, arguments]


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
    """Compute products of rows with the matrices of their experts, whose numbers do not fall.

    There are P4 matrices for each, whose results have WIDTH features.
    """
    count, parts = op[P3], op[P4]
    arguments, kernels = int64_array(op[P1], count, _ARGUMENTS), int64_array(op[P6], 1, count)[0]
    listed = int64_array(op[P5], 1, _HEADER + 2 * count)[0]
    size, begin, num_tasks = count // parts, 0, 0
    while begin < rows:
        expert, end = chosen(arena, op, begin), begin + 1
        while end < rows and chosen(arena, op, end) == expert:
            end += 1
        out = arena + 4 * (op[OUT] + begin * op[OUT_STRIDE])
        for matrix in range(expert, count, size):
            numbers = arguments[matrix]
            numbers[_ACTIVATIONS] = listed[_X] + begin * numbers[_STRIDE]
            numbers[_OUT], numbers[_TOKENS] = out, end - begin
            listed[_HEADER + 2 * num_tasks] = kernels[matrix]
            listed[_HEADER + 2 * num_tasks + 1] = numbers.ctypes.data
            out, num_tasks = out + 4 * op[WIDTH], num_tasks + 1
        begin = end
    records = int64_array(op[P0], 3, _RECORD)
    records[0, 1] = rows
    records[op[P2], 1] = num_tasks * listed[_CHUNKS]
    store_i64(team.arguments, _PLAN, op[P0])
    call_kernel(team.run, team.arguments, 0)
