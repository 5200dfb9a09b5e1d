"""Mixture of experts in PyTorch: routing, and the computation of one expert."""

from typing import TypeAlias

import torch
from torch.nn import functional

from mindspore_serving.llm.models.expert_block import ExpertBlock, HeldExperts, Routing

Tensor: TypeAlias = torch.Tensor


def route(scores: Tensor, routing: Routing, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the weights and indices of each token's experts, [T, top_k].

    `scores` are the router's output, [T, experts].
    """
    scores = scores.float()
    scores = scores.sigmoid() if routing.scores == "sigmoid" else scores.softmax(-1)
    choice_scores = scores if correction is None else scores + correction.float().view(1, -1)
    if routing.top_groups < routing.groups:
        choice_scores = _of_best_groups(choice_scores, routing)
    chosen = choice_scores.topk(routing.top_k, -1).indices
    weights = scores.gather(1, chosen)
    if routing.normalize:
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=routing.min_total)
    return weights * routing.scale, chosen


def _of_best_groups(scores: Tensor, routing: Routing) -> Tensor:
    """Set the scores of experts outside of the best groups to -inf."""
    grouped = scores.unflatten(-1, (routing.groups, -1))
    rating = grouped.topk(2 if routing.by_pairs else 1, -1).values.sum(-1)
    best = rating.topk(routing.top_groups, -1).indices
    is_excluded = torch.ones_like(rating, dtype=torch.bool).scatter(1, best, False)
    return grouped.masked_fill(is_excluded[..., None], -torch.inf).flatten(1)


def held_indices(chosen: Tensor, held: HeldExperts) -> Tensor:
    """Return the index in `held` of each expert of each token, [T, top_k]; -1 on other ranks."""
    tokens = torch.arange(len(chosen))[:, None]
    turns = tokens % torch.from_numpy(held.copies)[chosen]
    return torch.from_numpy(held.indices)[chosen, turns]


def run_expert(x: Tensor, block: ExpertBlock, index: int) -> Tensor:
    """Return the output of expert `index` for its tokens, `x`."""
    weights, clamp = block.experts[index], block.clamp
    first, second, third = weights.biases or (None, None, None)
    up = functional.linear(x, weights.up, second)
    if weights.gate is None:
        return functional.linear(functional.relu(up).square(), weights.down, third)
    gate = functional.linear(x, weights.gate, first)
    if clamp is None:
        gate = functional.gelu(gate, approximate="tanh") if block.is_gelu else functional.silu(gate)
        hidden = gate * up
    else:
        gate = gate.clamp(max=clamp.limit)
        up = up.clamp(-clamp.limit, clamp.limit)
        hidden = gate * torch.sigmoid(gate * clamp.alpha) * (up + 1)
    return functional.linear(hidden, weights.down, third)
