"""The encoder and the decoder of a text model as OpenVINO graphs.

The encoder returns what the cross attention of each decoder layer reads: keys and values [B, heads,
L, features of a head].  The decoder reads these, and the keys and values of earlier tokens, with as
many cells for each sequence; masks say which of them are there.
"""

from collections.abc import Callable, Sequence

import numpy as np
import openvino as ov
from openvino import opset13 as opset

from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.descriptions.families.seq2seq import RELATIVE, SINUSOIDAL
from mindspore_serving.llm.models.seq2seq import BIAS, HEAD, TABLE, Seq2SeqSpec
from mindspore_serving.llm.runtimes.openvino.heads import rms
from mindspore_serving.llm.runtimes.openvino.named_layers import SWAPPED, NamedLayers
from mindspore_serving.llm.runtimes.openvino.nodes import (
    Node,
    built,
    f32,
    i32,
    i64,
    parameter,
    swish,
)
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights

MASKED = np.float32(-1e9)
PARTS = ("key", "value")
ACTIVATIONS: dict[str, Callable[[Node], Node]] = {
    "relu": opset.relu,
    "gelu": lambda x: opset.gelu(x, "ERF"),
    "gelu_new": lambda x: opset.gelu(x, "TANH"),
    "gelu_pytorch_tanh": lambda x: opset.gelu(x, "TANH"),
    "silu": swish,
    "swish": swish,
}


