"""Keys and values of sequences in rows of tables, which a graph reads without copying.

A table is [rows, heads, cells, features].  A step reads the first rows of each, so those of a step
have to be adjacent; how many rows and cells there are follows from what is needed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import openvino as ov

Array: TypeAlias = npt.NDArray[Any]

GRAIN = 64  # cells by which tables grow
_SPARE = 4  # a table with so many times the cells that are needed is made smaller


class RowTables:
    """Tables of a kind: `keys` and `values` of each layer, with the same number of cells.

    Args:
        kind: precision in which they are stored, "bf16" or "f32".
        heads, width: of a table.
        num_layers: tables of keys, and as many of values.
        grain: cells by which tables grow.
    """

    def __init__(
        self, kind: str, heads: int, width: int, num_layers: int, grain: int = GRAIN
    ) -> None:
        self._type = ov.Type.bf16 if kind == "bf16" else ov.Type.f32
        self._dtype = np.uint16 if kind == "bf16" else np.float32
        self._shape, self._grain = (heads, width), grain
        self.num_rows = self.num_cells = 0
        self._tables = [self._zeros(0, 0) for _ in range(2 * num_layers)]

    @property
    def num_bytes(self) -> int:
        """Bytes of all tables."""
        return sum(table.nbytes for table in self._tables)

    def fit(self, num_rows: int, lengths: Mapping[int, int], needed: int) -> None:
        """Make room for `num_rows` rows of `needed` cells.

        `lengths` are the cells in use, by row; they are kept, other cells are not.  New rows may
        be among them.
        """
        needed = max(needed, 1, *lengths.values())
        cells = -(-needed // self._grain) * self._grain
        is_small = self.num_cells < cells or self.num_rows < num_rows
        if not is_small and self.num_cells < _SPARE * cells:
            return
        self.num_rows, self.num_cells = max(num_rows, self.num_rows), cells
        for number, table in enumerate(self._tables):
            grown = self._zeros(self.num_rows, cells)
            for row, length in lengths.items():
                if row >= len(table):
                    continue  # a new row, which is written later
                grown[row, :, :length] = table[row, :, :length]
            self._tables[number] = grown

    def write(self, number: int, row: int, begin: int, cells: Array) -> None:
        """Write the bits of [heads, n, features] to table `number`, from cell `begin` on."""
        self._tables[number][row, :, begin : begin + cells.shape[1]] = cells

    def write_all(
        self, number: int, rows: Sequence[int], begins: Sequence[int], cells: Array
    ) -> None:
        """Write [rows, heads, n, features] to rows, each from its cell of `begins` on."""
        where = np.array(begins)[:, None] + np.arange(cells.shape[2])
        # Indices around a slice come first: [rows, n, heads, features].
        self._tables[number][np.array(rows)[:, None], :, where] = cells.swapaxes(1, 2)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first cells of a row to another."""
        for table in self._tables:
            table[target, :, :length] = table[source, :, :length]

    def bring_first(self, rows: Sequence[int], lengths: Mapping[int, int]) -> dict[int, int]:
        """Exchange rows so that `rows` are the first ones.

        `lengths` are the cells in use, by row.  Returns the new numbers of the rows that moved.
        """
        needed, moved = set(rows), dict[int, int]()
        moving = (row for row in rows if row >= len(rows))
        free = (row for row in range(len(rows)) if row not in needed)
        for row, other in zip(moving, free, strict=False):
            length = max(lengths.get(row, 0), lengths.get(other, 0))
            for table in self._tables:
                table[[row, other], :, :length] = table[[other, row], :, :length]
            moved |= {row: other, other: row}
        return moved

    def tensor(self, number: int, begin: int, end: int) -> ov.Tensor:
        """Return rows of a table as a tensor that shares its memory."""
        view = self._tables[number][begin:end]
        return ov.Tensor(view, ov.Shape(list(view.shape)), self._type)

    def empty(self, num_rows: int) -> ov.Tensor:
        """Return tables of no cells as a tensor."""
        view = self._zeros(num_rows, 0)
        return ov.Tensor(self._type, ov.Shape(list(view.shape)))

    def bits(self, tensor: Any) -> Array:
        """Return the contents of a tensor as these tables hold them."""
        if self._type == ov.Type.f32:
            return np.asarray(tensor.data)
        count = int(np.prod(tensor.shape))
        return np.asarray(tensor.data).view(np.uint16).reshape(-1)[:count].reshape(tensor.shape)

    def _zeros(self, num_rows: int, num_cells: int) -> Array:
        heads, width = self._shape
        return np.zeros((num_rows, heads, num_cells, width), self._dtype)
