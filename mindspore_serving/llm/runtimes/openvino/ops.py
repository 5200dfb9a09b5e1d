"""`Ops` that build an OpenVINO graph: a tensor is a node, and nothing is computed here.

Shapes are checked as the graph grows, so that a checkpoint that does not fit its configuration is
refused by the name of the tensor.  Knows neither the step nor the memory of the cache.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Parameter

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.ops import AttentionSpec, Inputs, Ops, Weight
from mindspore_serving.llm.runtimes.openvino.attention import Node, paged_attention
from mindspore_serving.llm.runtimes.openvino.experts import mixture
from mindspore_serving.llm.runtimes.openvino.lora import AdapterPorts
from mindspore_serving.llm.runtimes.openvino.weights import Weights

STEP_INPUTS = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
_TO_END = 2**63 - 1


class OpenVINOOps(Ops):
    """`Ops`; the handle of a weight is its name.  With `adapts`, the graph has inputs for LoRA
    adapters (`lora`) wherever there can be a change."""

    def __init__(self, weights: Weights, *, adapts: bool = False) -> None:
        self.parameters: dict[str, Node] = {}
        self._weights = weights
        self.ports = AdapterPorts(self._add, weights.precision) if adapts else None
        vectors = {name: self._parameter(name) for name in ("token_ids", "positions", "rows")}
        self.inputs = Inputs(**vectors)
        self._step = {name: self._parameter(name) for name in STEP_INPUTS}
        self._step["max_context_len"] = self._parameter("max_context_len", ())

    def model(self, logits: Node, vocab_size: int) -> ov.Model:
        """The graph of `logits`, and of `hidden`.  Raises StartError unless [rows, vocab_size]."""
        _expect(logits, vocab_size, "vocab_size")
        results = [opset.result(logits), opset.result(self._hidden)]
        for result, name in zip(results, ("logits", "hidden"), strict=True):
            result.output(0).get_tensor().set_names({name})
        return ov.Model(results, list(self.parameters.values()), "decoder")

    def weight(self, name: str) -> Weight:
        self._weights.shape(name)
        return name

    def has_weight(self, name: str) -> bool:
        return self._weights.has(name)

    def embedding(self, ids: Node, table: Weight) -> Node:
        rows = opset.gather(self._weights.table(table), ids, _i32(0))
        y = opset.convert(rows, "f32")
        if self.ports is not None:
            y = self.ports.add_rows(y, ids, table, self._weights.shape(table))
        return _named(y, table)

    def logits(self, x: Node, head: Weight) -> Node:
        return self._product(x, head, None, of_rows=True)

    def linear(self, x: Node, weight: Weight, bias: Weight | None = None) -> Node:
        return self._product(x, weight, bias)

    def _product(
        self, x: Node, weight: Weight, bias: Weight | None, *, of_rows: bool = False
    ) -> Node:
        """`of_rows`: `x` has the wanted tokens alone."""
        shape = self._weights.shape(weight)
        if len(shape) != 2 or shape[1] != features(x):
            raise StartError(f"tensor {weight!r} is {list(shape)}, expected [*, {features(x)}]")
        matrix = self._weights.matrix(weight)
        if matrix.get_element_type() == ov.Type.bf16:
            # With float32 on both sides the plugin would keep a float32 copy of the matrix.
            product = opset.matmul(opset.convert(x, "bf16"), matrix, False, True)
            y = opset.convert(product, "f32")
        else:
            y = opset.matmul(x, matrix, False, True)
        if self.ports is not None:
            y = self.ports.add_product(y, x, weight, shape, of_rows=of_rows)
        if bias is not None:
            y = opset.add(y, self._vector(bias, shape[0]))
        return _named(y, weight)

    def rms_norm(self, x: Node, weight: Weight, eps: float, *, plus_one: bool = False) -> Node:
        gain = self._vector(weight, features(x), plus=float(plus_one))
        return _rms(x, gain, eps)

    def head_rms_norm(
        self, x: Node, weight: Weight, num_heads: int, eps: float, *, plus_one: bool = False
    ) -> Node:
        width, head_dim = features(x), _head_dim(x, num_heads)
        gain = self._vector(weight, head_dim, plus=float(plus_one))
        heads = opset.reshape(x, _i64(-1, 1, num_heads, head_dim), False)
        gain = opset.reshape(gain, _i64(1, 1, 1, -1), False)
        return opset.reshape(_rms(heads, gain, eps), _i64(-1, width), False)

    def layer_norm(self, x: Node, weight: Weight, bias: Weight, eps: float) -> Node:
        width = features(x)
        normed = opset.mvn(x, _i64(-1), True, eps, "INSIDE_SQRT")
        scaled = opset.multiply(normed, self._vector(weight, width))
        return opset.add(scaled, self._vector(bias, width))

    def rope_tables(
        self, positions: Node, inv_freq: Sequence[float], scale: float = 1.0
    ) -> tuple[Node, Node, int]:
        frequencies = opset.constant(np.array([inv_freq], np.float32))
        column = opset.unsqueeze(opset.convert(positions, "f32"), _i64(1))
        angles = opset.multiply(column, frequencies)
        both = opset.concat([angles, angles], -1)
        width = 2 * len(inv_freq)
        cos, sin = (
            opset.reshape(self.scale(table, scale), _i64(-1, 1, 1, width), False)
            for table in (opset.cos(both), opset.sin(both))
        )
        return cos, sin, width

    def rope(self, x: Node, tables: tuple[Node, Node, int], num_heads: int) -> Node:
        cos, sin, rotated = tables
        width, head_dim = features(x), _head_dim(x, num_heads, least=rotated)
        heads = opset.reshape(x, _i64(-1, 1, num_heads, head_dim), False)
        turned = heads if rotated == head_dim else _slice(heads, 0, rotated)
        first, second = _slice(turned, 0, rotated // 2), _slice(turned, rotated // 2, _TO_END)
        halves = opset.concat([opset.multiply(second, _f32(-1)), first], -1)
        y = opset.add(opset.multiply(turned, cos), opset.multiply(halves, sin))
        if rotated != head_dim:
            y = opset.concat([y, _slice(heads, rotated, _TO_END)], -1)
        return _named(opset.reshape(y, _i64(-1, width), False), _name(x))

    def attention(self, layer: int, q: Node, k: Node, v: Node, spec: AttentionSpec) -> Node:
        _expect(q, spec.num_heads * spec.head_dim, f"{spec.num_heads} heads of {spec.head_dim}")
        for x in (k, v):
            what = f"{spec.num_kv_heads} key-value heads of {spec.head_dim}"
            _expect(x, spec.num_kv_heads * spec.head_dim, what)
        cache = (self._cache(f"key_cache.{layer}"), self._cache(f"value_cache.{layer}"))
        return paged_attention((q, k, v), cache, spec, step=self._step)

    def silu_mul(self, gate: Node, up: Node) -> Node:
        return self.mul(opset.swish(gate), up)

    def gelu(self, x: Node, *, tanh: bool = True) -> Node:
        return opset.gelu(x, "TANH" if tanh else "ERF")

    def mul(self, a: Node, b: Node) -> Node:
        return opset.multiply(a, _like(a, b))

    def add(self, a: Node, b: Node) -> Node:
        return opset.add(a, _like(a, b))

    def scale(self, x: Node, factor: float) -> Node:
        return x if factor == 1.0 else opset.multiply(x, _f32(factor))

    def softcap(self, x: Node, cap: float) -> Node:
        return self.scale(opset.tanh(self.scale(x, 1 / cap)), cap)

    def split(self, x: Node, sizes: Sequence[int]) -> list[Node]:
        _expect(x, sum(sizes), f"pieces of {list(sizes)}")
        ends = np.cumsum(sizes).tolist()
        return [_slice(x, end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def gather_rows(self, x: Node, rows: Node) -> Node:
        return opset.gather(x, rows, _i32(0))

    def moe(
        self,
        x: Node,
        router: Weight,
        experts: Sequence[tuple[Weight, Weight, Weight]],
        *,
        top_k: int,
        normalize: bool,
    ) -> Node:
        gates, up_weights, down_weights = (
            self._weights.stacked(names) for names in zip(*experts, strict=True)
        )
        scores = opset.softmax(self.linear(x, router), -1)
        best = opset.topk(scores, _i32(top_k), -1, "max", "value")
        shares, chosen = best.output(0), best.output(1)
        if normalize:
            shares = opset.divide(shares, opset.reduce_sum(shares, _i64(-1), keep_dims=True))
        return mixture(x, (gates, up_weights, down_weights), (scores, shares, chosen))

    def hidden(self, x: Node) -> Node:
        self._hidden = x
        return x

    def _vector(self, name: str, length: int, plus: float = 0.0) -> Node:
        shape = self._weights.shape(name)
        if shape != (length,):
            raise StartError(f"tensor {name!r} is {list(shape)}, expected [{length}]")
        return self._weights.vector(name, plus)

    def _parameter(self, name: str, shape: tuple[int, ...] = (-1,)) -> Node:
        return self._add(name, Parameter(ov.Type.i32, ov.PartialShape(list(shape))))

    def _cache(self, name: str) -> Node:
        """The plugin fills in type and shape when it compiles the graph."""
        return self._add(name, Parameter(ov.Type.dynamic, ov.PartialShape([-1] * 4)))

    def _add(self, name: str, parameter: Node) -> Node:
        parameter.output(0).get_tensor().set_names({name})
        self.parameters[name] = _named(parameter, name)
        return parameter


def features(x: Node) -> int:
    return int(x.output(0).get_partial_shape()[-1].get_length())


def _rms(x: Node, gain: Node, eps: float) -> Node:
    mean = opset.reduce_mean(opset.power(x, _f32(2)), _i64(-1), keep_dims=True)
    inverse = opset.divide(_f32(1), opset.sqrt(opset.add(mean, _f32(eps))))
    return opset.multiply(gain, opset.multiply(x, inverse))


def _slice(x: Node, begin: int, end: int) -> Node:
    return _named(opset.slice(x, _i64(begin), _i64(end), _i64(1), _i64(-1)), _name(x))


def _expect(x: Node, width: int, what: str) -> None:
    if features(x) != width:
        raise StartError(f"{_name(x)!r} gives {features(x)} features, expected {width}: {what}")


def _head_dim(x: Node, num_heads: int, *, least: int = 1) -> int:
    head_dim, rest = divmod(features(x), num_heads)
    if rest or head_dim < least:
        what = f"{num_heads} heads of at least {least}"
        raise StartError(f"{_name(x)!r} gives {features(x)} features, expected {what}")
    return head_dim


def _like(a: Node, b: Node) -> Node:
    _expect(b, features(a), f"as many as {_name(a)!r}")
    return b


def _named(node: Node, name: str) -> Node:
    """Name a node after the weight that made it, for messages and profiles."""
    node.set_friendly_name(name)
    return node


def _name(node: Node) -> str:
    return str(node.get_friendly_name())


def _i64(*values: int) -> Any:
    return opset.constant(np.array(values, np.int64))


def _i32(value: int) -> Any:
    return opset.constant(np.int32(value))


def _f32(value: float) -> Any:
    return opset.constant(np.float32(value))
