"""Tokens of transducers: each follows from a frame and from the tokens before it.

Nothing is written for a frame with a blank.  A token may be followed by others of the same frame;
with durations (TDT) the model says how many frames to go on.
"""

import numpy as np
import openvino as ov
from openvino import opset13 as opset

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes.openvino.named_layers import NamedLayers
from mindspore_serving.llm.runtimes.openvino.nodes import Node, built, i32, i64, parameter, sliced
from mindspore_serving.llm.runtimes.openvino.opening import compile_graph
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from mindspore_serving.llm.sounds.features import Sound
from mindspore_serving.llm.speech.conformer import EPSILON
from mindspore_serving.llm.speech.frames import FrameRunner, FrameToken
from mindspore_serving.llm.speech.graphs import gathered
from mindspore_serving.llm.speech.models import PredictorSizes, SpeechModel
from mindspore_serving.llm.speech.parakeet import EMBEDDING, JOINT, LSTM, PREDICTED
from mindspore_serving.llm.speech.rules import Floats
from mindspore_serving.llm.speech.runner import infer, open_weights

_AHEAD = 8  # frames that are joined at once: reading the matrix takes most of the time


class TransducerGraphs(NamedLayers):
    """Builder of the graphs of a predictor."""

    def __init__(self, weights: OpenVINOWeights, sizes: PredictorSizes) -> None:
        super().__init__(weights, EPSILON)
        self._sizes = sizes

    def predictor(self) -> ov.Model:
        """Return the graph from `token` and the states of an LSTM to `predicted` and new states."""
        width = self._sizes.width
        token = parameter("token", ov.Type.i32, (1,))
        states = [parameter(n, ov.Type.f32, (self._sizes.layers, width)) for n in ("h", "c")]
        x = gathered(self._weights.table(f"{EMBEDDING}.weight"), token)
        new: dict[str, list[Node]] = {"h": [], "c": []}
        for layer in range(self._sizes.layers):
            h, c = (opset.gather(state, i64(layer), i32(0)) for state in states)
            gates = opset.add(self._gates(x, "ih", layer), self._gates(h, "hh", layer))
            enter, keep, change, leave = (
                sliced(gates, number * width, (number + 1) * width) for number in range(4)
            )
            entered = opset.multiply(opset.sigmoid(enter), opset.tanh(change))
            c = opset.add(opset.multiply(opset.sigmoid(keep), c), entered)
            x = opset.multiply(opset.sigmoid(leave), opset.tanh(c))
            new["h"].append(x)
            new["c"].append(c)
        outputs = {f"new_{name}": opset.concat(rows, 0) for name, rows in new.items()}
        return built({"predicted": self._linear(x, PREDICTED), **outputs}, [token, *states], "lstm")

    def joint(self) -> ov.Model:
        """Return the graph from `frames` and `predicted` to `logits`, [frames, V + durations]."""
        frames, predicted = (
            parameter(name, ov.Type.f32, (rows, self._sizes.width))
            for name, rows in (("frames", -1), ("predicted", 1))
        )
        logits = self._linear(opset.relu(opset.add(frames, predicted)), JOINT)
        return built({"logits": logits}, [frames, predicted], "joint")

    def _gates(self, x: Node, part: str, layer: int) -> Node:
        y = self._weights.product(x, f"{LSTM}.weight_{part}_l{layer}")
        return opset.add(y, self._vector(f"{LSTM}.bias_{part}_l{layer}"))


class TransducerRunner(FrameRunner):
    """Runner of an encoder and a predictor.  Used by one thread."""

    def __init__(self, model: SpeechModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        assert model.sizes.predictor is not None
        self._sizes, self._vocab_size = model.sizes.predictor, model.sizes.vocab_size
        options, weights = open_weights(model, config)
        graphs = TransducerGraphs(weights, self._sizes)
        properties = options.properties(weights.constants.group)
        self._predictor, self._joint = (
            compile_graph(graph, properties).create_infer_request()
            for graph in (graphs.predictor(), graphs.joint())
        )
        self._kept_of_predictor = weights.constants.kept

    def read(self, sound: Sound) -> list[FrameToken]:
        """Return the tokens of a sound."""
        frames, sizes = self.compute(sound), self._sizes
        self._begin()
        predicted, joined = self._predict(self._tokens.start), np.zeros((0, 0), np.float32)
        tokens: list[FrameToken] = []
        at = begin = count = 0
        for _ in range(sizes.max_symbols * len(frames) - 1):
            if not begin <= at < begin + len(joined):
                joined, begin = self._join(frames[at : at + _AHEAD], predicted), at
            logits = joined[at - begin]
            token = int(logits[: self._vocab_size].argmax())
            is_blank = token == self._tokens.end
            count = 0 if is_blank else count + 1
            if sizes.num_durations:
                duration = max(int(logits[self._vocab_size :].argmax()), int(is_blank))
            else:
                duration = int(is_blank or count >= sizes.max_symbols)
            if not is_blank:
                likely = _probability(logits[: self._vocab_size])
                end = min(at + max(duration, 1), len(frames))
                tokens.append(FrameToken(token, at, end, likely))
                predicted, joined = self._predict(token), joined[:0]
            count = 0 if duration else count
            at += duration
            if at >= len(frames):
                break
        return tokens

    def close(self) -> None:
        super().close()
        self._predictor = self._joint = None
        self._kept_of_predictor = []

    def _begin(self) -> None:
        shape = (self._sizes.layers, self._sizes.width)
        self._states = {name: np.zeros(shape, np.float32) for name in ("h", "c")}

    def _predict(self, token: int) -> Floats:
        """Return what follows from the tokens until now, of which `token` is the last."""
        tensors = {name: ov.Tensor(state) for name, state in self._states.items()}
        infer(self._predictor, {"token": ov.Tensor(np.array([token], np.int32)), **tensors})
        self._states = {
            name: self._predictor.get_tensor(f"new_{name}").data.copy() for name in self._states
        }
        predicted: Floats = self._predictor.get_tensor("predicted").data.copy()
        return predicted

    def _join(self, frames: Floats, predicted: Floats) -> Floats:
        tensors = {"frames": frames, "predicted": predicted}
        infer(self._joint, {name: ov.Tensor(array) for name, array in tensors.items()})
        logits: Floats = self._joint.get_tensor("logits").data.copy()
        return logits


def _probability(logits: Floats) -> float:
    """Return the probability of the likeliest token."""
    return float(1 / np.exp(logits - logits.max()).sum())
