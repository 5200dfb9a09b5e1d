"""Lines of a graph's source, and what they name: variables, operators and parameters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.runtimes.mindspore.primitives.table import make
from mindspore_serving.llm.runtimes.mindspore.weights import GraphWeights

PREFILL, INCREMENT = "prefill", "increment"  # names of MindSpore's executor
CHUNKS = "chunks"  # an increment of several new tokens that a kernel does not take
ASCEND, COMPOSED = "ascend", "composed"  # columns of the table of primitives

HIDDEN_STATES = "hidden_states"  # input of a stage that is not the first, in place of token ids


class Node(NamedTuple):
    """A tensor of the graph, [tokens, width]: the variable that holds it."""

    name: str
    width: int = 0


@dataclass(slots=True)
class GraphRecorder:
    """Lines of a graph with operators of `filling`, but for those in `composed`.

    Weights are parameters of `weights`, shared by the graphs of all phases.
    """

    weights: GraphWeights
    filling: str
    composed: frozenset[str] = frozenset()
    lines: list[str] = field(default_factory=list)
    operators: dict[str, Any] = field(default_factory=dict)
    _made: dict[str, str] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        """Source of the dtype of weights and results."""
        return self.weights.dtype

    def record_pending(self, expression: str) -> None:
        """Record the pending lines that `expression` reads; none here."""

    def emit(self, expression: str, width: int) -> Node:
        """Record `expression` and return its result."""
        self.record_pending(expression)
        node = Node(f"x{len(self.lines)}", width)
        self.lines.append(f"{node.name} = {expression}")
        return node

    def emit_several(self, expression: str, count: int, width: int = 0) -> list[Node]:
        """Record an `expression` with `count` results and return them."""
        self.record_pending(expression)
        nodes = [Node(f"x{len(self.lines)}_{i}", width) for i in range(count)]
        self.lines.append(f"{', '.join(node.name for node in nodes)} = {expression}")
        return nodes

    def emit_once(self, expression: str, width: int = 0) -> Node:
        """Record an expression of inputs alone at its first use."""
        if expression not in self._made:
            self._made[expression] = self.emit(expression, width).name
        return Node(self._made[expression], width)

    def operator(self, name: str, filling: str = "", **options: Any) -> str:
        """Return the attribute of a primitive of the table, made once for equal options."""
        filling = filling or self.filling_of(name)
        return self.operator_once(
            f"{name} {filling} {options}", partial(make, name, filling, **options)
        )

    def filling_of(self, name: str) -> str:
        """Return the column of the table that primitive `name` is made of."""
        return COMPOSED if name in self.composed else self.filling

    def operator_once(self, key: str, make_operator: Callable[[], Any]) -> str:
        """Return the attribute of an operator, made at the first use of `key`."""
        if key not in self._made:
            self._made[key] = f"op{len(self.operators)}"
            self.operators[self._made[key]] = make_operator()
        return f"self.{self._made[key]}"

    def constant(
        self, key: str, make_array: Callable[[], npt.NDArray[np.float32]], *, exact: bool = False
    ) -> str:
        """Return the attribute of a constant, in the weights' dtype unless it is `exact`."""
        return f"self.{self.weights.constant(key, make_array, exact=exact)}"

    def unit_gains(self, width: int) -> str:
        return self.constant(f"ones {width}", lambda: np.ones(width, np.float32))

    def vector(self, name: str, *, plus_one: bool = False) -> str:
        return f"self.{self.weights.vector(name, plus_one=plus_one)}"

    def experts(self, names: Sequence[tuple[str, ...]]) -> str:
        return f"self.{self.weights.experts(names)}"

    def expert_biases(self, names: Sequence[tuple[str, ...]]) -> str:
        return f"self.{self.weights.expert_biases(names)}"

    def rows(self, name: str) -> int:
        """Return the output features of a matrix."""
        return self.weights.rows(name)
