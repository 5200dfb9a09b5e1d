"""Routing of a mixture of experts in numpy.  Knows no MindSpore."""

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.models.expert_block import Clamp, Routing

F32 = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


def route(scores: F32, routing: Routing, correction: F32 | None) -> tuple[F32, Indices]:
    """Return the weights and indices of each token's experts, [T, top_k].

    `scores` are the router's output, [T, experts].
    """
    if routing.scores == "sigmoid":
        scores = _sigmoid(scores)
    else:
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores = scores / scores.sum(-1, keepdims=True)
    choice_scores = scores if correction is None else scores + correction.reshape(1, -1)
    if routing.top_groups < routing.groups:
        choice_scores = _of_best_groups(choice_scores, routing)
    chosen = _largest(choice_scores, routing.top_k)
    shares = np.take_along_axis(scores, chosen, -1)
    if routing.normalize:
        shares = shares / np.maximum(shares.sum(-1, keepdims=True), np.float32(routing.min_total))
    return shares * np.float32(routing.scale), chosen


def clamped(gate: F32, up: F32, clamp: Clamp) -> F32:
    """Apply gpt-oss's clamped gate; see `expert_block.Clamp`."""
    gate = np.minimum(gate, np.float32(clamp.limit))
    up = np.clip(up, -clamp.limit, clamp.limit)
    result: F32 = gate * _sigmoid(gate * np.float32(clamp.alpha)) * (up + 1)
    return result


def _sigmoid(x: F32) -> F32:
    result: F32 = (np.tanh(x * np.float32(0.5)) + 1) * np.float32(0.5)
    return result


def _largest(x: F32, count: int) -> Indices:
    """Return the indices of the `count` largest values of each row, unordered."""
    return np.argpartition(-x, count - 1, axis=-1)[..., :count]


def _of_best_groups(scores: F32, routing: Routing) -> F32:
    """Set the scores of experts outside of the best groups to -inf."""
    grouped = scores.reshape(len(scores), routing.groups, -1)
    count = 2 if routing.by_pairs else 1
    rating = np.sort(grouped, -1)[..., -count:].sum(-1)
    kept = np.full(rating.shape, -np.inf, np.float32)
    np.put_along_axis(kept, _largest(rating, routing.top_groups), 0, -1)
    masked: F32 = (grouped + kept[..., None]).reshape(scores.shape)
    return masked
