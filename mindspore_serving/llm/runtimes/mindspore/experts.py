"""A mixture of experts in a recorded graph; the host never waits for its routing.

Tokens are sorted by expert, all experts compute in one grouped product, and their outputs are
summed by token.
"""

from typing import Any, TypeAlias

from mindspore_serving.llm.models.expert_block import Clamp, ExpertBlock, Routing
from mindspore_serving.llm.parallel.shards import Range
from mindspore_serving.llm.runtimes.mindir.library import mindspore, ops
from mindspore_serving.llm.runtimes.mindspore.nodes import (
    ASCEND,
    COMPOSED,
    GraphRecorder,
    Node,
)

Tensor: TypeAlias = Any  # a mindspore.Tensor
EXCLUDED = -1e30  # score of an expert of a group that was not chosen


class Router(mindspore.nn.Cell):  # type: ignore[misc]
    """Weights and indices of each token's experts, [T, top_k], of scores, [T, experts].

    `correction`, [experts], is added to choose experts, not to their weights.
    """

    def __init__(self, routing: Routing, num_experts: int) -> None:
        super().__init__()
        self.top_k = routing.top_k
        self.is_sigmoid = routing.scores == "sigmoid"
        self.normalize = routing.normalize
        self.min_total = routing.min_total
        self.scale = routing.scale
        self.groups = routing.groups
        self.group_size = num_experts // routing.groups
        self.top_groups = routing.top_groups
        self.rated = 2 if routing.by_pairs else 1
        self.top = ops.TopK(sorted=True)
        self.sum = ops.ReduceSum(keep_dims=True)
        self.numbers = mindspore.Tensor(list(range(routing.groups)), mindspore.int32)

    def construct(self, scores: Tensor, correction: Tensor | None) -> tuple[Tensor, Tensor]:
        scores = scores.astype(mindspore.float32)
        shares = ops.sigmoid(scores) if self.is_sigmoid else ops.softmax(scores, -1)
        ranked = shares if correction is None else shares + correction.astype(mindspore.float32)
        if self.top_groups < self.groups:
            ranked = self.of_best_groups(ranked)
        _, chosen = self.top(ranked, self.top_k)
        shares = ops.gather_elements(shares, 1, chosen)
        if self.normalize:
            shares = shares / ops.maximum(self.sum(shares, 1), self.min_total)
        return shares * self.scale, chosen.astype(mindspore.int32)

    def of_best_groups(self, ranked: Tensor) -> Tensor:
        """Return the scores without the experts outside of the best groups."""
        grouped = ops.reshape(ranked, (-1, self.groups, self.group_size))
        best, _ = self.top(grouped, self.rated)
        _, chosen = self.top(ops.ReduceSum()(best, 2), self.top_groups)
        is_chosen = (ops.expand_dims(chosen, 2) == self.numbers).astype(mindspore.float32)
        remains = ops.expand_dims(ops.ReduceSum()(is_chosen, 1), 2)
        return ops.reshape(grouped + (1 - remains) * EXCLUDED, (-1, ranked.shape[1]))


def record_experts(
    graph: GraphRecorder, x: Node, scores: Node, block: ExpertBlock, held: Range | None = None
) -> Node:
    """Record the mixture of `block` for `x`, [T, H], with the router's `scores`, [T, experts].

    With `held` the output is the sum over these experts alone.
    """
    weights, routing = block.experts, block.routing
    if held is not None:
        weights = weights[held.begin : held.end]
    count = len(weights)
    shares, chosen = _route(graph, scores, block)
    if block.gains:
        gains = f"ops.gather({graph.vector(block.gains)}, {chosen.name}, 0)"
        shares = graph.emit(f"{shares.name} * {gains}", routing.top_k)
    if held is not None:
        chosen = _renumbered(graph, chosen, held)
    num_sorted = count + (held is not None)  # rows of other experts are last
    rows, targets, counts = graph.emit_several(
        f"{graph.operator('moe_init_routing', num_experts=num_sorted)}({x.name}, {chosen.name})", 3
    )
    # The choice, t * top_k + j, that each sorted row is of.
    choice = graph.emit(f"ops.sort({targets.name}.astype(mindspore.float32))[1]", 0)
    if routing.scales_input:
        share = f"ops.gather(ops.reshape({shares.name}, (-1, 1)), {choice.name}, 0)"
        rows = graph.emit(f"{rows.name} * {share}.astype({graph.dtype})", x.width)
    counts = graph.emit(f"{counts.name}[:{count}].astype(mindspore.int64)", 0)
    is_composed = graph.filling_of("grouped_matmul") == COMPOSED
    options: dict[str, Any] = {"may_have_no_rows": True} if held is not None and is_composed else {}
    product = graph.operator("grouped_matmul", **options)
    gated = weights[0].gate is not None
    upper = [(each.gate, each.up) if gated else (each.up,) for each in weights]
    width = graph.rows(weights[0].up)
    hidden = graph.emit(
        f"{product}({rows.name}, {graph.experts(upper)}, {counts.name})", width * len(upper[0])
    )
    expert = graph.emit(f"ops.gather(ops.reshape({chosen.name}, (-1,)), {choice.name}, 0)", 0)
    is_behind = f"ops.expand_dims({expert.name} >= {count}, 1)"
    expert = graph.emit(f"ops.minimum({expert.name}, {count - 1})", 0) if held else expert
    hidden = _biased(graph, hidden, expert, _biases(weights, (0, 1)))
    hidden = _activated(graph, hidden, block, gated)
    out = graph.emit(
        f"{product}({hidden.name}, {graph.experts([(each.down,) for each in weights])}, "
        f"{counts.name})", graph.rows(weights[0].down),
    )  # fmt: skip
    out = _biased(graph, out, expert, _biases(weights, (2,)))
    if held is not None:  # products leave the rows of other experts undefined
        out = graph.emit(f"ops.masked_fill({out.name}, {is_behind}, 0.0)", out.width)
    summed = f"ops.ones_like({shares.name})" if routing.scales_input else shares.name
    return graph.emit(
        f"{graph.operator('moe_unpermute')}({out.name}, {targets.name}, "
        f"{summed}.astype({graph.dtype}))", out.width,
    )  # fmt: skip


