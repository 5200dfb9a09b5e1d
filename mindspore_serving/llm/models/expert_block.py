"""A mixture of experts, as definitions describe it to the operations of a runtime."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Weight: TypeAlias = Any  # a handle of the runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How a token's experts are chosen, from one score for each.

    Args:
        top_k: experts of a token.
        normalize: their shares are divided by their sum.
        least: what they are divided by at least.
        scores: "softmax" or "sigmoid" of what the router gives.
        scale: the shares are multiplied by it at last.
        groups: equal parts of the experts, of which first the `top_groups` best are chosen.
        by_pairs: a group is as good as its two best experts together, not as its best.
        scales_input: an expert's input is multiplied by its share, not its result.
    """

    top_k: int
    normalize: bool
    least: float = 0.0
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
    """Weights of one expert, and the biases behind each, or none.  Without a gate, what `up` gives
    is squared where it is over 0.
    """

    gate: Weight  # or None
    up: Weight
    down: Weight
    biases: tuple[Weight, Weight, Weight] | None = None


@dataclass(frozen=True, slots=True)
class ExpertBlock:
    """A mixture of experts with gates of silu, GELU by tanh (`is_gelu`), clamped ones, or none.

    `correction`, a number for each expert, is added to the scores, behind softmax or sigmoid, when
    experts are chosen, not to their shares.  Shares are multiplied by the chosen experts' `gains`
    at last.
    """

    experts: Sequence[Expert]
    routing: Routing
    correction: Weight | None = None
    gains: Weight | None = None
    clamp: Clamp | None = None
    is_gelu: bool = False
