"""`Ops` that build an OpenVINO graph: a tensor is a node, and nothing is computed here.

Shapes are checked as the graph grows, and errors name the tensor.  Knows no step, and no memory of
a cache.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Parameter

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.expert_block import ExpertBlock
from mindspore_serving.llm.models.ops import (
    AttentionSpec,
    DecoderInputs,
    Weight,
    latent_sizes,
)
from mindspore_serving.llm.models.state_rules import DeltaRule, Heads, SelectiveScan
from mindspore_serving.llm.runtimes.openvino import heads, states
from mindspore_serving.llm.runtimes.openvino.attention import TYPES, paged_attention
from mindspore_serving.llm.runtimes.openvino.experts import (
    GroupedMixture,
    Routed,
    Weights,
    grouped_mixture,
    held_rows,
    mixture,
    route,
    sum_rows,
)
from mindspore_serving.llm.runtimes.openvino.fusion import block_of
from mindspore_serving.llm.runtimes.openvino.latent import latent_attention
from mindspore_serving.llm.runtimes.openvino.lora import AdapterPorts
from mindspore_serving.llm.runtimes.openvino.nodes import (
    ROPE_POSITIONS,
    USES_LONG_ROPE,
    Node,
    expect,
    features,
    head_width,
    i32,
    i64,
    name_of,
    named,
    reshaped,
)
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights

ROUTED = "routed"  # name of the output with the experts of the tokens
HIDDEN = "hidden_in"  # name of the input; the output's is "hidden"
STEP_INPUTS = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")


class OpenVINOOps(heads.Headwise):
    """`Ops` that build a graph; the handle of a weight is its name.

    With `adapts`, the graph has inputs for LoRA adapters (`lora`); with `num_features`, for image
    features of that size in place of embeddings; with `switches` and `has_axes`, for
    `uses_long_rope` and `rope_positions` of `DecoderInputs`; with `has_types`, tokens of an image
    see one another; with `keeps_latent`, the cache of latent attention has latent vectors.
    """

    def __init__(
        self, weights: OpenVINOWeights, *, adapts: bool = False, num_features: int = 0,
        switches: bool = False, has_axes: bool = False, has_types: bool = False,
        keeps_latent: bool = False,
    ) -> None:  # fmt: skip
        self.parameters: dict[str, Node] = {}
        self._weights, self._keeps_latent = weights, keeps_latent
        self.routed: list[Node] = []  # experts of the tokens by layer, where ranks have some each
        self.ports = AdapterPorts(self._add, weights.precision) if adapts else None
        names = ("token_ids", "positions", "rows", *([USES_LONG_ROPE] if switches else []))
        vectors = {name: self._parameter(name) for name in names}
        if num_features:
            vectors["feature_rows"] = self._parameter("feature_rows")
            vectors["features"] = self._rows("features", num_features)
        if has_axes:
            vectors[ROPE_POSITIONS] = self._parameter(ROPE_POSITIONS, (-1, 3))
        self.inputs = DecoderInputs(**vectors)
        types = (TYPES,) if has_types else ()
        self._step = {name: self._parameter(name) for name in (*STEP_INPUTS, *types)}
        self._step["max_context_len"] = self._parameter("max_context_len", ())

    def stage_inputs(self, width: int) -> DecoderInputs:
        """Return `inputs` with the hidden states of the stage before, of `width` features."""
        return replace(self.inputs, hidden=self._rows(HIDDEN, width))

    def model(self, logits: Node, vocab_size: int) -> ov.Model:
        """Return the graph of `logits` and `hidden`.  Raises StartError unless [rows, vocab_size].

        In bf16 `hidden` is bfloat16: the plugin computes in float32 whatever leads to a float32
        result without a product in between, which is every addition to the residual stream.
        """
        expect(logits, vocab_size, "vocab_size")
        is_bf16 = self._weights.precision == "bf16"
        hidden = opset.convert(self._hidden, "bf16") if is_bf16 else self._hidden
        return self.graph_of({"logits": logits, "hidden": hidden})

    def graph_of(self, outputs: Mapping[str, Node]) -> ov.Model:
        """Return the graph of `outputs`, by name, and of the experts of the tokens."""
        routed = {ROUTED: opset.concat(self.routed, 1)} if self.routed else {}
        outputs = {**outputs, **routed}
        results = [opset.result(node) for node in outputs.values()]
        for result, name in zip(results, outputs, strict=True):
            result.output(0).get_tensor().set_names({name})
        return ov.Model(results, list(self.parameters.values()), "decoder")

    def weight(self, name: str) -> Weight:
        self._weights.shape(name)
        return name

    def has_weight(self, name: str) -> bool:
        return self._weights.has(name)

    def embedding(self, ids: Node, table: Weight) -> Node:
        if ids is self.inputs.token_ids and self._weights.gathers(table):
            y = self._rows(table, self._weights.shape(table)[1])
        else:
            y = opset.convert(opset.gather(self._weights.table(table), ids, i32(0)), "f32")
        if self.ports is not None:
            y = self.ports.add_rows(y, ids, table, self._weights.shape(table))
        return named(y, table)

    def replace_rows(self, x: Node, indices: Node, rows: Node) -> Node:
        return opset.scatter_update(x, indices, rows, i32(0))

    def logits(self, x: Node, head: Weight, bias: Weight | None = None) -> Node:
        (y,) = self.linears(x, (head,), (bias,), of_rows=True)
        return y

    def linear(self, x: Node, weight: Weight, bias: Weight | None = None) -> Node:
        (y,) = self.linears(x, (weight,), (bias,))
        return y

    def linears(
        self, x: Node, weights: Sequence[Weight], biases: Sequence[Weight | None], *,
        of_rows: bool = False,
    ) -> list[Node]:  # fmt: skip
        """Compute `linear` for each weight; with `of_rows`, `x` has only the tokens of logits."""
        outputs, products = [], self._weights.products(x, weights)
        for y, weight, bias in zip(products, weights, biases, strict=True):
            shape = self._weights.shape(weight)
            if self.ports is not None:
                y = self.ports.add_product(y, x, weight, shape, of_rows=of_rows)
            if bias is not None:
                y = opset.add(y, self._vector(bias, shape[0]))
            outputs.append(named(y, weight))
        return outputs

    def rms_norm(self, x: Node, weight: Weight, eps: float, *, plus_one: bool = False) -> Node:
        gain = self._vector(weight, features(x), plus=float(plus_one))
        return heads.rms(x, gain, eps)

    def head_rms_norm(
        self, x: Node, weight: Weight | None, num_heads: int, eps: float, *,
        plus_one: bool = False,
    ) -> Node:  # fmt: skip
        gain = None
        if weight is not None:
            width = head_width(x, num_heads)
            if self._weights.shape(weight) == (features(x),):
                width = features(x)
            gain = self._vector(weight, width, plus=float(plus_one))
        return heads.rms_norm(x, gain, num_heads, eps)

    def layer_norm(
        self, x: Node, weight: Weight | None, bias: Weight | None, eps: float, *,
        plus_one: bool = False,
    ) -> Node:  # fmt: skip
        width = features(x)
        y = opset.mvn(x, i64(-1), True, eps, "INSIDE_SQRT")
        if weight is not None:
            y = opset.multiply(y, self._vector(weight, width, plus=float(plus_one)))
        return y if bias is None else opset.add(y, self._vector(bias, width))

    def head_layer_norm(self, x: Node, weight: Weight, num_heads: int, eps: float) -> Node:
        shape, expected = self._weights.shape(weight), (num_heads, head_width(x, num_heads))
        if shape != expected:
            raise StartError(f"tensor {weight!r} is {list(shape)}, expected {list(expected)}")
        return heads.layer_norm(x, self._weights.vector(weight), num_heads, eps)

    def gain(self, x: Node, weight: Weight) -> Node:
        is_scalar = self._weights.shape(weight) == (1,)
        return opset.multiply(x, self._vector(weight, 1 if is_scalar else features(x)))

    def attention(self, layer: int, q: Node, k: Node, v: Node, spec: AttentionSpec) -> Node:
        expect(q, spec.num_heads * spec.head_dim, f"{spec.num_heads} heads of {spec.head_dim}")
        for x in (k, v):
            what = f"{spec.num_kv_heads} key-value heads of {spec.head_dim}"
            expect(x, spec.num_kv_heads * spec.head_dim, what)
        cache = (self._cache(f"key_cache.{layer}"), self._cache(f"value_cache.{layer}"))
        sinks = self._vector(spec.sinks, spec.num_heads) if spec.sinks else None
        return paged_attention((q, k, v), cache, spec, step=self._step, sinks=sinks)

    def latent_attention(
        self, layer: int, q: tuple[Node, Node], key: tuple[Node, Node], expansion: Weight,
        spec: AttentionSpec,
    ) -> Node:  # fmt: skip
        if not self._keeps_latent:
            return super().latent_attention(layer, q, key, expansion, spec)
        cache = (self._cache(f"key_cache.{layer}"), self._cache(f"value_cache.{layer}"))
        latent = latent_sizes(spec)
        matrices = self._weights.by_head(expansion, (latent.plain, latent.value))
        return latent_attention(q, key, matrices, cache, spec, step=self._step)

    def convolution(self, layer: int, x: Node, weight: Weight, bias: Weight | None = None) -> Node:
        shape = self._weights.shape(weight)
        if len(shape) != 3 or shape[:2] != (features(x), 1):
            raise StartError(f"tensor {weight!r} is {list(shape)}, expected [{features(x)}, 1, *]")
        none = opset.constant(np.zeros(0, np.float32))
        added = none if bias is None else reshaped(self._vector(bias, features(x)), -1)
        kernel = reshaped(self._weights.vector(weight), *shape)
        table = self._state(f"convolution_state.{layer}", (features(x), shape[2]))
        return named(states.convolution(x, table, (kernel, added), self._state_step()), weight)

    def delta_rule(
        self, layer: int, qkv: tuple[Node, Node, Node], alpha: Node, beta: Node, rule: DeltaRule
    ) -> Node:
        names = (rule.a_log, rule.dt_bias)
        rate, bias = (self._vector(name, rule.heads.value_heads) for name in names)
        parts = (*qkv, states.decay(alpha, rate, bias), opset.sigmoid(beta))
        table = self._matrices(layer, rule.heads)
        return states.delta_rule(parts, table, rule.heads, self._state_step())

    def selective_scan(
        self, layer: int, xbc: tuple[Node, Node, Node], step: Node, scan: SelectiveScan
    ) -> Node:
        names = (scan.a_log, scan.dt_bias, scan.skip)
        rate, bias, skip = (self._vector(name, scan.heads.value_heads) for name in names)
        parts = (*xbc, states.time_steps(step, bias, scan.limits))
        table = self._matrices(layer, scan.heads)
        return states.selective_scan(
            parts, (rate, skip), table, scan.heads, step=self._state_step()
        )

    def _matrices(self, layer: int, heads: Heads) -> Node:
        shape = (heads.value_heads, heads.value_dim, heads.key_dim)
        return self._state(f"matrix_state.{layer}", shape)

    def dense(self, x: Node, block: Callable[[Node], Node]) -> Node:
        y = block(opset.unsqueeze(x, i64(1))) if self.ports is None else x
        # With adapters there is no fusion: their additions are between the products, of rank 2.
        return named(opset.squeeze(y, i64(1)), name_of(y)) if block_of(y) else block(x)

    def moe(self, x: Node, scores: Node, block: ExpertBlock) -> Node:
        weights = tuple(
            self._weights.stacked(names)
            for names in zip(*((e.gate, e.up, e.down) for e in block.experts), strict=True)
            if names[0] is not None
        )
        vectors = (
            None if name is None else self._weights.vector(name)
            for name in (block.correction, block.gains)
        )
        routed = route(scores, block.routing, *vectors)
        if block.held is None:
            return self._mixture(x, weights, routed, block)
        self.routed.append(routed[2])
        rows = held_rows(x, routed, block.held)
        return sum_rows(self._mixture(rows.x, weights, rows.routed, block), rows, x)

    def _mixture(self, x: Node, weights: Weights, routed: Routed, block: ExpertBlock) -> Node:
        scales_input = block.routing.scales_input
        if block.clamp is None and len(weights) == 3 and not scales_input:
            return mixture(x, weights, routed, self.gelu if block.is_gelu else self.silu)
        biases = tuple(
            self._weights.rows(names)
            for names in zip(*(e.biases or () for e in block.experts), strict=True)
        )
        options = GroupedMixture(block.clamp, biases, scales_input)
        return grouped_mixture(x, weights, routed, options)

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

    def _rows(self, name: str, width: int) -> Node:
        return self._add(name, Parameter(ov.Type.f32, ov.PartialShape([-1, width])))

    def _cache(self, name: str) -> Node:
        """Return a cache's parameter, whose type and shape the plugin chooses when it compiles."""
        if name in self.parameters:
            return self.parameters[name]
        return self._add(name, Parameter(ov.Type.dynamic, ov.PartialShape([-1] * 4)))

    def _state(self, name: str, shape: tuple[int, ...]) -> Node:
        return self._add(name, Parameter(ov.Type.f32, ov.PartialShape([-1, *shape])))

    def _state_step(self) -> dict[str, Node]:
        """Return the step's inputs, with those that only models with a state have."""
        for name in states.STATE_INPUTS:
            if name not in self._step:
                self._step[name] = self._parameter(name)
        return self._step

    def _add(self, name: str, parameter: Node) -> Node:
        parameter.output(0).get_tensor().set_names({name})
        self.parameters[name] = named(parameter, name)
        return parameter
