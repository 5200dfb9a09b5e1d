"""Operations of a rank: its part of every layer in one graph, with sums over ranks in it.

A sum is a node that the plugin computes by calling Python, which exchanges the parts through shared
memory; so the graph is compiled as a whole, and no native code has to be built.
"""

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as opset

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.models.expert_block import HeldExperts
from mindspore_serving.llm.models.ops import Weight
from mindspore_serving.llm.parallel.exchange import RankExchange
from mindspore_serving.llm.parallel.expert_counts import RankExperts
from mindspore_serving.llm.runtimes.openvino.nodes import (
    Node,
    f32,
    features,
    i32,
    i64,
    name_of,
    named,
)
from mindspore_serving.llm.runtimes.openvino.ops import OpenVINOOps
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights


class RankSums:
    """Sums of a rank's graph; `error` tells why the last step failed."""

    def __init__(self, exchange: RankExchange) -> None:
        self.exchange = exchange
        self.error: ServingError | None = None

    def compute(self, part: Any, total: Any) -> None:
        """Write the sum of `part` over the ranks to `total`."""
        try:
            self.exchange.sum(part.data, total.data)
        except ServingError as error:  # the plugin wraps it in an error of its own
            self.error = error
            raise


class Sum(ov.Op):  # type: ignore[misc]
    """Graph node: the sum of a float32 tensor over the ranks."""

    def __init__(self, inputs: list[Any], sums: RankSums) -> None:
        super().__init__(self)
        self._sums = sums
        self.set_arguments(inputs)
        self.constructor_validate_and_infer_types()

    def validate_and_infer_types(self) -> None:
        self.set_output_type(0, ov.Type.f32, self.get_input_partial_shape(0))

    def clone_with_new_inputs(self, new_inputs: list[Any]) -> "Sum":
        return Sum(new_inputs, self._sums)

    def has_evaluate(self) -> bool:
        return True

    def evaluate(self, outputs: list[Any], inputs: list[Any]) -> bool:
        self._sums.compute(inputs[0], outputs[0])
        return True


class OpenVINORankOps(OpenVINOOps):
    """`Ops` of one rank; embedding, head and logits have the rank's rows of the vocabulary."""

    def __init__(
        self, weights: OpenVINOWeights, sums: RankSums, experts: RankExperts | None, **inputs: Any
    ) -> None:
        super().__init__(weights, **inputs)
        self._sums, self._experts = sums, experts

    def held_experts(self, layer: int) -> HeldExperts | None:
        return None if self._experts is None else self._experts.held_in(layer)

    def embedding(self, ids: Node, table: Weight) -> Node:
        rank_rows = self._sums.exchange.rows
        is_local = opset.logical_and(
            opset.greater_equal(ids, i32(rank_rows.begin)), opset.less(ids, i32(rank_rows.end))
        )
        index = opset.select(is_local, opset.subtract(ids, i32(rank_rows.begin)), i32(0))
        rows = super().embedding(index, table)
        column = opset.unsqueeze(is_local, i64(1))
        return self.all_reduce(named(opset.select(column, rows, f32(0)), table))

    def whole_embedding(self, ids: Node, table: Weight) -> Node:
        return super().embedding(ids, table)

    def spanning_rms_norm(self, x: Node, weight: Weight, num_groups: int, eps: float) -> Node:
        exchange, width = self._sums.exchange, features(x)
        is_group = np.zeros((1, num_groups), np.float32)
        is_group[0, exchange.rank * num_groups // exchange.size] = 1
        squares = opset.reduce_sum(opset.power(x, f32(2)), i64(-1), keep_dims=True)
        sums = self.all_reduce(named(opset.multiply(squares, opset.constant(is_group)), weight))
        total = opset.reduce_sum(opset.multiply(sums, opset.constant(is_group)), i64(-1), True)
        mean = opset.divide(total, f32(width * exchange.size // num_groups))
        inverse = opset.divide(f32(1), opset.sqrt(opset.add(mean, f32(eps))))
        return opset.multiply(opset.multiply(x, inverse), self._vector(weight, width))

    def mean_of_ranks(self, x: Node) -> Node:
        mean = named(self.mean(x), name_of(x))
        return self.scale(self.all_reduce(mean), 1 / self._sums.exchange.size)

    def all_reduce(self, x: Node) -> Node:
        return named(Sum([x.output(0)], self._sums), f"{x.get_friendly_name()}.sum")
