"""Mixture of experts as nodes, of which the plugin computes only the chosen experts.

With gates of SiLU or GELU the graph is dense: every expert computes every token, and weights of
zero cancel the others.  The plugin recognises exactly this pattern and computes the chosen experts
only.  Mixtures of another form order the rows by expert, and multiply group by group.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from openvino import opset13 as opset
from openvino import opset15, opset17

from mindspore_serving.llm.models.expert_block import Clamp, HeldExperts, Routing
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
class GroupedMixture:
    """Options of `grouped_mixture`; `biases` are those of gate, up and down, [E, *]."""

    clamp: Clamp | None
    biases: Weights
    scales_input: bool


def grouped_mixture(x: Node, weights: Weights, routing: Routed, options: GroupedMixture) -> Node:
    """Build a mixture of any form from products of rows that are ordered by expert; return [T, H].

    Every token is repeated for each of its experts.  Without gates, `weights` are two.
    """
    *inner, down = weights
    count, hidden, _ = (size.get_length() for size in down.output(0).get_partial_shape())
    _, shares, chosen = routing
    rows = _order_rows(chosen, count)
    each = opset.gather(x, opset.divide(rows.sources, i32(_top_k(chosen))), i64(0))
    if options.scales_input:
        ordered = opset.gather(reshaped(shares, -1, 1), rows.sources, i64(0))
        each = opset.multiply(each, ordered)
    biases = [opset.gather(bias, rows.experts, i64(0)) for bias in options.biases]
    products = [opset17.grouped_matmul(each, weight, rows.ends) for weight in inner]
    products = [*map(opset.add, products, biases)] if biases else products
    out = opset17.grouped_matmul(_gated(products, options.clamp), down, rows.ends)
    out = opset.add(out, biases[-1]) if biases else out
    out = reshaped(opset.gather(out, rows.targets, i64(0)), -1, _top_k(chosen), hidden)
    if not options.scales_input:
        out = opset.multiply(out, opset.unsqueeze(shares, i64(-1)))
    return opset.reduce_sum(out, i64(1), keep_dims=False)


class _Rows(NamedTuple):
    """Rows ordered by expert, of the [T * k] pairs of a token and one of its experts, int32.

    `sources` are the pairs in that order, `experts` their experts, `targets` the row of each pair,
    and `ends` the number of rows up to each expert's last, [E].
    """

    sources: Node
    experts: Node
    targets: Node
    ends: Node


def _order_rows(chosen: Node, count: int) -> _Rows:
    """Order the pairs by counting: the plugin's sort takes time by the square of their number."""
    pairs = reshaped(chosen, -1)
    marks = opset.one_hot(pairs, i32(count), i32(1), i32(0), 1)  # [T * k, E]
    numbers = opset.cum_sum(marks, i32(0))  # of a pair among those of its expert, from 1
    totals = opset.reduce_sum(marks, i64(0), keep_dims=False)
    ends = opset.cum_sum(totals, i32(0))
    before = opset.add(numbers, opset.subtract(ends, totals))
    targets = opset.reduce_sum(opset.multiply(marks, before), i64(1), keep_dims=False)
    targets = opset.subtract(targets, i32(1))
    length = opset.reduce_prod(opset.shape_of(pairs, "i32"), i64(0), keep_dims=False)
    indices = opset.range(i32(0), length, i32(1), "i32")
    sources = opset.scatter_update(indices, targets, indices, i32(0))
    return _Rows(sources, opset.gather(pairs, sources, i64(0)), targets, ends)


def _top_k(chosen: Node) -> int:
    """Return the number of experts of a token."""
    return int(chosen.get_partial_shape()[1].get_length())


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


class HeldRows(NamedTuple):
    """Rows of the pairs of a token and one of its experts that a rank computes, any number of them.

    `x` are the tokens' rows, each with one expert of the rank in `routed`, `tokens` [rows, 1].
    """

    x: Node
    routed: Routed
    tokens: Node


def held_rows(x: Node, routed: Routed, held: HeldExperts) -> HeldRows:
    """Gather the rows that a rank computes, so that a mixture of its experts has no others."""
    scores, shares, chosen = routed
    top_k, count = _top_k(chosen), len(held.numbers)
    indices = reshaped(_held_indices(chosen, held), -1)
    is_held = opset.greater_equal(indices, i32(0))
    pairs = reshaped(opset.non_zero(is_held, "i32"), -1)
    tokens = opset.divide(pairs, i32(top_k))
    columns = opset.slice(scores, i64(0), i64(count), i64(1), i64(1))  # of which the shape counts
    each = (
        opset.gather(columns, tokens, i64(0)),
        reshaped(opset.gather(reshaped(shares, -1), pairs, i64(0)), -1, 1),
        reshaped(opset.gather(indices, pairs, i64(0)), -1, 1).output(0),
    )
    return HeldRows(opset.gather(x, tokens, i64(0)), each, reshaped(tokens, -1, 1))


def sum_rows(out: Node, rows: HeldRows, x: Node) -> Node:
    """Add the outputs of `rows` up by token; 0 for a token of `x` without rows."""
    return opset15.scatter_nd_update(opset.multiply(x, f32(0)), rows.tokens, out, "sum")


def _held_indices(chosen: Node, held: HeldExperts) -> Node:
    """Return the index in `held` of each expert of each token, [T, k]; -1 on other ranks."""
    width = held.indices.shape[1]
    pairs = chosen
    if width > 1:
        count = opset.gather(opset.shape_of(chosen, "i32"), i32(0), i32(0))
        tokens = opset.unsqueeze(opset.range(i32(0), count, i32(1), "i32"), i64(1))
        turns = opset.floor_mod(tokens, opset.gather(opset.constant(held.copies), chosen, i64(0)))
        pairs = opset.add(opset.multiply(chosen, i32(width)), turns)
    return opset.gather(opset.constant(held.indices.reshape(-1)), pairs, i64(0))


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
