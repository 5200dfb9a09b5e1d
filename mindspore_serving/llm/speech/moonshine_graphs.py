"""Graphs of Moonshine: samples by three convolutions, turned positions, gates in the decoder."""

import numpy as np
import openvino as ov
from openvino import opset13 as opset

from mindspore_serving.llm.runtimes.openvino.nodes import (
    TO_END,
    Node,
    features,
    i32,
    i64,
    parameter,
    sliced,
    swish,
)
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from mindspore_serving.llm.speech.graphs import EPSILON, TABLE, SpeechGraphs, gathered
from mindspore_serving.llm.speech.models import SpeechSizes
from mindspore_serving.llm.speech.moonshine import CONVOLUTIONS, HEAD

_GROUP_NORM = "model.encoder.groupnorm"


class MoonshineGraphs(SpeechGraphs):
    """Builder of both graphs; the encoder's input is the samples of a sound, [1, samples]."""

    def __init__(self, weights: OpenVINOWeights, sizes: SpeechSizes) -> None:
        super().__init__(weights, sizes)
        self._cosines, self._sines, self._partners = _rotation(sizes)

    def _sound(self) -> tuple[Node, Node, Node | None]:
        samples = parameter("features", ov.Type.f32, (1, -1))
        x = opset.unsqueeze(samples, i64(1))
        for number, (_, stride) in enumerate(CONVOLUTIONS):
            name = f"model.encoder.conv{number + 1}"
            if number:
                x = opset.gelu(self._with_bias(self._convolved(x, name, stride, 0), name), "ERF")
                continue
            x = self._convolved(x, name, stride, 0)
            x = opset.mvn(opset.tanh(x), i64(1, 2), True, EPSILON, "INSIDE_SQRT")
            x = opset.multiply(x, self._by_channel(f"{_GROUP_NORM}.weight"))
            x = opset.add(x, self._by_channel(f"{_GROUP_NORM}.bias"))
        x = opset.transpose(x, np.array([0, 2, 1]))
        length = opset.gather(opset.shape_of(x, "i32"), i32(1), i32(0))
        positions = opset.unsqueeze(opset.range(i32(0), length, i32(1), "i32"), i64(0))
        return samples, x, positions

    def _embedded(self, ids: Node, positions: Node) -> Node:
        return gathered(self._weights.table(TABLE), ids)

    def _turned(self, x: Node, positions: Node | None) -> Node:
        cosines, sines = (
            opset.unsqueeze(opset.gather(table, positions, i32(0)), i64(1))
            for table in (self._cosines, self._sines)
        )
        partners = opset.gather(x, self._partners, i32(-1))
        return opset.add(opset.multiply(x, cosines), opset.multiply(partners, sines))

    def _head(self) -> str:
        return HEAD if self._weights.has(HEAD) else TABLE

    def _feed_forward(self, x: Node, stem: str) -> Node:
        if stem.startswith("model.encoder"):
            return super()._feed_forward(x, stem)
        y = self._linear(self._norm(x, f"{stem}.final_layer_norm"), f"{stem}.fc1")
        inner = features(y) // 2
        hidden, gate = sliced(y, 0, inner), sliced(y, inner, TO_END)
        return opset.add(x, self._linear(opset.multiply(swish(gate), hidden), f"{stem}.fc2"))

    def _norm(self, x: Node, name: str) -> Node:
        """Normalise by mean and variance, without a bias."""
        y = opset.mvn(x, i64(-1), True, EPSILON, "INSIDE_SQRT")
        return opset.multiply(y, self._vector(f"{name}.weight"))


def _rotation(sizes: SpeechSizes) -> tuple[Node, Node, Node]:
    """Return cosines and signed sines by position, [positions, d], and each feature's partner.

    Features behind those that turn have a cosine of 1 and a sine of 0.
    """
    width = sizes.width // sizes.decoder_heads
    count = 2 * len(sizes.rotary)
    angles = np.outer(np.arange(max(sizes.num_frames, sizes.max_tokens)), sizes.rotary)
    cosines = np.ones((len(angles), width), np.float32)
    sines = np.zeros((len(angles), width), np.float32)
    cosines[:, :count] = np.repeat(np.cos(angles), 2, axis=1)
    sines[:, :count] = np.repeat(np.sin(angles), 2, axis=1) * np.tile([-1, 1], count // 2)
    partners = np.arange(width, dtype=np.int32)
    partners[:count] ^= 1
    return opset.constant(cosines), opset.constant(sines), opset.constant(partners)
