"""Mixture of experts as nodes: a dense graph, of which the plugin computes only the chosen experts.

In the graph every expert computes every token, and weights of zero cancel the others.  The plugin
recognises exactly this pattern and computes the chosen experts only; any other pattern is correct,
but slower by the ratio of all experts to the chosen ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from openvino import opset13 as opset

from mindspore_serving.llm.models.expert_block import Clamp, Routing
from mindspore_serving.llm.runtimes.openvino.nodes import Node, f32, i32, i64, reshaped, swish

Weights: TypeAlias = tuple[Node, ...]
Routed: TypeAlias = tuple[Node, Node, Node]  # scores [T, E], shares and expert indices [T, k]


def mixture(x: Node, weights: Weights, routing: Routed, gate_of: Callable[[Node], Node]) -> Node:
    """Build a mixture of experts in the plugin's pattern; return [T, H].

    Args:
        x: [T, H].
        weights: gate and up [E, I, H], down [E, H, I].
        routing: scores [T, E], of which only the shape counts; weights and expert indices [T, k].
        gate_of: activation of the gate.
    """
    gate, up, down = weights
    count, hidden, _ = (size.get_length() for size in down.output(0).get_partial_shape())
    each = _repeat_rows(x, count, hidden)
    inner = opset.multiply(
        gate_of(opset.matmul(each, gate, False, True)), opset.matmul(each, up, False, True)
    )
    out = reshaped(opset.matmul(inner, down, False, True), count, 1, -1, hidden)
    spread = reshaped(opset.transpose(_share_matrix(routing), i64(1, 0)), count, 1, -1)
    weighted = opset.multiply(out, opset.unsqueeze(spread, i64(-1)))
    return reshaped(opset.reduce_sum(weighted, i64(0), keep_dims=False), -1, hidden)


def _repeat_rows(x: Node, count: int, hidden: int) -> Node:
    """Repeat the rows for every expert, [count, T, H]."""
    rows = reshaped(opset.unsqueeze(x, i64(0)), -1, hidden)
    return reshaped(opset.tile(rows, i64(count, 1)), count, -1, hidden)


def _share_matrix(routing: Routed) -> Node:
    """Return each expert's share of each token, [T, E], 0 for those that are not chosen."""
    scores, shares, chosen = routing
    none = opset.multiply(scores, f32(0))
    return opset.scatter_elements_update(none, chosen, shares, i64(1))


@dataclass(frozen=True, slots=True)
class DenseMixture:
    """Options of `dense_mixture`; `biases` are those of gate, up and down, [E, *]."""

    clamp: Clamp | None
    biases: Weights
    scales_input: bool


def dense_mixture(x: Node, weights: Weights, routing: Routed, options: DenseMixture) -> Node:
    """Build a mixture in which every expert is computed, as the plugin knows no such pattern.

    Without gates, `weights` are two.
    """
    *inner, down = weights
    count, hidden, _ = (size.get_length() for size in down.output(0).get_partial_shape())
    shares = reshaped(opset.transpose(_share_matrix(routing), i64(1, 0)), count, -1, 1)
    each = _repeat_rows(x, count, hidden)
    if options.scales_input:
        each = opset.multiply(each, shares)
    products = [opset.matmul(each, weight, False, True) for weight in inner]
    if options.biases:
        products = [
            opset.add(product, opset.unsqueeze(bias, i64(1)))
            for product, bias in zip(products, options.biases, strict=False)
        ]
    out = opset.matmul(_gated(products, options.clamp), down, False, True)
    if options.biases:
        out = opset.add(out, opset.unsqueeze(options.biases[2], i64(1)))
    if not options.scales_input:
        out = opset.multiply(out, shares)
    return reshaped(opset.reduce_sum(out, i64(0), keep_dims=False), -1, hidden)


def _gated(products: list[Node], clamp: Clamp | None) -> Node:
    if len(products) == 1:
        positive = opset.relu(products[0])
        return opset.multiply(positive, positive)
    gate, up = products
    if clamp is None:
        return opset.multiply(swish(gate), up)
    gate = opset.minimum(gate, f32(clamp.limit))
    up = opset.clamp(up, -clamp.limit, clamp.limit)
    gate = opset.multiply(gate, opset.sigmoid(opset.multiply(gate, f32(clamp.alpha))))
    return opset.multiply(opset.add(up, f32(1)), gate)


def route(
    scores: Node, routing: Routing, correction: Node | None, gains: Node | None = None
) -> Routed:
    """Choose the experts of each token; `scores` are the router's output, [T, E]."""
    is_sigmoid = routing.scores == "sigmoid"
    scores = opset.sigmoid(scores) if is_sigmoid else opset.softmax(scores, -1)
    choice_scores = scores if correction is None else opset.add(scores, reshaped(correction, 1, -1))
    if routing.top_groups < routing.groups:
        choice_scores = _of_best_groups(choice_scores, routing)
    best = opset.topk(choice_scores, i32(routing.top_k), -1, "max", "value")
    shares, chosen = best.output(0), best.output(1)
    if choice_scores is not scores:
        shares = opset.gather_elements(scores, chosen, 1)
    if routing.normalize:
        total = opset.reduce_sum(shares, i64(-1), keep_dims=True)
        total = opset.maximum(total, f32(routing.min_total)) if routing.min_total else total
        shares = opset.divide(shares, total)
    if routing.scale != 1.0:
        shares = opset.multiply(shares, f32(routing.scale))
    if gains is not None:
        shares = opset.multiply(shares, opset.gather(reshaped(gains, -1), chosen, i64(0)))
    return scores, shares, chosen


def _of_best_groups(scores: Node, routing: Routing) -> Node:
    """Lower the scores of experts outside of the best groups by 1e9."""
    experts = int(scores.get_output_partial_shape(0)[1].get_length())
    grouped = reshaped(scores, -1, routing.groups, experts // routing.groups)
    pair = opset.topk(grouped, i32(2 if routing.by_pairs else 1), -1, "max", "value").output(0)
    rating = opset.reduce_sum(pair, i64(-1), keep_dims=False)  # [T, groups]
    best = opset.topk(rating, i32(routing.top_groups), -1, "max", "value").output(1)
    kept = opset.multiply(opset.gather_elements(rating, best, 1), f32(0))
    excluded = opset.add(opset.multiply(rating, f32(0)), f32(-1e9))
    mask = opset.scatter_elements_update(excluded, best, kept, i64(1))
    return reshaped(opset.add(grouped, opset.unsqueeze(mask, i64(-1))), -1, experts)
