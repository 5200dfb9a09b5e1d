"""Parakeet's encoder (Fast Conformer) with its last product as an OpenVINO graph.

A layer has half of a feed forward, attention with relative positions, a convolution over frames,
and the other half.
"""

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as opset

from mindspore_serving.llm.runtimes.openvino.named_layers import SWAPPED, NamedLayers
from mindspore_serving.llm.runtimes.openvino.nodes import (
    TO_END,
    Node,
    built,
    f32,
    i32,
    i64,
    parameter,
    sliced,
    swish,
)
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from mindspore_serving.llm.speech.models import SpeechSizes
from mindspore_serving.llm.speech.parakeet import HEAD, PROJECTOR

EPSILON = 1e-5
_CHANNELS_FIRST = np.array([0, 2, 1])


class ConformerGraph(NamedLayers):
    """Builder of the graph from the features of a sound to its frames."""

    def __init__(self, weights: OpenVINOWeights, sizes: SpeechSizes) -> None:
        super().__init__(weights, EPSILON)
        self._sizes = sizes
        self._positions = opset.constant(_sines(sizes))

    def build(self) -> ov.Model:
        """Return the graph from `features`, [1, frames, bins], to `frames`, a row each.

        A row has logits, or what a predictor joins with its own states.
        """
        sizes = self._sizes
        features = parameter("features", ov.Type.f32, (1, -1, sizes.num_bins))
        x = opset.multiply(self._halved(features), f32(sizes.scale))
        length = opset.gather(opset.shape_of(x, "i64"), i64(1), i32(0))
        distances = self._distances(length)
        for layer in range(sizes.encoder_layers):
            stem = f"encoder.layers.{layer}"
            x = self._with_half(x, stem, 1)
            y = self._norm(x, f"{stem}.norm_self_att")
            x = opset.add(x, self._attended(y, distances, length, f"{stem}.self_attn"))
            y = self._norm(x, f"{stem}.norm_conv")
            x = opset.add(x, self._convolved(y, f"{stem}.conv"))
            x = self._norm(self._with_half(x, stem, 2), f"{stem}.norm_out")
        frames = opset.squeeze(self._linear(x, PROJECTOR if sizes.predictor else HEAD), i64(0))
        return built({"frames": frames}, [features], "frames")

    def _halved(self, features: Node) -> Node:
        """Reduce frames and bins by convolutions of stride 2."""
        stem, sizes = "encoder.subsampling", self._sizes
        x = opset.unsqueeze(features, i64(1))
        for step in range(sizes.halvings):
            number = max(0, 3 * step - 1)
            x = self._convolution(x, f"{stem}.layers.{number}", 2)
            if step:
                x = self._convolution(x, f"{stem}.layers.{number + 1}", 1)
            x = opset.relu(x)
        x = opset.transpose(x, SWAPPED)
        width = self._weights.shape(f"{stem}.linear.weight")[1]
        return self._linear(opset.reshape(x, i64(1, -1, width), False), f"{stem}.linear")

    def _convolution(self, x: Node, name: str, stride: int) -> Node:
        """Convolve [1, channels, frames, bins]; of several channels, each alone if so stored."""
        shape = self._weights.shape(f"{name}.weight")
        kernel, padding = self._weights.vector(f"{name}.weight"), [(shape[-1] - 1) // 2] * 2
        strides, apart = [stride] * 2, [1] * 2
        if name.endswith(".0") or shape[1] > 1:
            kernel = opset.reshape(kernel, i64(*shape), False)
            y = opset.convolution(x, kernel, strides, padding, padding, apart)
        else:
            kernel = opset.reshape(kernel, i64(shape[0], 1, 1, *shape[2:]), False)
            y = opset.group_convolution(x, kernel, strides, padding, padding, apart)
        bias = self._weights.vector(f"{name}.bias")
        return opset.add(y, opset.reshape(bias, i64(1, -1, 1, 1), False))

    def _with_half(self, x: Node, stem: str, number: int) -> Node:
        y = self._norm(x, f"{stem}.norm_feed_forward{number}")
        y = swish(self._linear(y, f"{stem}.feed_forward{number}.linear1"))
        y = self._linear(y, f"{stem}.feed_forward{number}.linear2")
        return opset.add(x, opset.multiply(y, f32(0.5)))

    def _distances(self, length: Node) -> Node:
        """Return the vectors of distances, from the largest to the smallest, [1, 2 * L - 1, d]."""
        begin = opset.subtract(i64(self._sizes.num_frames), length)
        end = opset.add(length, i64(self._sizes.num_frames - 1))
        rows = opset.slice(self._positions, begin, end, i64(1), i64(0))
        return opset.unsqueeze(rows, i64(0))

    def _attended(self, x: Node, distances: Node, length: Node, stem: str) -> Node:
        heads, width = self._sizes.encoder_heads, self._sizes.width
        q, k, v = (self._by_heads(self._linear(x, f"{stem}.{part}_proj")) for part in "qkv")
        by_content, by_distance = (
            opset.add(q, self._bias(f"{stem}.{n}")) for n in ("bias_u", "bias_v")
        )
        keys = self._by_heads(self._linear(distances, f"{stem}.relative_k_proj"))
        scores = opset.matmul(by_distance, keys, False, True)
        # A row for each token is shifted by one against that before it: padded, read in rows of
        # another length, and without the first of these.
        scores = opset.pad(scores, i64(0, 0, 0, 1), i64(0, 0, 0, 0), "constant", f32(0))
        scores = opset.reshape(scores, opset.concat([i64(1, heads, -1), length], 0), False)
        scores = opset.slice(scores, i64(1), i64(TO_END), i64(1), i64(2))
        scores = opset.reshape(scores, opset.concat([i64(1, heads), length, i64(-1)], 0), False)
        scores = opset.slice(scores, i64(0), length, i64(1), i64(3))
        scale = f32((width // heads) ** -0.5)
        mask = opset.multiply(scores, scale)
        y = opset.scaled_dot_product_attention(by_content, k, v, mask, scale)
        y = opset.reshape(opset.transpose(y, SWAPPED), i64(0, 0, width), True)
        return self._linear(y, f"{stem}.o_proj")

    def _by_heads(self, x: Node) -> Node:
        heads = self._sizes.encoder_heads
        return opset.transpose(opset.reshape(x, i64(0, 0, heads, -1), True), SWAPPED)

    def _bias(self, name: str) -> Node:
        shape = i64(1, self._sizes.encoder_heads, 1, -1)
        return opset.reshape(self._weights.vector(name), shape, False)

    def _convolved(self, x: Node, stem: str) -> Node:
        width = self._sizes.width
        y = self._linear(x, f"{stem}.pointwise_conv1")
        y = opset.multiply(sliced(y, 0, width), opset.sigmoid(sliced(y, width, TO_END)))
        name = f"{stem}.depthwise_conv"
        kernel = self._weights.vector(f"{name}.weight")
        count = self._weights.shape(f"{name}.weight")[-1]
        kernel, padding = opset.reshape(kernel, i64(width, 1, 1, count), False), [(count - 1) // 2]
        y = opset.transpose(y, _CHANNELS_FIRST)
        y = opset.group_convolution(y, kernel, [1], padding, padding, [1])
        y = opset.transpose(y, _CHANNELS_FIRST)
        if self._weights.has(f"{name}.bias"):
            y = opset.add(y, self._vector(f"{name}.bias"))
        y = swish(self._batch_norm(y, f"{stem}.norm"))
        return self._linear(y, f"{stem}.pointwise_conv2")

    def _batch_norm(self, x: Node, name: str) -> Node:
        """Normalise by mean and variance of the training."""
        y = opset.subtract(x, self._vector(f"{name}.running_mean"))
        variance = opset.add(self._vector(f"{name}.running_var"), f32(EPSILON))
        y = opset.multiply(opset.divide(y, opset.sqrt(variance)), self._vector(f"{name}.weight"))
        return opset.add(y, self._vector(f"{name}.bias"))


def _sines(sizes: SpeechSizes) -> npt.NDArray[np.float32]:
    """Return sines and cosines of all distances, from the largest to the smallest."""
    distances = np.arange(sizes.num_frames - 1, -sizes.num_frames, -1)
    angles = np.outer(distances, 1e4 ** -(np.arange(0, sizes.width, 2) / sizes.width))
    table: npt.NDArray[np.float32] = np.stack([np.sin(angles), np.cos(angles)], -1).astype("f4")
    return table.reshape(len(angles), -1)
