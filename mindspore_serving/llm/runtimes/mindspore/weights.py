"""A checkpoint's tensors in MindSpore, float32, in the layout of their use.

Matrices are stored [in, out]: `matmul` would transpose an operand at every call.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.runtimes.mindir.library import mindspore


def tensor(array: npt.NDArray[Any]) -> Any:
    """A mindspore.Tensor with memory of its own."""
    return mindspore.Tensor(np.ascontiguousarray(array))


class Weights:
    """Each tensor is converted when it is first used in a role."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._loaded: dict[tuple[str, bool], Any] = {}

    def has(self, name: str) -> bool:
        return self._checkpoint.has(name)

    def check(self, name: str) -> None:
        """Raises StartError naming a tensor that is missing."""
        if not self._checkpoint.has(name):
            self._checkpoint.raw(name)

    def plain(self, name: str) -> Any:
        """As in the checkpoint."""
        return self._get(name, transposed=False)

    def transposed(self, name: str) -> Any:
        """A matrix as [in, out]."""
        return self._get(name, transposed=True)

    def clear(self) -> None:
        self._loaded.clear()

    def _get(self, name: str, *, transposed: bool) -> Any:
        weight = self._loaded.get((name, transposed))
        if weight is None:
            array = self._checkpoint.f32(name)
            weight = tensor(array.T if transposed else array)
            self._loaded[name, transposed] = weight
        return weight
