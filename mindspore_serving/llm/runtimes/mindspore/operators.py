"""Operators of eager steps, one table per device.

On Ascend they are those of `mindspore.mint`, which are written for it.  A CPU has kernels for most
of them but not for all, so its table uses `mindspore.ops`.  Ascend's table has not been run on
Ascend: tests check that its rows that a CPU can run give the results of the CPU's table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.runtimes.mindir.library import ASCEND, CPU, mindspore, mint, ops

Tensor: TypeAlias = Any  # a mindspore.Tensor
Unary: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Operators:
    """Operators of one device.

    `softmax` and `mean` are over the last axis, which `mean` keeps, and `cat` takes the axis;
    `take` gathers rows of a matrix; `gelu_tanh` is GELU's approximation.
    """

    matmul: Callable[[Tensor, Tensor], Tensor]
    softmax: Unary
    mean: Unary
    rsqrt: Unary
    tanh: Unary
    erf: Unary
    silu: Unary
    gelu_tanh: Unary
    cat: Callable[[list[Tensor], int], Tensor]
    take: Callable[[Tensor, Tensor], Tensor]


OPERATORS = {
    CPU: Operators(
        matmul=ops.matmul,
        softmax=partial(ops.softmax, axis=-1),
        mean=partial(ops.mean, axis=-1, keep_dims=True),
        rsqrt=ops.rsqrt,
        tanh=ops.tanh,
        erf=ops.erf,
        silu=ops.silu,
        gelu_tanh=partial(ops.gelu, approximate="tanh"),
        cat=ops.cat,
        take=lambda matrix, indices: ops.gather(matrix, indices, 0),
    ),
    ASCEND: Operators(
        matmul=mint.matmul,
        softmax=partial(mint.nn.functional.softmax, dim=-1),
        mean=partial(mint.mean, dim=-1, keepdim=True),
        rsqrt=mint.rsqrt,
        tanh=mint.tanh,
        erf=mint.erf,
        silu=mint.nn.functional.silu,
        gelu_tanh=partial(mint.nn.functional.gelu, approximate="tanh"),
        cat=mint.cat,
        take=lambda matrix, indices: mint.index_select(matrix, 0, indices),
    ),
}


def tensor(array: npt.NDArray[Any]) -> Any:
    """Copy an array to a mindspore.Tensor."""
    return mindspore.Tensor(np.ascontiguousarray(array))


class MindSporeWeights:
    """Tensors of a checkpoint; each is converted when it is first used in a role."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._loaded: dict[tuple[str, bool], Any] = {}

    def has(self, name: str) -> bool:
        return self._checkpoint.has(name)

    def check(self, name: str) -> None:
        """Raise StartError if the tensor is missing."""
        self._checkpoint.raw(name)

    def transposed(self, name: str) -> Any:
        """Return a matrix as [in, out]."""
        return self.plain(name, transposed=True)

    def clear(self) -> None:
        self._loaded.clear()

    def plain(self, name: str, *, transposed: bool = False) -> Any:
        """Return the tensor as in the checkpoint."""
        weight = self._loaded.get((name, transposed))
        if weight is None:
            array = self._checkpoint.f32(name)
            weight = tensor(array.T if transposed else array)
            self._loaded[name, transposed] = weight
        return weight
