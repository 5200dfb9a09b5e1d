"""The encoder and the decoder of a model of speech as OpenVINO graphs; Moonshine's are variants.

The encoder returns what the cross attention of each decoder layer reads: keys and values [B, heads,
frames, features of a head].  The decoder reads these, and the keys and values of earlier tokens,
with as many cells for each sequence; `mask` says which of them are there, and `shown` which frames
of sound, where these have lengths.  Texts of the same sound read it together
(`NamedLayers._by_prompt`).
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import openvino as ov
from openvino import opset13 as opset

from mindspore_serving.llm.runtimes.openvino.named_layers import SWAPPED, NamedLayers
from mindspore_serving.llm.runtimes.openvino.nodes import Node, built, f32, i32, i64, parameter
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from mindspore_serving.llm.speech.models import SpeechSizes

EPSILON = 1e-5
TABLE = "model.decoder.embed_tokens.weight"
PARTS = ("self_key", "self_value", "cross_key", "cross_value")


class SpeechGraphs(NamedLayers):
    """Builder of both graphs; keys and values have the type of `precision`."""

    def __init__(self, weights: OpenVINOWeights, sizes: SpeechSizes) -> None:
        super().__init__(weights, EPSILON)
        self._sizes = sizes
        self._kind = ov.Type.bf16 if weights.precision == "bf16" else ov.Type.f32

    def encoder(self) -> ov.Model:
        """Return the graph from `features` of a sound to cross keys and values."""
        sizes = self._sizes
        features, x, positions = self._sound()
        for layer in range(sizes.encoder_layers):
            stem = f"model.encoder.layers.{layer}"
            y = self._norm(x, f"{stem}.self_attn_layer_norm")
            heads = sizes.encoder_heads
            q, k, v = (self._heads(y, f"{stem}.self_attn.{n}_proj", heads) for n in "qkv")
            q, k = (self._turned(node, positions) for node in (q, k))
            x = opset.add(x, self._attended(q, k, v, None, f"{stem}.self_attn"))
            x = self._feed_forward(x, stem)
        x = self._norm(x, "model.encoder.layer_norm")
        outputs = {}
        for layer in range(sizes.decoder_layers):
            stem = f"model.decoder.layers.{layer}.encoder_attn"
            for part, name in (("cross_key", "k"), ("cross_value", "v")):
                node = self._heads(x, f"{stem}.{name}_proj", sizes.decoder_heads)
                outputs[f"{part}.{layer}"] = opset.convert(node, self._kind.get_type_name())
        return built(outputs, [features], "encoder")

    def decoder(self, aligned: Sequence[tuple[int, int]] = ()) -> ov.Model:
        """Return the graph from tokens to `logits` of some `rows`, and new keys and values.

        With `aligned` heads it returns their cross attention instead of the logits, as `weights`
        [B, heads, tokens, frames]; it then has no earlier tokens.
        """
        sizes, width = self._sizes, self._sizes.width // self._sizes.decoder_heads
        ids, positions = (parameter(n, ov.Type.i32, (-1, -1)) for n in ("ids", "positions"))
        rows = parameter("rows", ov.Type.i32, (-1,))
        mask = parameter("mask", ov.Type.f32, (-1, 1, -1, -1))
        sharing = parameter("sharing", ov.Type.i32, (-1, -1))
        shared = parameter("shared", ov.Type.i32, (-1,))
        shown = parameter("shown", ov.Type.f32, (-1, 1, 1, -1)) if sizes.has_lengths else None
        inputs = [ids, positions, mask, *([] if aligned else [rows, sharing, shared])]
        inputs += [] if shown is None else [shown]
        x = self._embedded(ids, positions)
        outputs: dict[str, Node] = {}
        followed: list[Node] = []
        for layer in range(sizes.decoder_layers):
            stem = f"model.decoder.layers.{layer}"
            lengths = {"self": -1, "cross": -1 if sizes.has_lengths else sizes.num_frames}
            caches = {}
            for part in PARTS[2:] if aligned else PARTS:
                shape = (-1, sizes.decoder_heads, lengths[part.partition("_")[0]], width)
                caches[part] = parameter(f"{part}.{layer}", self._kind, shape)
            inputs += caches.values()
            y = self._norm(x, f"{stem}.self_attn_layer_norm")
            heads = sizes.decoder_heads
            q, k, v = (self._heads(y, f"{stem}.self_attn.{n}_proj", heads) for n in "qkv")
            q, k = (self._turned(node, positions) for node in (q, k))
            if not aligned:
                for part, new in (("self_key", k), ("self_value", v)):
                    stored = opset.convert(new, self._kind.get_type_name())
                    outputs[f"new_{part}.{layer}"] = stored
                k, v = (
                    opset.concat([opset.convert(caches[part], "f32"), new], 2)
                    for part, new in (("self_key", k), ("self_value", v))
                )
            x = opset.add(x, self._attended(q, k, v, mask, f"{stem}.self_attn"))
            y = self._norm(x, f"{stem}.encoder_attn_layer_norm")
            q = self._linear(y, f"{stem}.encoder_attn.q_proj")
            k, v = (opset.convert(caches[part], "f32") for part in PARTS[2:])
            chosen = [head for number, head in aligned if number == layer]
            if chosen:
                followed.append(_attention_of(self._by_heads(q, heads), k, chosen, width))
            attend = partial(self._attention, k=k, v=v, heads=heads, mask=shown)
            if aligned:
                y = attend(q)
            else:
                y = self._by_prompt(q, (sharing, shared, ids), sizes.width, attend)
            x = opset.add(x, self._linear(y, f"{stem}.encoder_attn.out_proj"))
            x = self._feed_forward(x, stem)
        if aligned:
            return built({"weights": opset.concat(followed, 1)}, inputs, "alignment")
        flat = opset.reshape(x, i64(-1, sizes.width), False)
        x = self._norm(opset.gather(flat, rows, i32(0)), "model.decoder.layer_norm")
        logits = self._weights.product(x, self._head())
        return built({"logits": logits, **outputs}, inputs, "decoder")

    def _sound(self) -> tuple[Node, Node, Node | None]:
        """Return the input of the encoder, [1, bins, 2 * frames], its first layer, and positions.

        Positions are those of layers that have them.
        """
        sizes = self._sizes
        features = parameter("features", ov.Type.f32, (1, sizes.num_bins, 2 * sizes.num_frames))
        x = self._convolution(features, "model.encoder.conv1", 1)
        x = opset.transpose(self._convolution(x, "model.encoder.conv2", 2), np.array([0, 2, 1]))
        return features, opset.add(x, self._rows("model.encoder.embed_positions.weight")), None

    def _embedded(self, ids: Node, positions: Node) -> Node:
        x = opset.multiply(gathered(self._weights.table(TABLE), ids), f32(self._sizes.scale))
        table = self._weights.table("model.decoder.embed_positions.weight")
        return opset.add(x, gathered(table, positions))

    def _turned(self, x: Node, positions: Node | None) -> Node:
        """Return queries or keys [B, heads, L, d] with their positions."""
        return x

    def _head(self) -> str:
        """Return the matrix from states to logits."""
        return TABLE

    def _convolution(self, x: Node, name: str, stride: int) -> Node:
        y = self._convolved(x, name, stride, 1)
        return opset.gelu(self._with_bias(y, name), "ERF")

    def _convolved(self, x: Node, name: str, stride: int, padding: int) -> Node:
        kernel = self._weights.vector(f"{name}.weight")
        kernel = opset.reshape(kernel, i64(*self._weights.shape(f"{name}.weight")), False)
        return opset.convolution(x, kernel, [stride], [padding], [padding], [1])

    def _with_bias(self, x: Node, name: str) -> Node:
        return opset.add(x, self._by_channel(f"{name}.bias"))

    def _by_channel(self, name: str) -> Node:
        return opset.reshape(self._weights.vector(name), i64(1, -1, 1), False)

    def _rows(self, name: str) -> Node:
        shape = self._weights.shape(name)
        return opset.reshape(self._weights.vector(name), i64(1, *shape), False)

    def _heads(self, x: Node, name: str, heads: int) -> Node:
        return self._by_heads(self._linear(x, name), heads)

    def _by_heads(self, x: Node, heads: int) -> Node:
        return opset.transpose(opset.reshape(x, i64(0, 0, heads, -1), True), SWAPPED)

    def _attended(self, q: Node, k: Node, v: Node, mask: Node | None, name: str) -> Node:
        return self._linear(self._joined(q, k, v, mask), f"{name}.out_proj")

    def _attention(self, q: Node, *, k: Node, v: Node, heads: int, mask: Node | None) -> Node:
        return self._joined(self._by_heads(q, heads), k, v, mask)

    def _joined(self, q: Node, k: Node, v: Node, mask: Node | None) -> Node:
        out = opset.scaled_dot_product_attention(q, k, v, *([] if mask is None else [mask]))
        return opset.reshape(opset.transpose(out, SWAPPED), i64(0, 0, self._sizes.width), True)

    def _feed_forward(self, x: Node, stem: str) -> Node:
        y = self._linear(self._norm(x, f"{stem}.final_layer_norm"), f"{stem}.fc1")
        return opset.add(x, self._linear(opset.gelu(y, "ERF"), f"{stem}.fc2"))


def _attention_of(q: Node, k: Node, heads: Sequence[int], width: int) -> Node:
    index = opset.constant(np.array(heads, np.int32))
    q, k = (opset.gather(x, index, i32(1)) for x in (q, k))
    return opset.multiply(opset.matmul(q, k, False, True), f32(width**-0.5))


def gathered(table: Node, ids: Node) -> Node:
    """Return rows of a table as float32."""
    return opset.convert(opset.gather(table, ids, i32(0)), "f32")
