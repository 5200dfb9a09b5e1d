"""LoRA adapters: their matrices by address, in a table that compiled code reads at each product.

A step may have tokens of several adapters and of none; loading one changes the table alone.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.checkpoint.lora import LowRank
from mindspore_serving.llm.runtimes.adapters import TABLE, Changes, WeightUse
from mindspore_serving.llm.runtimes.layout import Indices
from mindspore_serving.llm.runtimes.native.attention import Memory
from mindspore_serving.llm.runtimes.native.codes import Column, StepColumn
from mindspore_serving.llm.runtimes.native.compiling import compiled
from mindspore_serving.llm.runtimes.native.elementwise import (
    A_STRIDE,
    OUT,
    OUT_STRIDE,
    P0,
    P1,
    WIDTH,
    A,
    Integers,
)
from mindspore_serving.llm.runtimes.native.memory import load_f32 as get
from mindspore_serving.llm.runtimes.native.memory import store_f32 as put

Matrix = npt.NDArray[np.float32]
_PER_TOKEN, _ADAPTER, _ZERO = int(Column.PER_TOKEN), int(StepColumn.ADAPTER), np.float32(0)
DOWN, UP, RANK = range(3)  # addresses of [rank, in] and [rank, out], and the rank


@dataclass(slots=True)
class AdapterTable:
    """Adapters by their rows of `table`, [rows, uses, 3]; row 0 is no adapter.

    A weight that is used, which an adapter may change, has a number.
    """

    shapes: dict[WeightUse, tuple[int, ...]] = field(default_factory=dict)
    numbers: dict[WeightUse, int] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=lambda: {0: 0})  # of adapters, by number
    loaded: set[int] = field(default_factory=set)
    table: Indices = field(default_factory=lambda: np.zeros((1, 1, 3), np.int64))
    _matrices: dict[tuple[int, WeightUse], tuple[Matrix, Matrix]] = field(default_factory=dict)

    def add_use(self, use: str, weight: str, shape: tuple[int, int]) -> int:
        """Return the number of a use of a weight; no adapter is loaded yet."""
        self.shapes[use, weight] = shape
        number = self.numbers.setdefault((use, weight), len(self.numbers))
        self.table = np.zeros((1, len(self.numbers), 3), np.int64)
        return number

    def load(self, adapter: int, changes: Changes) -> None:
        """Load an adapter; steps may name it from now on."""
        row = min(set(range(len(self.rows) + 1)) - set(self.rows.values()))
        table = np.zeros((max(row + 1, len(self.table)), *self.table.shape[1:]), np.int64)
        table[: len(self.table)] = self.table
        for use, change in changes.items():
            down, up = self._matrices[adapter, use] = _stored(change)
            table[row, self.numbers[use]] = down.ctypes.data, up.ctypes.data, len(down)
        self.table, self.rows[adapter] = table, row
        self.loaded.add(adapter)

    def unload(self, adapter: int) -> None:
        self.loaded.discard(adapter)
        self.table[self.rows.pop(adapter)] = 0
        for key in [key for key in self._matrices if key[0] == adapter]:
            del self._matrices[key]

    def add_rows(self, y: Matrix, table: str, ids: Indices, rows: Indices) -> None:
        """Add the adapters' changes to `y`, which is table[ids]; `rows` are those of the tokens."""
        for adapter, row in self.rows.items():
            change = self._matrices.get((adapter, (TABLE, table)))
            if change is not None:
                down, up = change
                y[rows == row] += up.T[ids[rows == row]] @ down

    def clear(self) -> None:
        for adapter in list(self.loaded):
            self.unload(adapter)


def _stored(change: LowRank) -> tuple[Matrix, Matrix]:
    down, up = (np.ascontiguousarray(part, np.float32) for part in (change.down, change.up.T))
    return down, up


@compiled
def adapt(memory: Memory, op: Integers, rows: int) -> None:
    """Add up @ down @ x to the products of `rows`, for the adapter of each."""
    for row in range(rows):
        token = row if op[_PER_TOKEN] else memory.gathered[row]
        adapter = memory.step[token, _ADAPTER]
        down, up = memory.adapters[adapter, op[P0], DOWN], memory.adapters[adapter, op[P0], UP]
        x = memory.arena + 4 * (op[A] + row * op[A_STRIDE])
        out = memory.arena + 4 * (op[OUT] + row * op[OUT_STRIDE])
        for _ in range(memory.adapters[adapter, op[P0], RANK]):
            low = _ZERO
            for i in range(op[P1]):
                low += get(down, i) * get(x, i)
            for i in range(op[WIDTH]):
                put(out, i, get(out, i) + low * get(up, i))
            down, up = down + 4 * op[P1], up + 4 * op[WIDTH]
