"""Weights of a graph as parameters on the device, made one at a time.

Matrices that have the same input are one parameter, one below the other, so that one product
computes all of them.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.runtimes.mindir.library import mindspore

F32 = npt.NDArray[np.float32]


class GraphWeights:
    """Parameters by attribute of the cell; each is made when the first graph names it.

    `dtype` is the source of their dtype, "mindspore.float32" on a CPU.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: str = "mindspore.float32") -> None:
        self.dtype = dtype
        self.parameters: dict[str, Any] = {}
        self._checkpoint = checkpoint
        self._attributes: dict[str, str] = {}

    @property
    def element_type(self) -> Any:
        return getattr(mindspore, self.dtype.removeprefix("mindspore."))

    def has(self, name: str) -> bool:
        return self._checkpoint.has(name)

    def check(self, name: str) -> None:
        """Raise StartError if the tensor is missing."""
        self._checkpoint.raw(name)

    def rows(self, name: str) -> int:
        """Return the output features of a matrix."""
        return self._checkpoint.shape(name)[0]

    def size(self, name: str) -> int:
        """Return the number of elements of a tensor."""
        return prod(self._checkpoint.shape(name))

    def matrix(self, names: tuple[str, ...]) -> tuple[str, tuple[int, int]]:
        """Return the attribute and the shape of matrices, [out, in] each, below each other."""
        shapes = [self._checkpoint.shape(name) for name in names]
        height, width = sum(shape[0] for shape in shapes), shapes[0][1]
        return self._made(" ".join(names), lambda: self._stacked(names)), (height, width)

    def biases(self, weights: Sequence[str], biases: Sequence[str | None]) -> str:
        """Return the attribute of the biases of `matrix(weights)`; zeros where there is none."""

        def stacked() -> F32:
            pieces = zip(weights, biases, strict=True)
            return np.concatenate([
                self._checkpoint.f32(bias).reshape(-1) if bias
                else np.zeros(self.rows(weight), np.float32)
                for weight, bias in pieces
            ])  # fmt: skip

        return self._made(f"biases {' '.join(map(str, biases))}", stacked)

    def vector(self, name: str, *, plus_one: bool = False) -> str:
        """Return the attribute of a tensor, with 1 added if `plus_one`."""
        added = np.float32(1 if plus_one else 0)
        return self._made(f"{name} {plus_one}", lambda: self._checkpoint.f32(name) + added)

    def experts(self, names: Sequence[tuple[str, ...]]) -> str:
        """Return the attribute of the experts' matrices, [experts, in, out].

        The matrices of an expert are beside each other.
        """

        def stacked() -> F32:
            return np.stack([self._stacked(each).T for each in names])

        return self._made(f"experts {names[0]}", stacked)

    def expert_biases(self, names: Sequence[tuple[str, ...]]) -> str:
        """Return the attribute of the experts' biases, [experts, out]."""

        def stacked() -> F32:
            return np.stack([
                np.concatenate([self._checkpoint.f32(name).reshape(-1) for name in each])
                for each in names
            ])  # fmt: skip

        return self._made(f"biases of experts {names[0]}", stacked)

    def constant(self, key: str, make_array: Callable[[], F32], *, exact: bool = False) -> str:
        """Return the attribute of an array that is in no checkpoint; float32 if it is `exact`."""
        return self._made(key, make_array, exact=exact)

    def clear(self) -> None:
        self.parameters.clear()

    def _stacked(self, names: Sequence[str]) -> F32:
        matrices = [self._checkpoint.f32(name) for name in names]
        return matrices[0] if len(matrices) == 1 else np.concatenate(matrices)

    def _made(self, key: str, make_array: Callable[[], F32], *, exact: bool = False) -> str:
        attribute = self._attributes.get(key)
        if attribute is None:
            attribute = self._attributes[key] = f"w{len(self._attributes)}"
            value = mindspore.Tensor.from_numpy(np.ascontiguousarray(make_array()))
            if not exact:
                value = value.astype(self.element_type)
            self.parameters[attribute] = mindspore.Parameter(
                value, name=attribute, requires_grad=False
            )
        return attribute