def _renumbered(graph: GraphRecorder, chosen: Node, held: Range) -> Node:
    """Record the choices with `held` experts numbered from 0, and all others behind these."""
    number = graph.emit(f"{chosen.name} - {held.begin}", chosen.width).name
    is_held = f"ops.logical_and({number} >= 0, {number} < {held.count})"
    is_held = graph.emit(f"{is_held}.astype(mindspore.int32)", chosen.width).name
    return graph.emit(f"{number} * {is_held} + {held.count} * (1 - {is_held})", chosen.width)


def _route(graph: GraphRecorder, scores: Node, block: ExpertBlock) -> list[Node]:
    """Record the choice of experts: by a primitive of the device where it has the rule."""
    routing = block.routing
    correction = graph.vector(block.correction) if block.correction else ""
    if graph.filling == ASCEND and _is_fused(routing, block):
        operator = graph.operator(
            "fused_add_topk_div", group_num=routing.groups, group_topk=routing.top_groups, n=2,
            k=routing.top_k, is_norm=routing.normalize, scale=routing.scale,
        )  # fmt: skip
        wide = f"{scores.name}.astype(mindspore.float32)"
        return graph.emit_several(f"{operator}({wide}, {correction})", 2)
    router = graph.operator_once(
        f"router {routing} {len(block.experts)}", lambda: Router(routing, len(block.experts))
    )
    return graph.emit_several(f"{router}({scores.name}, {correction or None})", 2)


def _is_fused(routing: Routing, block: ExpertBlock) -> bool:
    """Return whether the routing is DeepSeek V3's."""
    return bool(routing.scores == "sigmoid" and routing.by_pairs and block.correction)


def _biases(experts: Any, indices: tuple[int, ...]) -> list[tuple[str, ...]]:
    return [tuple(each.biases[i] for i in indices) for each in experts if each.biases]


def _biased(graph: GraphRecorder, x: Node, expert: Node, names: list[tuple[str, ...]]) -> Node:
    if not names:
        return x
    return graph.emit(
        f"{x.name} + ops.gather({graph.expert_biases(names)}, {expert.name}, 0)", x.width
    )


def _activated(graph: GraphRecorder, hidden: Node, block: ExpertBlock, gated: bool) -> Node:
    if not gated:
        relu = graph.emit(f"ops.relu({hidden.name})", hidden.width)
        return graph.emit(f"{relu.name} * {relu.name}", hidden.width)
    if block.clamp is None and not block.is_gelu:
        return graph.emit(f"{graph.operator('swiglu')}({hidden.name})", hidden.width // 2)
    width = hidden.width // 2
    gate, up = graph.emit_several(f"ops.split({hidden.name}, {width}, -1)", 2, width)
    if block.clamp is not None:
        return _clamped(graph, gate, up, block.clamp)
    return graph.emit(f'ops.gelu({gate.name}, approximate="tanh") * {up.name}', width)


def _clamped(graph: GraphRecorder, gate: Node, up: Node, clamp: Clamp) -> Node:
    """Record gpt-oss's clamped gate."""
    limit = float(clamp.limit)
    gate = graph.emit(f"ops.minimum({gate.name}, {limit})", gate.width)
    up = graph.emit(f"ops.clamp({up.name}, {-limit}, {limit}) + 1.0", up.width)
    turned = f"ops.sigmoid({gate.name} * {float(clamp.alpha)})"
    return graph.emit(f"{gate.name} * {turned} * {up.name}", gate.width)
