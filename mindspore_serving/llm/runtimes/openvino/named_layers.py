"""Layers of a graph by the names of their tensors: NAME.weight and NAME.bias."""

from collections.abc import Callable, Sequence

import numpy as np
from openvino import opset13 as opset

from mindspore_serving.llm.runtimes.openvino.nodes import Node, i32, i64
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights

SWAPPED = np.array([0, 2, 1, 3])  # [B, L, heads, d] <-> [B, heads, L, d]


class NamedLayers:
    """Builder of layers from `weights`; `epsilon` is that of norms."""

    def __init__(self, weights: OpenVINOWeights, epsilon: float) -> None:
        self._weights, self._epsilon = weights, epsilon

    def _norm(self, x: Node, name: str) -> Node:
        """Normalise by mean and variance."""
        y = opset.mvn(x, i64(-1), True, self._epsilon, "INSIDE_SQRT")
        y = opset.multiply(y, self._vector(f"{name}.weight"))
        return opset.add(y, self._vector(f"{name}.bias"))

    def _linear(self, x: Node, name: str) -> Node:
        y = self._weights.product(x, f"{name}.weight")
        bias = f"{name}.bias"
        return opset.add(y, self._vector(bias)) if self._weights.has(bias) else y

    def _by_prompt(
        self, x: Node, sharing: Sequence[Node], width: int, attend: Callable[[Node], Node]
    ) -> Node:
        """Let tokens [B, L, width] of the same prompt attend to it together.

        `sharing` has the numbers of each prompt's tokens [prompts, n], where each token is among
        them, and the ids of the tokens.
        """
        numbers, shared, ids = sharing
        grouped = opset.gather(opset.reshape(x, i64(-1, width), False), numbers, i32(0))
        flat = opset.reshape(attend(grouped), i64(-1, width), False)
        shape = opset.concat([opset.shape_of(ids, "i64"), i64(width)], 0)
        return opset.reshape(opset.gather(flat, shared, i32(0)), shape, False)

    def _vector(self, name: str) -> Node:
        return opset.reshape(self._weights.vector(name), i64(-1), False)
