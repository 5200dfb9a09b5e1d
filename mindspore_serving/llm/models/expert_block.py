"""A mixture of experts, as definitions describe it to the operations of a runtime."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Weight: TypeAlias = Any  # a handle of the runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Choice of a token's experts from one score per expert.

    Args:
        top_k: number of experts of a token.
        normalize: whether the chosen experts' weights are divided by their sum.
        min_total: lower bound of that sum.
        scores: "softmax" or "sigmoid" of the router's output.
        scale: factor of the weights, applied last.
        groups: number of equal groups of experts, of which first the `top_groups` best are chosen.
        top_groups: number of groups to choose from.
        by_pairs: whether a group's score is the sum of its two best experts, not that of its best.
        scales_input: whether an expert's input is multiplied by its weight, not its output.
    """

    top_k: int
    normalize: bool
    min_total: float = 0.0
    scores: str = "softmax"
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    by_pairs: bool = False
    scales_input: bool = False


@dataclass(frozen=True, slots=True)
class Clamp:
    """gpt-oss's gate: g = min(gate, limit), u = clip(up, limit): g * sigmoid(alpha g) * (u + 1)."""

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True)
class Expert:
    """Weights of one expert, with the bias of each matrix or none.

    Without a gate, the activation is the squared ReLU of `up`.
    """

    gate: Weight  # or None
    up: Weight
    down: Weight
    biases: tuple[Weight, Weight, Weight] | None = None


@dataclass(frozen=True, slots=True)
class HeldExperts:
    """Some of a layer's experts, `numbers`, and the tokens that are computed with them here.

    An expert is on `copies[expert]` ranks.  Token t is computed by the rank for which
    `indices[expert, t % copies[expert]]` is the expert's index in `numbers`; for others it is -1.
    """

    numbers: tuple[int, ...]
    copies: npt.NDArray[np.int32]
    indices: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ExpertBlock:
    """A mixture of experts whose gate is silu, tanh GELU (`is_gelu`), clamped, or absent.

    `experts` are all, or those that are `held`: then the output is the sum over these alone.
    `correction`, a number per expert, is added to the scores (after softmax or sigmoid) to choose
    experts, not to their weights.  Weights are multiplied by the chosen experts' `gains` at last.
    """

    experts: Sequence[Expert]
    routing: Routing
    correction: Weight | None = None
    gains: Weight | None = None
    clamp: Clamp | None = None
    is_gelu: bool = False
    held: HeldExperts | None = None
