"""A definition as the source of a graph: each operation is recorded as a line of Python.

MindSpore compiles the source of a cell's `construct`, and of Python it compiles a part only.  So
the definition itself runs once, with placeholders for tensors, and leaves one line for every
operator, with every number of the architecture in its place.  `cell` makes a cell of the lines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mindspore_serving.llm.models import Decoder
from mindspore_serving.llm.models.expert_block import ExpertBlock
from mindspore_serving.llm.models.ops import (
    AttentionSpec,
    DecoderInputs,
)
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.models.stage_arrays import received_width
from mindspore_serving.llm.runtimes.mindir.library import ops as mindspore_ops
from mindspore_serving.llm.runtimes.mindspore.experts import record_experts
from mindspore_serving.llm.runtimes.mindspore.integer_products import IntegerProducts
from mindspore_serving.llm.runtimes.mindspore.latent import record_latent
from mindspore_serving.llm.runtimes.mindspore.lora import (
    ROW_ADAPTERS,
    TOKEN_ADAPTERS,
    AdapterUses,
    add_product,
    add_rows,
)
from mindspore_serving.llm.runtimes.mindspore.nodes import (
    ASCEND,
    COMPOSED,
    HIDDEN_STATES,
    PREFILL,
    Node,
)
from mindspore_serving.llm.runtimes.mindspore.rotation import RotaryOps
from mindspore_serving.llm.runtimes.mindspore.weights import GraphWeights


class Product(NamedTuple):
    """A product of `x` with one matrix, and the line that it is recorded in."""

    x: Node
    weight: str
    line: int


@dataclass(frozen=True, slots=True)
class RecordedGraph:
    """Lines of a `construct`, the operators that they call by attribute, and the outputs.

    `outputs` are the logits and what they are computed from.  `dtype` is that of the caches and of
    the results; `uses` are those of weights that adapters change.  With `hidden_width` the first
    input are hidden states of that many features, not token ids, and before the last stage the
    outputs are those of all tokens.
    """

    lines: list[str]
    operators: dict[str, Any]
    outputs: tuple[str, str]
    dtype: Any
    uses: AdapterUses | None = None
    hidden_width: int = 0


class GraphOps(RotaryOps):
    """`Ops` that record a graph for `phase`.

    With `uses`, adapters change the weights that are named there; with `keeps_latent` the cache has
    the latent vectors of latent attention.
    """

    def __init__(
        self, weights: GraphWeights, phase: str, filling: str, block_size: int,
        layers: Sequence[int], *, uses: AdapterUses | None = None, keeps_latent: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(weights, filling)
        self.keeps_latent = keeps_latent
        self.uses = uses
        self.phase = phase
        self.block_size = block_size
        self.layers = layers  # that have keys and values
        self.normed = Node("")  # what the logits are computed from
        self._products: dict[str, Product] = {}
        self._integers = IntegerProducts(self)

    def weight(self, name: str) -> str:
        self.weights.check(name)
        return name

    def has_weight(self, name: str) -> bool:
        return self.weights.has(name)

    # Matrices

    def embedding(self, ids: Node, table: str) -> Node:
        attribute, shape = self.weights.matrix((table,), is_table=True)
        y = self.emit(f"ops.gather(self.{attribute}, {ids.name}, 0)", shape[1])
        return y if self.uses is None else add_rows(self, self.uses, y, (ids, table))

    def logits(self, x: Node, head: str, bias: str | None = None) -> Node:
        (y,) = self.linears(x, (head,), (bias,), owner=ROW_ADAPTERS)
        return y

    def linear(self, x: Node, weight: str, bias: str | None = None) -> Node:
        (y,) = self.linears(x, (weight,), (bias,))
        return y

    def linears(
        self, x: Node, weights: Sequence[str], biases: Sequence[str | None], *,
        owner: str = TOKEN_ADAPTERS,
    ) -> list[Node]:  # fmt: skip
        """Record one product with all matrices, one below the other, and a split of its result.

        `owner` names the input that has the adapter of each row of `x`.
        """
        if not self._integers.are_alike(weights):
            return [self.linear(x, *each) for each in zip(weights, biases, strict=True)]
        biases = [
            None if self._integers.has_bias(weight) else bias
            for weight, bias in zip(weights, biases, strict=True)
        ]
        y = self._product(x, weights)
        product = Product(x, weights[0], len(self.lines) - 1)
        if any(biases):
            bias = self.weights.biases(tuple(weights), tuple(biases))
            y = self.emit(f"{y.name} + self.{bias}", y.width)
        pieces = self.split(y, [self.weights.rows(name) for name in weights])
        if self.uses is not None:
            pieces = [
                add_product(self, self.uses, piece, (x, weight), owner)
                for piece, weight in zip(pieces, weights, strict=True)
            ]
        if len(weights) == 1 and not any(biases):
            self._products[pieces[0].name] = product
        return pieces

    def _product(self, x: Node, weights: Sequence[str]) -> Node:
        """Record one product, in the last line."""
        form = self.weights.integer_form(weights[0])
        if form is not None:
            return self._integers.product(x, weights, form)
        attribute, (width, _) = self.weights.matrix(tuple(weights))
        return self.emit(f"{self.operator('matmul')}({x.name}, self.{attribute})", width)

    def split(self, x: Node, sizes: Sequence[int]) -> list[Node]:
        if len(sizes) == 1:
            return [x]
        return self._pieces(x.name, sizes)

    def _pieces(self, name: str, sizes: Sequence[int], heads: int = 0) -> list[Node]:
        nodes = self.emit_several(f"ops.split({name}, {list(sizes)}, -1)", len(sizes))
        pieces = [Node(node.name, size) for node, size in zip(nodes, sizes, strict=True)]
        if not heads:
            return pieces
        return [self._flat(piece.name, heads * piece.width) for piece in pieces]

    # Norms

    def rms_norm(self, x: Node, weight: str, eps: float, *, plus_one: bool = False) -> Node:
        gamma = self.vector(weight, plus_one=plus_one)
        return self._rms_norm(x.name, gamma, eps, x.width)

    def _rms_norm(self, name: str, gamma: str, eps: float, width: int) -> Node:
        return self.emit(f"{self.operator('rms_norm', eps=eps)}({name}, {gamma})[0]", width)

    def head_rms_norm(
        self, x: Node, weight: str | None, num_heads: int, eps: float, *, plus_one: bool = False
    ) -> Node:
        heads, dim = self._heads(x, num_heads), x.width // num_heads
        is_shared = weight is not None and self.weights.size(weight) == dim
        gamma = (
            self.vector(weight, plus_one=plus_one) if weight and is_shared else self.unit_gains(dim)
        )
        y = self._flat(self._rms_norm(heads.name, gamma, eps, dim).name, x.width)
        if weight is None or is_shared:
            return y
        return self.emit(f"{y.name} * {self.vector(weight, plus_one=plus_one)}", x.width)

    def layer_norm(
        self, x: Node, weight: str | None, bias: str | None, eps: float, *,
        plus_one: bool = False,
    ) -> Node:  # fmt: skip
        gamma = (
            self.unit_gains(x.width) if weight is None else self.vector(weight, plus_one=plus_one)
        )
        return self._layer_norm(x.name, gamma, self.vector(bias) if bias else "", eps, x.width)

    def _layer_norm(self, name: str, gamma: str, beta: str, eps: float, width: int) -> Node:
        beta = beta or self.constant(f"zeros {width}", lambda: np.zeros(width, np.float32))
        # The last axis: of features, or of one head's.
        operator = self.operator_once(
            f"layer_norm {eps}",
            lambda: mindspore_ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=eps),
        )
        return self.emit(f"{operator}({name}, {gamma}, {beta})[0]", width)

    def head_layer_norm(self, x: Node, weight: str, num_heads: int, eps: float) -> Node:
        heads, dim = self._heads(x, num_heads), x.width // num_heads
        normed = self._layer_norm(heads.name, self.unit_gains(dim), "", eps, dim)
        return self._flat(f"{normed.name} * {self.vector(weight)}", x.width)

    # Heads

    def _heads(self, x: Node, num_heads: int) -> Node:
        width = x.width // num_heads
        return self.emit(f"ops.reshape({x.name}, (-1, {num_heads}, {width}))", width)

    def _flat(self, expression: str, width: int) -> Node:
        return self.emit(f"ops.reshape({expression}, (-1, {width}))", width)

    def split_heads(self, x: Node, num_heads: int, sizes: Sequence[int]) -> list[Node]:
        kept = [size for size in sizes if size]
        pieces = iter(self._pieces(self._heads(x, num_heads).name, kept, num_heads))
        return [next(pieces) if size else Node("", 0) for size in sizes]

    def join_heads(self, parts: Sequence[Node], num_heads: int, width: int) -> Node:
        names = [self._heads(part, num_heads).name for part in parts]
        missing = width - sum(part.width for part in parts) // num_heads
        if missing:
            names.append(self._zeros(parts[0], (num_heads, missing)).name)
        return self._flat(self._joined(names), num_heads * width)

    def _zeros(self, like: Node, shape: tuple[int, ...]) -> Node:
        """Return zeros, [tokens, *shape]."""
        zeros = self.constant(f"zeros {shape}", lambda: np.zeros((1, *shape), np.float32))
        column = f"ops.reshape({like.name}[:, :1] * 0, (-1, {', '.join('1' for _ in shape)}))"
        return self.emit(f"{column} + {zeros}", shape[-1])

    @staticmethod
    def _joined(names: Sequence[str]) -> str:
        return names[0] if len(names) == 1 else f"ops.concat(({', '.join(names)}), -1)"

    def repeat_head(self, x: Node, num_heads: int) -> Node:
        return self.emit(self._joined([x.name] * num_heads), x.width * num_heads)

    # Attention

    def attention(self, layer: int, q: Node, k: Node, v: Node, spec: AttentionSpec) -> Node:
        """Write keys and values, then attend to the new ones alone or to the cache."""
        caches = self.caches(layer)
        q = self.after_write(q, (k, v), caches)
        if self.phase == PREFILL:
            return self.flash_attention(q, k, v, spec)
        arguments = f"{', '.join(caches)}, block_tables, batch_valid_length"
        return self._attended("paged_attention", q, arguments, spec)

    def latent_attention(
        self, layer: int, q: tuple[Node, Node], key: tuple[Node, Node], expansion: str,
        spec: AttentionSpec,
    ) -> Node:  # fmt: skip
        if not self.keeps_latent:
            expanded: Node = super().latent_attention(layer, q, key, expansion, spec)
            return expanded
        return record_latent(self, q, key, expansion, spec, layer=layer)

    def caches(self, layer: int) -> tuple[str, str]:
        """Return the caches of a layer, as the graph reads them."""
        index = self.layers.index(layer)
        return f"key_caches[{index}]", f"value_caches[{index}]"

    def after_write(self, q: Node, new: tuple[Node, Node], caches: tuple[str, str]) -> Node:
        """Record the write of `new` rows to `caches`; return `q`, which depends on it."""
        rows = ", ".join(node.name for node in new)
        write = self.operator("reshape_and_cache")
        written = self.emit(f"{write}({rows}, {', '.join(caches)}, slot_mapping)", 0)
        return self.emit(f"ops.depend({q.name}, {written.name})", q.width)

    def flash_attention(self, q: Node, k: Node, v: Node, spec: AttentionSpec) -> Node:
        """Record attention among new tokens."""
        return self._attended("flash_attention", q, f"{k.name}, {v.name}", spec)

    def _attended(self, kernel: str, q: Node, keys: str, spec: AttentionSpec) -> Node:
        is_paged = kernel == "paged_attention"
        is_plain = not (spec.window or spec.softcap or spec.alibi or spec.sinks)
        # The device's kernels have no windows, caps, slopes or sinks.
        filling = self.filling_of(kernel) if is_plain else COMPOSED
        mask = self.mask(spec, filling, is_paged=is_paged)
        options: dict[str, Any] = {"head_num": spec.num_heads, "kv_head_num": spec.num_kv_heads}
        options |= {"scale": spec.scale} | ({"softcap": spec.softcap} if spec.softcap else {})
        sinks = f", {self.vector(spec.sinks)}" if spec.sinks else ""
        operator = self.operator(kernel, filling, **options)
        step = f"{mask}, q_seq_lens" if is_paged else f"{mask}, batch_valid_length"
        return self.emit(f"{operator}({q.name}, {keys}, {step}{sinks})", q.width)

    def mask(self, spec: AttentionSpec, filling: str, *, is_paged: bool) -> str:
        """Record what attention of `filling` takes as its mask, once for equal layers."""
        options: dict[str, Any] = {"head_num": spec.num_heads, "kv_head_num": spec.num_kv_heads}
        options |= {"block_size": self.block_size, "is_paged": is_paged}
        if filling == COMPOSED:
            options |= {"window": spec.window} if spec.window else {}
            options |= {"alibi": spec.alibi} if spec.alibi else {}
        operator = self.operator("attention_mask", filling, **options)
        inputs = "attn_mask, slot_mapping, batch_valid_length, q_seq_lens, block_tables"
        return self.emit_once(f"{operator}({inputs})").name

    # Elementwise

    def silu_mul(self, gate: Node, up: Node) -> Node:
        """Compute both matrices by one product where the device has a kernel for the rest.

        On a CPU the pieces of such a wide result would be copied.
        """
        products = [self._products.get(node.name) for node in (gate, up)]
        if self.filling != ASCEND or None in products:
            return self.mul(self.silu(gate), up)
        first, second = (product for product in products if product is not None)
        matrices = (first.weight, second.weight)
        if first.x != second.x or not self._integers.are_alike(matrices):
            return self.mul(self.silu(gate), up)
        for product in (first, second):
            self.weights.drop(product.weight)
        if self.uses is not None:
            return self._adapted_silu_mul(gate, up, (first, second))
        self.lines[first.line] = self.lines[second.line] = ""
        joined = self._product(first.x, matrices)
        return self.emit(f"{self.operator('swiglu')}({joined.name})", joined.width // 2)

    def _adapted_silu_mul(self, gate: Node, up: Node, products: tuple[Product, Product]) -> Node:
        """Compute both by one product, whose halves the lines that follow change."""
        names = [f"x{product.line}" for product in products]
        joined = self._product(products[0].x, [product.weight for product in products])
        line = self.lines.pop()
        self.lines.append("")  # keeps the names of later lines
        split = f"{', '.join(names)} = ops.split({joined.name}, {joined.width // 2}, -1)"
        self.lines[products[0].line] = f"{line}; {split}"
        self.lines[products[1].line] = ""
        return self.mul(self.silu(gate), up)

    def gather_rows(self, x: Node, rows: Node) -> Node:
        return self.emit(f"ops.gather({x.name}, {rows.name}, 0)", x.width)

    def hidden(self, x: Node) -> Node:
        self.normed = x
        return x

    def moe(self, x: Node, scores: Node, block: ExpertBlock) -> Node:
        return record_experts(self, x, scores, block)


def record(spec: ModelSpec, decoder: Decoder, ops: GraphOps) -> RecordedGraph:
    """Run the definition of `spec` once and return its graph."""
    names = ("input_ids", "positions", "logit_rows", "uses_long_rope")
    token_ids, positions, rows, uses_long_rope = map(Node, names)
    width = 0 if spec.is_first else received_width(spec)
    inputs = DecoderInputs(
        token_ids, positions, rows, Node(HIDDEN_STATES, width), uses_long_rope=uses_long_rope
    )
    output = decoder(ops, spec, inputs)
    ops.weights.load()
    return RecordedGraph(
        [line for line in ops.lines if line],
        ops.operators,
        (output.name, ops.normed.name if spec.is_last else output.name),
        ops.weights.element_type,
        ops.uses,
        width,
    )
