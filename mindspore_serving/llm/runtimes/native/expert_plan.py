"""`Ops` that plan mixtures of experts: rows of choices in the order of experts, see `experts`."""

import math
from collections.abc import Sequence

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.expert_block import ExpertBlock
from mindspore_serving.llm.models.ops import Weight
from mindspore_serving.llm.runtimes.native.codes import Binary, Column, OpCode, RouteFlag, Scaling
from mindspore_serving.llm.runtimes.native.kernels.formats import Activations
from mindspore_serving.llm.runtimes.native.planned import Node, PlannedOps, expect
from mindspore_serving.llm.runtimes.native.weights import NativeWeights

_OUT, _A, _B, _P1, _P5 = Column.OUT, Column.A, Column.B, Column.P1, Column.P5


class ExpertOps(PlannedOps):
    """Operations of mixtures."""

    def __init__(self, weights: NativeWeights) -> None:
        super().__init__()
        self._weights = weights

    def moe(self, x: Node, scores: Node, block: ExpertBlock) -> Node:
        routing, count = block.routing, len(block.experts)
        top_k = routing.top_k
        routed = self._route(scores, block)
        shares = routed.part(top_k, top_k)
        targets, scratch = self.recorder.tensor(top_k), self.recorder.tensor(2 * count)
        expert = self.recorder.tensor(1, per_token=top_k)
        self.recorder.add(
            OpCode.EXPERT_ORDER, {_OUT: expert, _A: routed, _P1: targets, _P5: scratch},
            width=count, p2=targets.stride, p4=top_k,
        )  # fmt: skip
        gathered = self.recorder.tensor(x.width, per_token=top_k)
        tensors = {_OUT: gathered, _A: x, _B: targets}
        factors = {_P1: shares}
        is_early = routing.scales_input
        self.recorder.add(
            OpCode.EXPERT_GATHER, tensors | (factors if is_early else {}),
            p2=shares.stride, p4=top_k,
        )  # fmt: skip
        tensors = {_OUT: self._like(x), _A: self._computed(gathered, expert, block), _B: targets}
        self.recorder.add(
            OpCode.EXPERT_SUM, tensors | ({} if is_early else factors),
            p2=shares.stride, p4=top_k,
        )  # fmt: skip
        return tensors[_OUT]

    def _route(self, scores: Node, block: ExpertBlock) -> Node:
        """Choose experts: the result has the numbers of the `top_k` best, and their weights."""
        routing, count = block.routing, len(block.experts)
        expect(scores, count, "a score for each expert")
        if not 0 < routing.top_k <= count or count % routing.groups:
            raise StartError(
                f"{routing.top_k} of {count} experts in {routing.groups} groups cannot be chosen"
            )
        flags = RouteFlag.SIGMOID if routing.scores == "sigmoid" else RouteFlag(0)
        flags |= RouteFlag.NORMALIZE if routing.normalize else RouteFlag(0)
        flags |= RouteFlag.BY_PAIRS if routing.by_pairs else RouteFlag(0)
        out = self.recorder.tensor(2 * routing.top_k)
        tensors = {_OUT: out, _A: scores, _P5: self.recorder.tensor(3 * count)}
        for column, name in ((_B, block.correction), (_P1, block.gains)):
            if name is not None:
                tensors[column] = self.recorder.constant(self._weights.vector(name, count))
        self.recorder.add(
            OpCode.ROUTE, tensors, (routing.min_total, routing.scale), width=count, p0=int(flags),
            p2=routing.groups, p3=routing.top_groups, p4=routing.top_k,
        )  # fmt: skip
        return out

    def _computed(self, x: Node, expert: Node, block: ExpertBlock) -> Node:
        """Compute for each row the expert whose number is in `expert`."""
        ups, gates = [e.up for e in block.experts], [e.gate for e in block.experts]
        biases = list(zip(*(e.biases or () for e in block.experts), strict=True))
        if gates[0] is None:
            (up,) = self._products(x, expert, [ups])
            up = self._expert_bias(up, expert, biases[1]) if biases else up
            h = self.relu(up)
            h = self.mul(h, h)
        else:
            gate, up = self._products(x, expert, [gates, ups])
            if biases:
                gate, up = (
                    self._expert_bias(y, expert, names)
                    for y, names in zip((gate, up), biases, strict=False)
                )
            h = self._gated(gate, up, block)
        (out,) = self._products(h, expert, [[e.down for e in block.experts]])
        return self._expert_bias(out, expert, biases[2]) if biases else out

    def _gated(self, gate: Node, up: Node, block: ExpertBlock) -> Node:
        if block.clamp is not None:
            limit = block.clamp.limit
            gate = self._scaling(Scaling.CLIP, gate, -math.inf, limit)
            up = self._scaling(Scaling.CLIP, up, -limit, limit)
            return self._binary(Binary.CLAMPED, gate, up, block.clamp.alpha)
        return self.mul(self.gelu(gate), up) if block.is_gelu else self.silu_mul(gate, up)

    def _products(
        self, x: Node, expert: Node, parts: Sequence[Sequence[Weight]]
    ) -> Sequence[Node]:  # fmt: skip
        """Multiply by the matrices of each part, all at once where they take the same input."""
        matrices = [[self._weights.matrix(name, x.width) for name in names] for names in parts]
        for of_part, (name, *_) in zip(matrices, parts, strict=True):
            if not _follow(of_part):
                raise StartError(f"the experts of {name!r} have matrices of different shapes")
            if len(self._activations(of_part)) > 1:
                raise StartError(f"the experts of {name!r} have types that do not go together")
        every = [matrix for of_part in matrices for matrix in of_part]
        is_joined = _follow(every) and len(self._activations(every)) == 1
        if len(parts) > 1 and not is_joined:
            return [y for names in parts for y in self._products(x, expert, [names])]
        first, width = every[0]
        out = self.recorder.tensor(width * len(parts), per_token=x.per_token)
        self.recorder.add(
            OpCode.EXPERT_PRODUCT, {_OUT: out, _A: x, _B: expert}, width=width, p0=first,
            p1=len(every), p4=len(parts),
        )  # fmt: skip
        return [out.part(width * part, width) for part in range(len(parts))]

    def _activations(self, matrices: Sequence[tuple[int, int]]) -> set[Activations]:
        return {self._weights.matrices[number].format.activations for number, _ in matrices}

    def _expert_bias(self, x: Node, expert: Node, names: Sequence[Weight]) -> Node:
        out = self._like(x)
        values = np.concatenate([self._weights.vector(name, x.width) for name in names])
        tensors = {_OUT: out, _A: x, _B: expert, _P1: self.recorder.constant(values)}
        self.recorder.add(OpCode.EXPERT_BIAS, tensors)
        return out


def _follow(matrices: Sequence[tuple[int, int]]) -> bool:
    """Tell whether the numbers of matrices follow one another, and all have as many rows."""
    first, width = matrices[0]
    return list(matrices) == [(first + k, width) for k in range(len(matrices))]
