"""The operators that eager steps are made of, one table per device.

On Ascend they are those of `mindspore.mint`, which are written for it.  A CPU has kernels for most
of them but not for all, so its table is of `mindspore.ops`.  The table of Ascend has not been run
on one: what is checked is that its rows that a CPU can run compute what the others compute.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from mindspore_serving.llm.runtimes.mindir.library import ASCEND, CPU, mint, ops

Tensor: TypeAlias = Any  # a mindspore.Tensor
Unary: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Operators:
    """`softmax` and `mean` are over the last axis, which `mean` keeps, and `cat` takes the axis;
    `take` is rows of a matrix by their indices; `gelu_tanh` is GELU's approximation."""

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


def _take(matrix: Tensor, indices: Tensor) -> Tensor:
    return ops.gather(matrix, indices, 0)


def _mint_take(matrix: Tensor, indices: Tensor) -> Tensor:
    return mint.index_select(matrix, 0, indices)


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
        take=_take,
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
        take=_mint_take,
    ),
}
