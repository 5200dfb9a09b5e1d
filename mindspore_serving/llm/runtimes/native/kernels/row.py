"""Addresses in LLVM code that a row of a product is computed from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Value: TypeAlias = Any  # of LLVM


@dataclass(frozen=True, slots=True)
class ProductRow:
    """A row of a matrix, and the activations of some tokens that it is multiplied with."""

    address: Value  # of the row's weights
    columns: Value
    index: Value  # of the row in its matrix
    tokens: Sequence[Value]  # addresses of activations
    scales: Sequence[Value]  # addresses of their scales
    sums: Sequence[Value]  # addresses of their sums
    weight_scales: Value  # address of the scales of the matrix, if they are apart
    weight_zeros: Value
