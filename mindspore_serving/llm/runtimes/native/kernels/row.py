"""Addresses in LLVM code that products are computed from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Value: TypeAlias = Any  # of LLVM


@dataclass(frozen=True, slots=True)
class ProductRow:
    """A row of a matrix."""

    address: Value
    number: Value  # in its matrix


@dataclass(frozen=True, slots=True)
class ProductTokens:
    """Activations of some tokens, and what all rows share."""

    addresses: Sequence[Value]
    columns: Value
    weight_scales: Value  # address of the scales of the matrix, if they are apart
    weight_zeros: Value
