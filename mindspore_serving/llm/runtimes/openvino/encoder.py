"""Encoders on CPUs by OpenVINO: one graph, without a cache or a private operation."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Parameter

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.bert import EncoderInputs
from mindspore_serving.llm.models.ops import AttentionSpec
from mindspore_serving.llm.runtimes.encoding import (
    EncoderModel,
    lay_out_prompts,
    open_encoder_model,
)
from mindspore_serving.llm.runtimes.openvino.attention import Node
from mindspore_serving.llm.runtimes.openvino.nodes import features
from mindspore_serving.llm.runtimes.openvino.opening import compile_graph, within
from mindspore_serving.llm.runtimes.openvino.ops import OpenVINOOps
from mindspore_serving.llm.runtimes.openvino.options import options_from
from mindspore_serving.llm.runtimes.openvino.weights import Weights
from mindspore_serving.llm.step import Vectors

WARM_UP_SECONDS = 3.0
INPUTS = ("token_ids", "positions", "types", "places", "back", "mask")
SWAPPED = np.array([0, 2, 1, 3])  # [B, L, heads, d] <-> [B, heads, L, d]


def open_encoder(directory: str | Path, config: EngineConfig) -> "OpenVINOEncoder":
    """The encoder in `directory`, compiled and warmed up.

    Of `config`: `dtype` "auto" or "f32", or "bf16" on processors that have it; `quantization`
    "int8" or "int4"; `num_threads`, `max_model_len`.  "auto" is f32 on every processor, because
    vectors are stored, and compared with those that another machine computes.

    Raises StartError: an option that it does not have, a broken or unknown checkpoint.
    """
    if config.dtype == "auto":
        config = replace(config, dtype="f32")
    options = options_from(config, ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
    model = open_encoder_model(directory, config)
    weights = Weights(model.checkpoint, options.precision, options.bits)
    ops = EncoderOps(weights)
    graph = ops.graph(model.definition(ops, model.spec, ops.encoder_inputs))
    compiled = compile_graph(graph, options.properties(weights.group))
    runner = OpenVINOEncoder(compiled, model, weights.kept)
    _warm_up(runner, config)
    return runner


class EncoderOps(OpenVINOOps):
    """`Ops` without a cache, whose attention sees the whole prompt."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        types = self._parameter("types")
        self.encoder_inputs = EncoderInputs(self.inputs.token_ids, self.inputs.positions, types)
        self._places = self._parameter("places", (-1, -1))
        self._back = self._parameter("back")
        self._mask = self._add("mask", Parameter(ov.Type.f32, ov.PartialShape([-1, 1, 1, -1])))

    def graph(self, states: Node) -> ov.Model:
        """The graph whose output is `states`, [tokens, hidden_size]."""
        return ov.Model([opset.result(states)], [self.parameters[n] for n in INPUTS], "encoder")

    def attention(self, layer: int, q: Node, k: Node, v: Node, spec: AttentionSpec) -> Node:
        heads = [self._heads(x, spec) for x in (q, k, v)]
        scale = opset.constant(np.float32(spec.scale))
        out = opset.scaled_dot_product_attention(*heads, self._mask, scale)
        rows = opset.reshape(opset.transpose(out, SWAPPED), np.array([-1, features(q)]), False)
        return opset.gather(rows, self._back, np.int32(0))

    def _heads(self, x: Node, spec: AttentionSpec) -> Node:
        """[prompts, heads, longest, head_dim]."""
        rectangle = opset.gather(x, self._places, np.int32(0))
        split = np.array([0, 0, spec.num_heads, spec.head_dim])
        return opset.transpose(opset.reshape(rectangle, split, True), SWAPPED)


class OpenVINOEncoder:
    """An `EncoderRunner`.  `kept` are the arrays that the compiled model's constants refer to."""

    def __init__(self, compiled: Any, model: EncoderModel, kept: list[Any]) -> None:
        self.vocab_size = model.spec.vocab_size
        self.hidden_size = model.spec.hidden_size
        self.max_model_len = model.max_model_len
        self.num_types = model.num_types
        self._first_position = model.spec.first_position
        self._kept = kept
        self._request: Any = compiled.create_infer_request()

    def run(
        self, prompts: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> Vectors:
        if self._request is None:
            raise ServingError("the runner is closed")
        num_rows = rounded(sum(len(prompt) for prompt in prompts))
        layout = lay_out_prompts(prompts, self._first_position, num_rows, types=types)
        arrays = {
            "token_ids": layout.token_ids,
            "positions": layout.positions,
            "types": layout.types,
            "places": layout.places,
            "back": layout.back,
            "mask": layout.mask(),
        }
        for name, array in arrays.items():
            self._request.set_tensor(name, ov.Tensor(array))
        try:
            self._request.infer()
        except RuntimeError as error:
            raise ServingError(f"openvino failed in a step: {error}") from error
        states: Vectors = self._request.get_output_tensor(0).data
        return states[: layout.num_tokens]

    def close(self) -> None:
        self._request = None
        self._kept = []


def rounded(num_tokens: int) -> int:
    """How many rows a pass has: kernels are compiled for each number of rows, so there are few."""
    grain = 4 if num_tokens <= 32 else 8 if num_tokens <= 128 else 32
    return -(-num_tokens // grain) * grain


def _warm_up(runner: OpenVINOEncoder, config: EngineConfig) -> None:
    """The first pass packs the weights; the first of each size compiles kernels for it."""
    sizes = {rounded(count) for count in range(1, config.max_num_batched_tokens + 1)}
    for size in within(WARM_UP_SECONDS, sorted(sizes)):
        whole, rest = divmod(size, runner.max_model_len)
        lengths = [runner.max_model_len] * whole + [rest] * (rest > 0)
        runner.run([[0] * length for length in lengths])
