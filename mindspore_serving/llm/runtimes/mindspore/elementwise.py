"""Operations of a recorded graph that are arithmetic of features."""

from mindspore_serving.llm.models.ops import MIN_MEAN_SQUARE, Ops
from mindspore_serving.llm.runtimes.mindspore.nodes import GraphRecorder, Node


class ElementwiseOps(GraphRecorder, Ops):
    """The `Ops` that need neither positions nor a cache."""

    def silu(self, x: Node) -> Node:
        return self.emit(f"ops.silu({x.name})", x.width)

    def relu(self, x: Node) -> Node:
        return self.emit(f"ops.relu({x.name})", x.width)

    def sigmoid(self, x: Node) -> Node:
        return self.emit(f"ops.sigmoid({x.name})", x.width)

    def gelu(self, x: Node, *, tanh: bool = True) -> Node:
        approximate = "tanh" if tanh else "none"
        return self.emit(f'ops.gelu({x.name}, approximate="{approximate}")', x.width)

    def mul(self, a: Node, b: Node) -> Node:
        return self.emit(f"{a.name} * {b.name}", max(a.width, b.width))

    def add(self, a: Node, b: Node) -> Node:
        return self.emit(f"{a.name} + {b.name}", a.width)

    def scale(self, x: Node, factor: float) -> Node:
        return self.emit(f"{x.name} * {float(factor)}", x.width)

    def gain(self, x: Node, weight: str) -> Node:
        return self.emit(f"{x.name} * {self.vector(weight)}", x.width)

    def mean(self, x: Node) -> Node:
        return self.emit(f"ops.mean({x.name}, -1, True)", 1)

    def gaussian_topk(self, x: Node, cutoff: float) -> Node:
        deviation = self.emit(f"{x.name} - {self.mean_of_ranks(x).name}", x.width)
        variance = self.mean_of_ranks(self.mul(deviation, deviation))
        return self.emit(
            f"ops.relu({deviation.name} - ops.sqrt({variance.name}) * {cutoff})", x.width
        )

    def match_rms(self, x: Node, other: Node) -> Node:
        target, actual = self.mean(self.mul(other, other)), self.mean(self.mul(x, x))
        least = f"(ops.relu({actual.name} - {MIN_MEAN_SQUARE}) + {MIN_MEAN_SQUARE})"
        return self.emit(f"{x.name} * ops.sqrt({target.name} / {least})", x.width)

    def below(self, ids: Node, count: int) -> Node:
        return self.emit(f"{ids.name} * ({ids.name} < {count}).astype(mindspore.int32)", 0)

    def softcap(self, x: Node, cap: float) -> Node:
        return self.emit(f"ops.tanh({x.name} / {cap}) * {cap}", x.width)
