"""Tensors that are computed when they are used: parts of fused matrices, and merged slices.

Knows no file and no name.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mindspore_serving.llm.checkpoint.safetensors import Array, StoredTensor


class DerivedTensor(StoredTensor):
    """A tensor that is computed from `sources` at each use, and not kept.

    So a model in another form takes no memory besides its files and one tensor.
    """

    __slots__ = ("_compute", "sources")
    sources: tuple[StoredTensor, ...]
    _compute: Callable[[], Array]

    def __init__(
        self,
        dtype: str,
        shape: tuple[int, ...],
        sources: Sequence[StoredTensor],
        compute: Callable[[], Array],
    ) -> None:
        """Take a function that returns the bits, in any memory layout, which reshape to `shape`."""
        values = {"dtype": dtype, "shape": shape, "sources": tuple(sources), "_compute": compute}
        for name, value in values.items():
            object.__setattr__(self, name, value)  # the base class is frozen

    @property
    def bits(self) -> Array:
        """The bits, contiguous and aligned; a copy unless they are so in the file."""
        return np.require(self._compute(), requirements=["C", "A"])

    def views(self) -> Iterator[Array]:
        for source in self.sources:
            yield from source.views()


def take_rows(stored: StoredTensor, rows: slice | Array) -> StoredTensor:
    """Return some rows of a tensor, which are read when they are used."""
    count = len(range(*rows.indices(stored.shape[0]))) if isinstance(rows, slice) else len(rows)
    shape = (count, *stored.shape[1:])
    return DerivedTensor(
        stored.dtype, shape, [stored], lambda: stored.bits.reshape(stored.shape)[rows]
    )
