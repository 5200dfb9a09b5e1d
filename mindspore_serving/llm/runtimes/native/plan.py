"""A pass as arrays of numbers: operations with the offsets of their tensors in one arena.

Operations are recorded with tensors; then each tensor gets memory from its first operation to its
last.  Every offset, stride and width is checked before the interpreter sees it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.native.bounds import check_features
from mindspore_serving.llm.runtimes.native.codes import (
    NUM_COLUMNS,
    NUM_NUMBERS,
    Column,
    OpCode,
    max_rows,
)

ALIGNED = 16  # numbers: 64 bytes


@dataclass(eq=False, slots=True)
class Storage:
    """Memory of a tensor: numbers of the rows of a pass, or of a constant.

    It is used from the operation `first` to `last`; `last` -1 keeps it for the whole pass.
    """

    size: int
    first: int = 0
    last: int = 0
    offset: int = 0
    is_kept: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class ArenaTensor:
    """Features `begin` .. `begin + width - 1` of rows that are `stride` numbers apart.

    There are `per_token` rows for each token, or with 0 the rows of logits.  A `stride` of 0 is a
    constant's.
    """

    storage: Storage
    width: int
    stride: int
    begin: int = 0
    per_token: int = 1

    def part(self, begin: int, width: int) -> "ArenaTensor":
        """Return some of the features, in the same memory."""
        return ArenaTensor(self.storage, width, self.stride, self.begin + begin, self.per_token)


@dataclass(slots=True)
class PlanRow:
    """A row of the plan; `tensors` are those whose offsets are in its columns."""

    columns: dict[Column, int]
    numbers: tuple[float, ...]
    tensors: dict[Column, ArenaTensor]


@dataclass(frozen=True, slots=True)
class NativePlan:
    """Arrays of a plan; `arena` begins with the constants."""

    operations: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.float32]
    arena: npt.NDArray[np.float32]


_STRIDES = {Column.OUT: Column.OUT_STRIDE, Column.A: Column.A_STRIDE, Column.B: Column.B_STRIDE}


@dataclass(slots=True)
class PlanRecorder:
    """Records operations and constants, and makes the `NativePlan` of them."""

    operations: list[PlanRow] = field(default_factory=list)
    _constants: dict[bytes, ArenaTensor] = field(default_factory=dict)
    _values: list[npt.NDArray[np.float32]] = field(default_factory=list)

    def tensor(self, width: int, *, per_token: int = 1, is_kept: bool = False) -> ArenaTensor:
        """Return a new tensor of `width` features."""
        if not 0 < width < 2**32:
            raise StartError(f"a tensor has {width} features, expected at least one")
        stride = -(-width // ALIGNED) * ALIGNED
        storage = Storage(max_rows(per_token) * stride, len(self.operations), is_kept=is_kept)
        return ArenaTensor(storage, width, stride, per_token=per_token)

    def constant(self, values: npt.ArrayLike) -> ArenaTensor:
        """Return a tensor of one row, the same in all passes."""
        array = np.ascontiguousarray(values, np.float32).reshape(-1)
        key = array.tobytes()
        if key not in self._constants:
            storage = Storage(-(-len(array) // ALIGNED) * ALIGNED, is_kept=True)
            self._constants[key] = ArenaTensor(storage, len(array), 0)
            self._values.append(array)
        return self._constants[key]

    def add(
        self, code: OpCode, tensors: dict[Column, ArenaTensor], numbers: Iterable[float] = (),
        **parameters: int,
    ) -> None:  # fmt: skip
        """Record an operation; `parameters` are its further columns, in lower case.

        Raises StartError for an operation that reads or writes beyond its tensors.
        """
        columns = {Column[name.upper()]: value for name, value in parameters.items()}
        columns[Column.CODE] = code
        columns[Column.PER_TOKEN] = tensors[Column.OUT].per_token
        columns.setdefault(Column.WIDTH, tensors[Column.OUT].width)
        check_features(columns, {column: tensor.width for column, tensor in tensors.items()})
        for tensor in tensors.values():
            tensor.storage.last = len(self.operations)
        self.operations.append(PlanRow(columns, tuple(numbers), tensors))

    def plan(self) -> NativePlan:
        """Return the arrays, with memory for every tensor."""
        size = self._allocate_constants()
        size = _allocate(self.operations, size)
        arena = np.zeros(size + ALIGNED, np.float32)  # kernels read whole vectors
        for tensor, values in zip(self._constants.values(), self._values, strict=True):
            arena[tensor.storage.offset :][: len(values)] = values
        rows = np.full((len(self.operations), NUM_COLUMNS), -1, np.int64)
        numbers = np.zeros((len(self.operations), NUM_NUMBERS), np.float32)
        for row, values, operation in zip(rows, numbers, self.operations, strict=True):
            for column, value in operation.columns.items():
                row[column] = value
            for column, tensor in operation.tensors.items():
                row[column] = _checked_offset(tensor, size)
                if column in _STRIDES:
                    row[_STRIDES[column]] = tensor.stride
            values[: len(operation.numbers)] = operation.numbers
        return NativePlan(rows, numbers, arena)

    def _allocate_constants(self) -> int:
        offset = 0
        for tensor in self._constants.values():
            tensor.storage.offset = offset
            offset += tensor.storage.size
        return offset


def _checked_offset(tensor: ArenaTensor, size: int) -> int:
    storage = tensor.storage
    end = (max_rows(tensor.per_token) - 1) * tensor.stride + tensor.begin + tensor.width
    if tensor.begin < 0 or end > storage.size or storage.offset + storage.size > size:
        raise StartError(f"a tensor of {tensor.width} features is outside of its memory")
    return storage.offset + tensor.begin


def _allocate(operations: list[PlanRow], begin: int) -> int:
    """Give every tensor the first gap that is free while it is used; return the arena's size."""
    starting: dict[int, list[Storage]] = {}
    seen: set[int] = set()
    for index, operation in enumerate(operations):
        for tensor in operation.tensors.values():
            storage = tensor.storage
            if tensor.stride and id(storage) not in seen:
                seen.add(id(storage))
                first = 0 if storage.is_kept else index
                starting.setdefault(first, []).append(storage)
    live: list[Storage] = []
    end = begin
    for index in range(len(operations)):
        live = [other for other in live if other.is_kept or other.last >= index]
        for storage in starting.get(index, ()):
            storage.offset = _gap(live, storage.size, begin)
            live.append(storage)
            end = max(end, storage.offset + storage.size)
    return end


def _gap(live: list[Storage], size: int, begin: int) -> int:
    at = begin
    for other in sorted(live, key=lambda other: other.offset):
        if other.offset - at >= size:
            break
        at = max(at, other.offset + other.size)
    return at
