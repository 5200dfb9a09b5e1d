"""The best logits of each row, chosen on the device, so that the others need not be copied."""

from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.llm.runtimes.mindir.library import mindspore, ops
from mindspore_serving.llm.runtimes.mindspore.nodes import ASCEND
from mindspore_serving.llm.runtimes.mindspore.primitives.table import make

Tensor: TypeAlias = Any  # a mindspore.Tensor
COUNTS = (16, 64, 256)  # numbers of logits that come back, one graph each
_NUM_CHECKED = 300  # numbers that differ


class BestChoice(mindspore.nn.Cell):  # type: ignore[misc]
    """The `count` largest of logits, [rows, vocabulary], in float32, and their ids.

    NaN counts as infinite, so that a row which has one shows it.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.top = make("top_k", ASCEND, k=count)

    def construct(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        wide = logits.astype(mindspore.float32)
        values, ids = self.top(ops.masked_fill(wide, ops.isnan(wide), float("inf")))
        return values, ids


class BestChoices:
    """Compiled choices of each of `COUNTS` that is below the size of the vocabulary."""

    def __init__(self, vocab_size: int, dtype: Any) -> None:
        self._vocab_size, self._dtype = vocab_size, dtype
        spec = mindspore.Tensor(shape=[None, vocab_size], dtype=dtype)
        self._cells = {count: BestChoice(count) for count in COUNTS if count < vocab_size}
        for cell in self._cells.values():
            cell.set_inputs(spec)
            cell.compile(spec)

    @property
    def max_best(self) -> int:
        """Largest number of logits that a row may need: one less than is returned, to see ties."""
        return max(self._cells, default=1) - 1

    def check(self) -> None:
        """Raise ValueError if the device chooses other logits than these numbers have."""
        size = min(_NUM_CHECKED, self._vocab_size)
        positions = np.random.default_rng(0).permutation(self._vocab_size)[:size]
        logits = np.full((2, self._vocab_size), -512, np.float32)
        logits[:, positions] = np.arange(size) - size // 2  # all dtypes have them exactly
        logits[1, positions[0]] = np.nan
        ranked = np.stack([positions[::-1], np.roll(positions[::-1], 1)])
        for count in self._cells:
            tensor = mindspore.Tensor.from_numpy(logits).astype(self._dtype)
            values, ids = (part.asnumpy() for part in self.choose(tensor, count - 1))
            expected = np.take_along_axis(np.nan_to_num(logits, nan=np.inf), ids, 1)
            if not ((ids == ranked[:, :count]).all() and (values == expected).all()):
                raise ValueError(f"the {count} largest of known numbers are others")

    def choose(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return more than `count` of the best logits of each row, and their ids."""
        cell = next(cell for number, cell in self._cells.items() if number > count)
        values, ids = cell.compile_and_run(logits)
        return values, ids
