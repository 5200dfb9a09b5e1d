"""Random arrays, shapes and attributes for cases of operators, drawn by hypothesis."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st


@dataclass(frozen=True)
class Case:
    """One call of an operator.

    `tensors` are arrays, or tuples of them; `more` are arguments behind them that are known in the
    file; `init` makes the primitive.  With `reference`, a function of all arguments, MindSpore has
    no such kernel for CPUs, or none that can be called, and `init` are attributes.
    """

    tensors: tuple[Any, ...]
    more: tuple[Any, ...] = ()
    init: dict[str, Any] = field(default_factory=dict)
    reference: Any = None
    tolerance: float = 1e-4


class Draw:
    """What a case is drawn with."""

    def __init__(self, data):
        self._data = data
        self._random = np.random.default_rng(self.number(0, 1000))

    def number(self, low, high):
        return self._data.draw(st.integers(low, high))

    def choice(self, *values):
        return self._data.draw(st.sampled_from(values))

    def flag(self):
        return self._data.draw(st.booleans())

    def shape(self, low=1, high=4):
        return tuple(self.number(1, 5) for _ in range(self.number(low, high)))

    def axis(self, array):
        return self.number(-array.ndim, array.ndim - 1)

    def floats(self, shape=None, low=-3.0, high=3.0):
        shape = self.shape() if shape is None else shape
        return self._random.uniform(low, high, shape).astype(np.float32)

    def distinct(self, shape=None):
        """Floats of which no two are equal."""
        shape = self.shape() if shape is None else shape
        return (
            (self._random.permutation(np.prod(shape, dtype=int)) / 4 - 3)
            .reshape(shape)
            .astype(np.float32)
        )

    def whole(self, shape=None, low=-9, high=9, kind=np.int32):
        shape = self.shape() if shape is None else shape
        return self._random.integers(low, high + 1, shape).astype(kind)

    def bools(self, shape=None):
        return self.whole(shape, 0, 1).astype(bool)

    def pair(self, low=-3.0, high=3.0):
        """Two arrays of which one is broadcast to the other, or both."""
        shape = self.shape(1, 3)
        other = tuple(size if self.flag() else 1 for size in shape)[self.number(0, len(shape)) :]
        arrays = [self.floats(shape, low, high), self.floats(other, low, high)]
        return arrays if self.flag() else arrays[::-1]

    def whole_pair(self, low=-9, high=9):
        first, second = self.pair()
        return self.whole(first.shape, low, high), self.whole(second.shape, low, high)

    def permutation(self, count):
        return tuple(int(one) for one in self._random.permutation(count))
