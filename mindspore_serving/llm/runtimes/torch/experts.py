"""A mixture of experts in PyTorch: which experts a token has, and what one computes."""

from typing import TypeAlias

import torch
from torch.nn import functional

from mindspore_serving.llm.models.expert_block import ExpertBlock, Routing

Tensor: TypeAlias = torch.Tensor


def route(scores: Tensor, routing: Routing, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """Shares and expert numbers, [T, top_k], of what the router gives, [T, experts]."""
    scores = scores.float()
    scores = scores.sigmoid() if routing.scores == "sigmoid" else scores.softmax(-1)
    wanted = scores if correction is None else scores + correction.float().view(1, -1)
    if routing.top_groups < routing.groups:
        wanted = _of_best_groups(wanted, routing)
    chosen = wanted.topk(routing.top_k, -1).indices
    shares = scores.gather(1, chosen)
    if routing.normalize:
        shares = shares / shares.sum(-1, keepdim=True).clamp(min=routing.least)
    return shares * routing.scale, chosen


def _of_best_groups(scores: Tensor, routing: Routing) -> Tensor:
    """`scores` with those of other groups below all."""
    grouped = scores.unflatten(-1, (routing.groups, -1))
    rating = grouped.topk(2 if routing.by_pairs else 1, -1).values.sum(-1)
    best = rating.topk(routing.top_groups, -1).indices
    is_other = torch.ones_like(rating, dtype=torch.bool).scatter(1, best, False)
    return grouped.masked_fill(is_other[..., None], -torch.inf).flatten(1)


def expert(x: Tensor, block: ExpertBlock, index: int) -> Tensor:
    """What one expert makes of its tokens."""
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
