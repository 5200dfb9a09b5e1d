"""Scales of a matrix's input channels before it is quantised (AWQ, arXiv:2306.00978).

A channel with large activations gets a scale over 1: its weights are rounded more finely, at the
price of the other channels of its group. The scale is the channel's mean absolute activation to the
power of alpha; alpha is chosen from a grid by the error of the quantised matrices' products with
real inputs. Works on arrays only; knows no file and no runtime.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.calibration.folds import Fold
from mindspore_serving.llm.checkpoint.packing import Packed, unpack

Floats: TypeAlias = npt.NDArray[np.float32]
Quantizer: TypeAlias = Callable[[Floats], Packed]

ALPHAS = tuple(i / 10 for i in range(11))
MAX_ROWS = 512  # of a matrix that are quantised to compare alphas, evenly spaced
LIMITS = (1e-4, 1e4)  # of activations and factors: a silent channel would divide by zero


@dataclass(frozen=True, slots=True)
class MatrixInputs:
    """Inputs of a matrix over the tokens of a text, float32.

    `mean_abs` [in] is the mean absolute activation of each channel, `samples` [tokens, in] the
    inputs of some tokens.
    """

    mean_abs: Floats
    samples: Floats


@dataclass(frozen=True, slots=True)
class ScaledFold:
    """A fold and its factors [columns].

    `error_ratio` is the error of the products with these factors over the error without.
    """

    fold: Fold
    factors: Floats
    error_ratio: float


def best_scale(
    fold: Fold, inputs: MatrixInputs, matrices: Sequence[Floats], quantize: Quantizer
) -> ScaledFold:
    """Return the factors for `fold` whose quantised products come nearest to the float ones.

    Args:
        fold: the matrices to scale.
        inputs: the common input of its readers.
        matrices: the weights of its readers, [out, in].
        quantize: rounds a matrix.
    """
    magnitudes = _shared_maximum(inputs.mean_abs, fold)
    rows = [_sample_rows(matrix) for matrix in matrices]
    float_products = [inputs.samples @ matrix.T for matrix in rows]
    candidates = []
    # A grid search, as in AWQ: rounding makes the error a step function, which has no gradient.
    for alpha in ALPHAS:
        factors = _factors(magnitudes, alpha)
        errors = [
            _error(inputs.samples / factors, unpack(quantize(matrix * factors)), products)
            for matrix, products in zip(rows, float_products, strict=True)
        ]
        candidates.append((sum(errors), alpha, factors))
    error, _, factors = min(candidates, key=lambda each: each[:2])
    unscaled = candidates[0][0]  # alpha 0
    return ScaledFold(fold, factors, error / unscaled if unscaled else 1.0)


def apply_scales(scaled: Sequence[ScaledFold], name: str, tensor: Floats) -> Floats:
    """Return the tensor `name` of the scaled model, computed from `tensor` of the original one."""
    for each in scaled:
        fold = each.fold
        if name in fold.readers:
            tensor = tensor * each.factors
        if name not in (fold.source, fold.bias):
            continue
        divisors = np.ones(len(tensor), np.float32)
        divisors[fold.channels] = each.factors
        plus = np.float32(fold.plus_one and name == fold.source)
        shape = (-1, *[1] * (tensor.ndim - 1))
        tensor = (tensor + plus) / divisors.reshape(shape) - plus
    return tensor


def changed_tensors(scaled: Sequence[ScaledFold]) -> set[str]:
    """Return the names of the tensors that `apply_scales` changes."""
    folds = [each.fold for each in scaled]
    return {name for f in folds for name in (f.source, f.bias, *f.readers) if name}


def _shared_maximum(magnitudes: Floats, fold: Fold) -> Floats:
    """Return the largest magnitude over the columns that one channel of the source produces."""
    largest = np.zeros(fold.channels.max() + 1, np.float32)
    np.maximum.at(largest, fold.channels, magnitudes)
    return largest[fold.channels]


def _factors(magnitudes: Floats, alpha: float) -> Floats:
    """Return the scale of each column, centred so that the largest times the smallest is 1.

    The centre keeps the scaled weights within the range of float16 (as AWQ's implementation does).
    """
    if not alpha:
        return np.ones_like(magnitudes)
    factors = np.clip(magnitudes, *LIMITS) ** np.float32(alpha)
    factors /= np.sqrt(factors.max() * factors.min())
    return np.clip(factors, *LIMITS).astype(np.float32)


def _sample_rows(matrix: Floats) -> Floats:
    rows = len(matrix)
    if rows <= MAX_ROWS:
        return matrix
    return matrix[np.linspace(0, rows - 1, MAX_ROWS).astype(np.int64)]


def _error(inputs: Floats, matrix: Floats, products: Floats) -> float:
    """Compute the squared error of the products, relative to the squared float products."""
    difference = inputs @ matrix.T - products
    return float((difference**2).sum() / max((products**2).sum(), 1e-30))
