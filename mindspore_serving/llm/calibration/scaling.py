"""The numbers that a matrix's input channels are multiplied by before it is rounded (AWQ).

A channel that has large numbers gets a number over 1, so that its weights are rounded finer, at the
price of the others in its group: the mean of its absolute inputs to the power of alpha.  Alpha is
the one of some by which the products of rounded matrices with real inputs come out best.  Arrays
alone; knows no file and no runtime.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.calibration.folds import Fold
from mindspore_serving.llm.checkpoint.packing import Packed, unpack

Floats: TypeAlias = npt.NDArray[np.float32]
Round: TypeAlias = Callable[[Floats], Packed]

ALPHAS = tuple(i / 10 for i in range(11))
MOST_ROWS = 512  # of a matrix that are rounded to compare alphas, evenly spaced
LIMITS = (1e-4, 1e4)


@dataclass(frozen=True, slots=True)
class MatrixInputs:
    """Of a matrix, over the tokens of a text: the mean absolute number of each channel [in], and
    what some tokens have, [tokens, in]; float32.
    """

    size: Floats
    some: Floats


@dataclass(frozen=True, slots=True)
class Scaled:
    """A fold with its numbers, one for each column of its readers.  `gain` is the error of products
    over that without scaling.
    """

    fold: Fold
    factors: Floats
    gain: float


def best_scale(fold: Fold, inputs: MatrixInputs, matrices: Sequence[Floats], pack: Round) -> Scaled:
    """Factors for `fold`, by the rounding `pack`.  `matrices` are those of its readers, [out, in],
    whose input is `inputs`.
    """
    sizes = _shared(inputs.size, fold)
    some = [_some_rows(matrix) for matrix in matrices]
    wanted = [inputs.some @ matrix.T for matrix in some]
    found = []
    for alpha in ALPHAS:
        factors = _factors(sizes, alpha)
        errors = [
            _error(inputs.some / factors, unpack(pack(matrix * factors)), products)
            for matrix, products in zip(some, wanted, strict=True)
        ]
        found.append((sum(errors), alpha, factors))
    error, _, factors = min(found, key=lambda each: each[:2])
    return Scaled(fold, factors, error / found[0][0] if found[0][0] else 1.0)


def apply(scaled: Sequence[Scaled], name: str, tensor: Floats) -> Floats:
    """The tensor `name` of the scaled model, from that of the model as it was."""
    for one in scaled:
        fold = one.fold
        if name in fold.readers:
            tensor = tensor * one.factors
        if name not in (fold.source, fold.bias):
            continue
        divisors = np.ones(len(tensor), np.float32)
        divisors[fold.channels] = one.factors
        plus = np.float32(fold.plus_one and name == fold.source)
        shape = (-1, *[1] * (tensor.ndim - 1))
        tensor = (tensor + plus) / divisors.reshape(shape) - plus
    return tensor


def changed(scaled: Sequence[Scaled]) -> set[str]:
    """Names of the tensors that `apply` changes."""
    names = {name for one in scaled for name in (one.fold.source, one.fold.bias, *one.fold.readers)}
    return {name for name in names if name}


def _shared(sizes: Floats, fold: Fold) -> Floats:
    """Columns that one channel gives have the largest of their numbers."""
    largest = np.zeros(fold.channels.max() + 1, np.float32)
    np.maximum.at(largest, fold.channels, sizes)
    return largest[fold.channels]


def _factors(sizes: Floats, alpha: float) -> Floats:
    if not alpha:
        return np.ones_like(sizes)
    factors = np.clip(sizes, *LIMITS) ** np.float32(alpha)
    factors /= np.sqrt(factors.max() * factors.min())
    return np.clip(factors, *LIMITS).astype(np.float32)


def _some_rows(matrix: Floats) -> Floats:
    rows = len(matrix)
    if rows <= MOST_ROWS:
        return matrix
    return matrix[np.linspace(0, rows - 1, MOST_ROWS).astype(np.int64)]


def _error(inputs: Floats, matrix: Floats, wanted: Floats) -> float:
    """Squared, over that of the products."""
    difference = inputs @ matrix.T - wanted
    return float((difference**2).sum() / max((wanted**2).sum(), 1e-30))