class Seq2SeqGraphs(NamedLayers):
    """Builder of both graphs; keys and values have the type of the weights' precision.

    The input `seen` says what a token may attend to: [B, 1, tokens, cells] added to scores, or with
    relative positions the rows of the table of distances, [B, tokens, cells], with the first behind
    the table for cells that are masked.

    Sequences that read the same prompt share its keys and values in cross attention: `sharing` are
    the tokens of each prompt's sequences, [prompts, n] numbers of tokens of the step with any ones
    at the end of a row, and `shared` where each token of the step is in it.
    """

    def __init__(self, checkpoint: Checkpoint, weights: OpenVINOWeights, spec: Seq2SeqSpec) -> None:
        super().__init__(weights, spec.epsilon)
        self._checkpoint, self._spec = checkpoint, spec
        self._kind = ov.Type.bf16 if weights.precision == "bf16" else ov.Type.f32
        self._activation = ACTIVATIONS[spec.activation]
        self._positions: Node | None = None  # sinusoidal ones
        self._biases: dict[str, Node] = {}

    def encoder(self) -> ov.Model:
        """Return the graph from `ids` [B, L] to `key.LAYER` and `value.LAYER` of cross attention.

        `shown` is 0 for a token and `MASKED` for padding, [B, 1, 1, L].
        """
        spec = self._spec
        ids, seen = self._tokens()
        shown = parameter("shown", ov.Type.f32, (-1, 1, 1, -1))
        length = opset.gather(opset.shape_of(ids, "i32"), i32(1), i32(0))
        positions = opset.range(i32(0), length, i32(1), "i32")
        x = self._embedded("encoder", ids, positions)
        is_relative = spec.family.positions == RELATIVE
        for layer in range(spec.encoder_layers):
            stem = f"model.encoder.layers.{layer}"
            mask = opset.add(self._bias(seen, stem), shown) if is_relative else shown
            x = self._self_attention(x, stem, mask)
            x = self._feed_forward(x, stem)
        x = self._last_norm(x, "encoder")
        outputs = {}
        for layer in range(spec.decoder_layers):
            stem = f"model.decoder.layers.{layer}.encoder_attn"
            for part in PARTS:
                node = self._heads(x, f"{stem}.{part[0]}_proj")
                outputs[f"{part}.{layer}"] = opset.convert(node, self._kind.get_type_name())
        inputs = [ids, shown, *([seen] if is_relative else [])]
        self._biases = {}
        return built(outputs, inputs, "encoder")

    def decoder(self) -> ov.Model:
        """Return the graph from tokens to `logits` of some `rows`, and new keys and values."""
        spec = self._spec
        ids, seen = self._tokens()
        positions = parameter("positions", ov.Type.i32, (-1, -1))
        rows, shared = (parameter(name, ov.Type.i32, (-1,)) for name in ("rows", "shared"))
        sharing = parameter("sharing", ov.Type.i32, (-1, -1))
        shown = parameter("shown", ov.Type.f32, (-1, 1, 1, -1))
        is_relative = spec.family.positions == RELATIVE
        inputs = [ids, seen, rows, shown, sharing, shared]
        inputs += [] if is_relative else [positions]
        outputs: dict[str, Node] = {}
        x = self._embedded("decoder", ids, positions)
        for layer in range(spec.decoder_layers):
            stem = f"model.decoder.layers.{layer}"
            shape = (-1, spec.decoder_heads, -1, spec.head_width)
            names = [f"{kind}_{part}.{layer}" for kind in ("self", "cross") for part in PARTS]
            caches = {name: parameter(name, self._kind, shape) for name in names}
            inputs += caches.values()
            earlier = [caches[f"self_{part}.{layer}"] for part in PARTS]
            mask = self._bias(seen, stem) if is_relative else seen
            x, new = self._self_attention_after(x, stem, mask, earlier)
            for part, node in zip(PARTS, new, strict=True):
                stored = opset.convert(node, self._kind.get_type_name())
                outputs[f"new_{part}.{layer}"] = stored
            stored = [opset.convert(caches[f"cross_{part}.{layer}"], "f32") for part in PARTS]
            x = self._cross_attention(x, stem, shown, stored, (sharing, shared, ids))
            x = self._feed_forward(x, stem)
        flat = opset.gather(opset.reshape(x, i64(-1, spec.width), False), rows, i32(0))
        outputs["logits"] = self._logits(self._last_norm(flat, "decoder"))
        self._biases = {}
        return built(outputs, inputs, "decoder")

    def _tokens(self) -> tuple[Node, Node]:
        ids = parameter("ids", ov.Type.i32, (-1, -1))
        if self._spec.family.positions == RELATIVE:
            return ids, parameter("seen", ov.Type.i32, (-1, -1, -1))
        return ids, parameter("seen", ov.Type.f32, (-1, 1, -1, -1))

    def _embedded(self, stack: str, ids: Node, positions: Node) -> Node:
        spec = self._spec
        x = opset.convert(opset.gather(self._weights.table(TABLE), ids, i32(0)), "f32")
        if spec.embedding_scale != 1.0:
            x = opset.multiply(x, f32(spec.embedding_scale))
        if spec.family.positions == SINUSOIDAL:
            if self._positions is None:
                self._positions = opset.constant(spec.positions())
            x = opset.add(x, opset.gather(self._positions, positions, i32(0)))
        elif spec.family.positions != RELATIVE:
            table = self._weights.table(f"model.{stack}.embed_positions.weight")
            rows = opset.add(positions, i32(spec.first_position))
            x = opset.add(x, opset.convert(opset.gather(table, rows, i32(0)), "f32"))
        name = f"model.{stack}.layernorm_embedding"
        return self._norm(x, name) if self._weights.has(f"{name}.weight") else x

    def _self_attention(self, x: Node, stem: str, mask: Node) -> Node:
        return self._self_attention_after(x, stem, mask, [])[0]

    def _self_attention_after(
        self, x: Node, stem: str, mask: Node, earlier: Sequence[Node]
    ) -> tuple[Node, list[Node]]:
        """Attend to `earlier` keys and values and to those of `x`, which are returned as well."""
        new: list[Node] = []

        def attend(y: Node) -> Node:
            q, k, v = (self._heads(y, f"{stem}.self_attn.{name}_proj") for name in "qkv")
            new.extend((k, v))
            if earlier:
                k, v = (
                    opset.concat([opset.convert(old, "f32"), now], 2)
                    for old, now in zip(earlier, (k, v), strict=True)
                )
            return self._attended(q, k, v, mask, f"{stem}.self_attn")

        return self._added(x, f"{stem}.self_attn_layer_norm", attend), new

    def _cross_attention(
        self, x: Node, stem: str, shown: Node, stored: Sequence[Node], sharing: Sequence[Node]
    ) -> Node:
        inner = self._spec.decoder_heads * self._spec.head_width

        def attend(y: Node) -> Node:
            k, v = stored
            rows = self._by_prompt(
                self._linear(y, f"{stem}.encoder_attn.q_proj"),
                sharing,
                inner,
                lambda q: self._attention(self._by_heads(q), k, v, shown),
            )
            return self._linear(rows, f"{stem}.encoder_attn.out_proj")

        return self._added(x, f"{stem}.encoder_attn_layer_norm", attend)

    def _feed_forward(self, x: Node, stem: str) -> Node:
        def feed(y: Node) -> Node:
            hidden = self._activation(self._linear(y, f"{stem}.fc1"))
            if self._spec.is_gated:
                hidden = opset.multiply(hidden, self._linear(y, f"{stem}.fc_linear"))
            return self._linear(hidden, f"{stem}.fc2")

        return self._added(x, f"{stem}.final_layer_norm", feed)

    def _added(self, x: Node, norm: str, block: Callable[[Node], Node]) -> Node:
        """Add to `x` what `block` makes of it, with the norm before or behind."""
        if self._spec.family.norms_first:
            return opset.add(x, block(self._norm(x, norm)))
        return self._norm(opset.add(x, block(x)), norm)

    def _last_norm(self, x: Node, stack: str) -> Node:
        name = f"model.{stack}.layer_norm"
        return self._norm(x, name) if self._weights.has(f"{name}.weight") else x

    def _norm(self, x: Node, name: str) -> Node:
        """Normalise by mean and variance, or as T5 by the mean square alone."""
        if self._spec.family.is_t5:
            return rms(x, self._vector(f"{name}.weight"), self._spec.epsilon)
        return super()._norm(x, name)

    def _heads(self, x: Node, name: str) -> Node:
        return self._by_heads(self._linear(x, name))

    def _by_heads(self, x: Node) -> Node:
        shape = i64(0, 0, self._spec.decoder_heads, self._spec.head_width)
        return opset.transpose(opset.reshape(x, shape, True), SWAPPED)

    def _attended(self, q: Node, k: Node, v: Node, mask: Node, name: str) -> Node:
        return self._linear(self._attention(q, k, v, mask), f"{name}.out_proj")

    def _attention(self, q: Node, k: Node, v: Node, mask: Node) -> Node:
        scale = f32(self._spec.attention_scale)
        out = opset.scaled_dot_product_attention(q, k, v, mask, scale)
        inner = self._spec.decoder_heads * self._spec.head_width
        return opset.reshape(opset.transpose(out, SWAPPED), i64(0, 0, inner), True)

    def _bias(self, seen: Node, stem: str) -> Node:
        """Return what T5 adds to scores, [B, heads, tokens, cells]: by distances and the mask."""
        if not self._spec.family.separate_distances:
            stem = f"{stem.rpartition('.')[0]}.0"
        if stem not in self._biases:
            table = self._checkpoint.f32(f"{stem}.self_attn.relative_attention_bias.weight")
            rows = np.concatenate([table, np.full((1, table.shape[1]), MASKED)])
            gathered = opset.gather(opset.constant(rows.astype(np.float32)), seen, i32(0))
            self._biases[stem] = opset.transpose(gathered, np.array([0, 3, 1, 2]))
        return self._biases[stem]

    def _logits(self, states: Node) -> Node:
        spec = self._spec
        if spec.output_scale != 1.0:
            states = opset.multiply(states, f32(spec.output_scale))
        logits = self._weights.product(states, HEAD if self._weights.has(HEAD) else TABLE)
        bias = np.zeros(spec.vocab_size, np.float32)
        if self._weights.has(BIAS):
            bias += self._checkpoint.f32(BIAS).reshape(-1)
        bias[list(spec.never)] = -np.inf
        return opset.add(logits, opset.constant(bias)) if bias.any() else logits
