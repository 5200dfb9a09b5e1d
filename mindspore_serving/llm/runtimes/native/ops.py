"""`Ops` that plan a pass: a tensor is a range in the arena, and nothing is computed here."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.ops import AttentionSpec, DecoderInputs, Longer, Weight
from mindspore_serving.llm.models.state_rules import DeltaRule, Heads, SelectiveScan
from mindspore_serving.llm.runtimes.adapters import MATRIX, TABLE
from mindspore_serving.llm.runtimes.native.codes import Column, OpCode
from mindspore_serving.llm.runtimes.native.expert_plan import ExpertOps
from mindspore_serving.llm.runtimes.native.lora import AdapterTable
from mindspore_serving.llm.runtimes.native.planned import Node, expect, head_width
from mindspore_serving.llm.runtimes.native.weights import NativeWeights

_OUT, _A, _B, _P0, _P2 = Column.OUT, Column.A, Column.B, Column.P0, Column.P2
_P1, _P4, _P5 = Column.P1, Column.P4, Column.P5

POSITIONS, ROWS, USES_LONG_ROPE = "positions", "rows", "uses_long_rope"
ROPE_POSITIONS = "rope_positions"


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token ids of a pass; those that are not below `limit` count as 0."""

    limit: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """Rows of `table` that are written to `target` before a pass: of tokens, or POSITIONS."""

    table: str
    ids: TokenIds | str
    target: Node


@dataclass(frozen=True, slots=True)
class ImageFeatures:
    """Tensors written before a pass: vectors of images or 0, and factors 0 or 1 of embeddings."""

    vectors: Node
    kept: Node


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """Cache of a layer's keys and values."""

    layer: int
    num_heads: int
    head_dim: int


