"""Products of a recorded graph with matrices that are integers in the checkpoint."""

from collections.abc import Sequence

from mindspore_serving.llm.runtimes.mindspore.integers import IntegerForm
from mindspore_serving.llm.runtimes.mindspore.nodes import ASCEND, GraphRecorder, Node


class IntegerProducts:
    """Records products of a graph with matrices that are integers in the checkpoint."""

    def __init__(self, graph: GraphRecorder) -> None:
        self._graph = graph
        self._weights = graph.weights

    def are_alike(self, names: Sequence[str]) -> bool:
        """Return whether one product can compute all, be they floats or integers."""
        return len({self._weights.integer_form(name) for name in names}) == 1

    def has_bias(self, name: str) -> bool:
        """Return whether the product of a matrix contains its bias."""
        form = self._weights.integer_form(name)
        return form is not None and form.is_static

    def product(self, x: Node, names: Sequence[str], form: IntegerForm) -> Node:
        """Record the product of `x` with matrices, one below the other, in one line."""
        width = sum(self._weights.rows(name) for name in names)
        if not form.inputs:
            return self._graph.emit(self._of_weights(x, names, form), width)
        dtype = self._graph.dtype.removeprefix("mindspore.")
        operator = self._graph.operator("quant_matmul", dtype=dtype)
        if form.is_dynamic:
            rounded = self._graph.emit_once(
                f"{self._graph.operator('dynamic_quant')}({x.name})"
            ).name
            weight, scale = self._parts(names, ("weight", "scale"))
            line = f"{operator}({rounded}[0], {weight}, {scale}, None, {rounded}[1])"
            return self._graph.emit(line, width)
        weight, scale, bias = self._parts(names, ("weight", "scale", "bias"))
        rounded = self._rounded(x, names[0])
        return self._graph.emit(f"{operator}({rounded}, {weight}, {scale}, {bias}, None)", width)

    def _rounded(self, x: Node, name: str) -> str:
        """Return `x` rounded as the checkpoint says, once for all matrices that agree."""
        parts = self._weights.input_parts(name)
        source = x.name
        if "shift" in parts:
            source = self._graph.emit_once(f"{source} + self.{parts['shift']}").name
        operator = self._graph.operator("quantise")
        return self._graph.emit_once(
            f"{operator}({source}, self.{parts['steps']}, self.{parts['zero']})"
        ).name

    def _of_weights(self, x: Node, names: Sequence[str], form: IntegerForm) -> str:
        operator = self._graph.operator(
            "weight_quant_matmul", bits=form.bits, group_size=form.group
        )
        weight, scale, offset = self._parts(names, ("weight", "scale", "offset"))
        source = x.name
        for order in self._weights.input_parts(names[0]).values():
            source = self._graph.emit_once(f"ops.gather({source}, self.{order}, 1)").name
        return f"{operator}({source}, {weight}, {scale}, {offset})"

    def _parts(self, names: Sequence[str], parts: Sequence[str]) -> list[str]:
        is_nibbles = self._graph.filling == ASCEND
        made = self._weights.integer_parts(tuple(names), stored_as_nibbles=is_nibbles)
        return [f"self.{made[part]}" if part in made else "None" for part in parts]