class NativeOps(ExpertOps):
    """`Ops` that record a plan; the handle of a weight is its name.

    With `adapters`, LoRA adapters may change every weight that is multiplied or looked up; with
    `num_features`, image features of that size replace embeddings; with `has_axes`, positions in
    time, height and width rotate.
    """

    def __init__(
        self, weights: NativeWeights, *, switches: bool, adapters: AdapterTable | None = None,
        num_features: int = 0, has_axes: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(weights)
        self.lookups: list[Lookup] = []
        self.layers: list[PlannedLayer] = []
        self.states: list[int] = []  # numbers of a state, of each operation that has one
        self.image_features: ImageFeatures | None = None
        if num_features:
            tensors = (self.recorder.tensor(n, is_kept=True) for n in (num_features, 1))
            self.image_features = ImageFeatures(*tensors)
        self.last_hidden: Node | None = None
        self._adapters = adapters
        self.inputs = DecoderInputs(
            TokenIds(2**31),
            POSITIONS,
            ROWS,
            uses_long_rope=USES_LONG_ROPE if switches else None,
            features=self.image_features and self.image_features.vectors,
            feature_rows=self.image_features and self.image_features.kept,
            rope_positions=ROPE_POSITIONS if has_axes else None,
        )

    def weight(self, name: str) -> Weight:
        self._weights.shape(name)
        return name

    def has_weight(self, name: str) -> bool:
        return self._weights.has(name)

    def below(self, ids: TokenIds, count: int) -> TokenIds:
        return TokenIds(count)

    def embedding(self, ids: TokenIds | str, table: Weight) -> Node:
        shape = self._weights.shape(table)
        if len(shape) != 2:
            raise StartError(f"tensor {table!r} is {list(shape)}, expected a matrix")
        target = self.recorder.tensor(shape[1], is_kept=True)
        self.lookups.append(Lookup(table, ids, target))
        if self._adapters is not None:
            self._adapters.add_use(TABLE, table, (shape[0], shape[1]))
        return target

    def replace_rows(self, x: Node, indices: Node, rows: Node) -> Node:
        return self.add(self.mul(x, indices), rows)

    def add_rows(self, x: Node, indices: Node, rows: Node) -> Node:
        return self.add(x, rows)

    def linear(self, x: Node, weight: Weight, bias: Weight | None = None) -> Node:
        number, width = self._weights.matrix(weight, x.width)
        out = self.recorder.tensor(width, per_token=x.per_token)
        self.recorder.add(OpCode.PRODUCT, {_OUT: out, _A: x}, p0=number)
        if self._adapters is not None:
            use = self._adapters.add_use(MATRIX, weight, (width, x.width))
            self.recorder.add(OpCode.ADAPT, {_OUT: out, _A: x}, p0=use, p1=x.width)
        if bias is None:
            return out
        return self.add(out, self.recorder.constant(self._weights.vector(bias, width)))

    def rms_norm(self, x: Node, weight: Weight, eps: float, *, plus_one: bool = False) -> Node:
        return self._norm(OpCode.RMS_NORM, x, (weight, None), eps, plus_one=plus_one)

    def head_rms_norm(
        self, x: Node, weight: Weight | None, num_heads: int, eps: float, *,
        plus_one: bool = False,
    ) -> Node:  # fmt: skip
        return self._norm(
            OpCode.RMS_NORM, x, (weight, None), eps, num_heads=num_heads, plus_one=plus_one
        )

    def layer_norm(
        self, x: Node, weight: Weight | None, bias: Weight | None, eps: float, *,
        plus_one: bool = False,
    ) -> Node:  # fmt: skip
        return self._norm(OpCode.LAYER_NORM, x, (weight, bias), eps, plus_one=plus_one)

    def head_layer_norm(self, x: Node, weight: Weight, num_heads: int, eps: float) -> Node:
        return self._norm(OpCode.LAYER_NORM, x, (weight, None), eps, num_heads=num_heads)

    def _norm(
        self, code: OpCode, x: Node, weights: tuple[Weight | None, Weight | None], eps: float, *,
        num_heads: int = 1, plus_one: bool = False,
    ) -> Node:  # fmt: skip
        weight, bias = weights
        width = head_width(x, num_heads)
        tensors, distance = {_OUT: self._like(x), _A: x}, 0
        if weight is not None:
            is_of_each = num_heads > 1 and self._weights.shape(weight) != (width,)
            values = self._weights.vector(weight, x.width if is_of_each else width)
            tensors[_B] = self.recorder.constant(values + 1 if plus_one else values)
            distance = width if is_of_each else 0
        if bias is not None:
            tensors[_P2] = self.recorder.constant(self._weights.vector(bias, width))
        self.recorder.add(code, tensors, (eps,), p0=num_heads, p1=distance, width=width)
        return tensors[_OUT]

    # Positions

    def rope_tables(
        self, positions: str, inv_freq: Sequence[float], scale: float = 1.0,
        longer: Longer | None = None, axes: Sequence[int] = (),
    ) -> Node:  # fmt: skip
        out = self.recorder.tensor(2 * len(inv_freq))
        tensors = {_OUT: out, _B: self.recorder.constant(inv_freq)}
        if longer is not None:
            if len(longer[1]) != len(inv_freq):
                raise StartError("short and long rotary frequencies differ in their number")
            tensors[_P0] = self.recorder.constant(longer[1])
        if axes:
            tensors[_P1] = self.recorder.constant(axes)
        self.recorder.add(OpCode.ROPE_TABLES, tensors, (scale,), width=len(inv_freq))
        return out

    def rope(self, x: Node, tables: Node, num_heads: int, *, pairs: bool = False) -> Node:
        width, half = head_width(x, num_heads), tables.width // 2
        if 2 * half > width:
            raise StartError(f"heads of {width} features are rotated in {half} pairs")
        out = self._like(x)
        self.recorder.add(
            OpCode.ROPE, {_OUT: out, _A: x, _B: tables},
            width=half, p0=num_heads, p1=width, p2=int(pairs),
        )  # fmt: skip
        return out

    def query_scale(self, positions: str, beta: float, length: int, first: int) -> Node:
        out = self.recorder.tensor(1)
        self.recorder.add(OpCode.QUERY_SCALE, {_OUT: out}, (beta, length, first))
        return out

    # Attention

    def attention(self, layer: int, q: Node, k: Node, v: Node, spec: AttentionSpec) -> Node:
        heads, kv_heads, width = spec.num_heads, spec.num_kv_heads, spec.head_dim
        if heads % kv_heads:
            raise StartError(f"{heads} query heads do not share {kv_heads} heads of keys")
        for x, count in ((q, heads), (k, kv_heads), (v, kv_heads)):
            expect(x, count * width, f"{count} heads of {width}")
        out = self._like(q)
        tensors = {_OUT: out, _A: q, _B: k, _P0: v}
        if spec.alibi:
            tensors[_P4] = self.recorder.constant(spec.alibi)
            expect(tensors[_P4], heads, f"a slope for each of {heads} heads")
        if spec.sinks:
            tensors[_P5] = self.recorder.constant(self._weights.vector(spec.sinks, heads))
        planned = PlannedLayer(layer, kv_heads, width)
        if planned not in self.layers:
            self.layers.append(planned)
        self.recorder.add(
            OpCode.ATTENTION, tensors, (spec.scale, spec.softcap), width=heads // kv_heads,
            p1=v.stride, p2=self.layers.index(planned), p3=spec.window,
        )  # fmt: skip
        return out

    # States

    def convolution(self, layer: int, x: Node, weight: Weight, bias: Weight | None = None) -> Node:
        *_, taps = self._weights.shape(weight) or (0,)
        if not taps:
            raise StartError(f"tensor {weight!r} has no numbers, expected [{x.width}, 1, tokens]")
        values = self._weights.vector(weight, x.width * taps).reshape(x.width, taps).T
        tensors = {_OUT: self._like(x), _A: x, _B: self.recorder.constant(values)}
        if bias is not None:
            tensors[_P2] = self.recorder.constant(self._weights.vector(bias, x.width))
        self._add_state(tensors, x.width * taps, p0=taps, p1=0)
        return tensors[_OUT]

    def delta_rule(
        self, layer: int, qkv: tuple[Node, Node, Node], alpha: Node, beta: Node, rule: DeltaRule
    ) -> Node:
        vectors = (rule.a_log, rule.dt_bias, None)
        return self._recurrence((*qkv, alpha, beta), vectors, rule.heads, (-math.inf, math.inf))

    def selective_scan(
        self, layer: int, xbc: tuple[Node, Node, Node], step: Node, scan: SelectiveScan
    ) -> Node:
        x, b, c = xbc
        vectors = (scan.a_log, scan.dt_bias, scan.skip)
        return self._recurrence((c, b, x, step), vectors, scan.heads, scan.limits)

    def _recurrence(
        self, parts: Sequence[Node], names: tuple[Weight, Weight, Weight | None], heads: Heads,
        limits: tuple[float, float],
    ) -> Node:  # fmt: skip
        """Record a rule of states: the delta rule if `parts` has logits of its factors."""
        count = heads.value_heads
        widths = (heads.keys, heads.keys, heads.values, count, count)
        for x, width in zip(parts, widths, strict=False):
            expect(x, width, f"{count} heads of states")
        log_rate, bias, skip = (
            self._weights.vector(name, count) if name else np.zeros(count, np.float32)
            for name in names
        )
        joined = self.join_heads(parts, 1, sum(x.width for x in parts))
        out = self.recorder.tensor(heads.values, per_token=joined.per_token)
        constant = self.recorder.constant(np.concatenate([-np.exp(log_rate), bias, skip]))
        scratch = self.recorder.tensor(2 * heads.key_dim)
        self._add_state(
            {_OUT: out, _A: joined, _B: constant, _P5: scratch},
            count * heads.value_dim * heads.key_dim, limits, p0=heads.key_heads, p1=count,
            p2=heads.key_dim, p3=int(len(parts) == 5),
        )  # fmt: skip
        return out

    def _add_state(
        self, tensors: dict[Column, Node], size: int,
        numbers: Sequence[float] = (), **parameters: int,
    ) -> None:  # fmt: skip
        """Record an operation that has a state of `size` numbers."""
        self.recorder.add(OpCode.STATE, tensors, numbers, p6=len(self.states), **parameters)
        self.states.append(size)

    def gather_rows(self, x: Node, rows: str) -> Node:
        out = self.recorder.tensor(x.width, per_token=0)
        self.recorder.add(OpCode.GATHER, {_OUT: out, _A: x})
        return out

    def gain(self, x: Node, weight: Weight) -> Node:
        length = 1 if self._weights.shape(weight) == (1,) else x.width
        return self.mul(x, self.recorder.constant(self._weights.vector(weight, length)))

    def hidden(self, x: Node) -> Node:
        x.storage.is_kept = True
        self.last_hidden = x
        return x
