"""Encoders on CPUs by OpenVINO: one graph, without a cache or private operations."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Parameter

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.decoder import encoder
from mindspore_serving.llm.models.ops import AttentionSpec, Weight
from mindspore_serving.llm.runtimes.encoding import (
    MASKED,
    EncoderModel,
    lay_out_prompts,
    open_encoder_model,
)
from mindspore_serving.llm.runtimes.openvino.attention import Node
from mindspore_serving.llm.runtimes.openvino.fusion import computes_integers_as_floats
from mindspore_serving.llm.runtimes.openvino.nodes import features
from mindspore_serving.llm.runtimes.openvino.opening import compile_graph
from mindspore_serving.llm.runtimes.openvino.ops import OpenVINOOps
from mindspore_serving.llm.runtimes.openvino.options import options_from
from mindspore_serving.llm.runtimes.openvino.processor import capabilities
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from mindspore_serving.llm.runtimes.warming import warm_up_within
from mindspore_serving.llm.step import Vectors

WARM_UP_SECONDS = 3.0
INPUTS = ("token_ids", "positions", "types", "token_of_cell", "cell_of_token", "mask")
SWAPPED = np.array([0, 2, 1, 3])  # [B, L, heads, d] <-> [B, heads, L, d]


def open_encoder(directory: str | Path, config: EngineConfig) -> "OpenVINOEncoder":
    """Open the encoder in `directory`, compiled and warmed up.

    Of `config`: `dtype` "auto" or "f32", or "bf16" on processors that have it; `quantization`
    "int8" or "int4"; `num_threads`, `max_model_len`.  "auto" is f32 on every processor, because
    vectors are stored and compared with those that another machine computes.

    Raises StartError: an unsupported option, a broken or unknown checkpoint.
    """
    if config.dtype == "auto":
        config = replace(config, dtype="f32")
    options = options_from(config, capabilities(config.num_threads))
    model = open_encoder_model(directory, config)
    widens = computes_integers_as_floats(options.precision)
    weights = OpenVINOWeights(model.checkpoint, options.precision, options.bits, is_exact=widens)
    ops = OpenVINOEncoderOps(weights)
    graph = ops.graph(encoder(ops, model.spec, ops.inputs))
    compiled = compile_graph(graph, options.properties(weights.constants.group))
    runner = OpenVINOEncoder(compiled, model, weights.constants.kept)
    _warm_up(runner, config)
    return runner


class OpenVINOEncoderOps(OpenVINOOps):
    """`Ops` without a cache, whose attention sees complete prompts."""

    def __init__(self, weights: OpenVINOWeights) -> None:
        super().__init__(weights)
        self.inputs = replace(self.inputs, types=self._parameter("types"))
        self._windows: dict[int, Node] = {}  # masks
        self._bias: Node | None = None  # of scores by distance, [1, heads, L, L]
        self._token_of_cell = self._parameter("token_of_cell", (-1, -1))
        self._cell_of_token = self._parameter("cell_of_token")
        self._mask = self._add("mask", Parameter(ov.Type.f32, ov.PartialShape([-1, 1, 1, -1])))

    def graph(self, states: Node) -> ov.Model:
        """Return the graph whose output is `states`, [tokens, hidden_size]."""
        return ov.Model([opset.result(states)], [self.parameters[n] for n in INPUTS], "encoder")

    def attention(self, layer: int, q: Node, k: Node, v: Node, spec: AttentionSpec) -> Node:
        counts = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        pairs = zip((q, k, v), counts, strict=True)
        heads = [self._heads(x, count, spec) for x, count in pairs]
        scale = opset.constant(np.float32(spec.scale))
        mask = self._window_mask(spec.window) if spec.window else self._mask
        if self._bias is not None:
            mask = opset.add(mask, self._bias)
        out = opset.scaled_dot_product_attention(*heads, mask, scale)
        rows = opset.reshape(opset.transpose(out, SWAPPED), np.array([-1, features(q)]), False)
        return opset.gather(rows, self._cell_of_token, np.int32(0))

    def dense(self, x: Node, block: Callable[[Node], Node]) -> Node:
        return block(x)

    def _heads(self, x: Node, count: int, spec: AttentionSpec) -> Node:
        """Return [prompts, heads, longest, head_dim]; keys and values are repeated for queries."""
        rectangle = opset.gather(x, self._token_of_cell, np.int32(0))
        split = opset.reshape(rectangle, np.array([0, 0, count, spec.head_dim]), True)
        if count != spec.num_heads:
            repeated = np.repeat(np.arange(count, dtype=np.int32), spec.num_heads // count)
            split = opset.gather(split, repeated, np.int32(2))
        return opset.transpose(split, SWAPPED)

    def add_distances(self, table: Weight, rows: Sequence[int]) -> None:
        rows_of_cells = opset.add(self._distances(), opset.constant(np.int32(len(rows) // 2)))
        rows_by_distance = self.embedding(opset.constant(np.array(rows, np.int32)), table)
        bias = opset.gather(rows_by_distance, rows_of_cells, np.int32(0))
        by_heads = opset.transpose(bias, np.array([2, 0, 1]))
        self._bias = opset.unsqueeze(by_heads, np.int32(0))

    def _distances(self) -> Node:
        """Return the offset from the token of each row to that of each column, [L, L]."""
        longest = opset.gather(opset.shape_of(self._mask, "i32"), np.int32(3), np.int32(0))
        columns = opset.range(np.int32(0), longest, np.int32(1), "i32")
        return opset.subtract(columns, opset.unsqueeze(columns, np.int32(1)))

    def _window_mask(self, window: int) -> Node:
        """Return the mask of a layer that sees less than `window` to each side, [B, 1, L, L]."""
        if window not in self._windows:
            distance = opset.abs(self._distances())
            is_far = opset.greater_equal(distance, opset.constant(np.int32(window)))
            added = opset.select(is_far, opset.constant(MASKED), opset.constant(np.float32(0)))
            self._windows[window] = opset.minimum(self._mask, added)
        return self._windows[window]


class OpenVINOEncoder:
    """An `EncoderRunner`; `kept` are the arrays of the compiled model's constants."""

    def __init__(self, compiled: Any, model: EncoderModel, kept: list[Any]) -> None:
        self.vocab_size = model.spec.vocab_size
        self.hidden_size = model.spec.hidden_size
        self.max_model_len = model.max_model_len
        self.num_types = model.num_types
        self._kept = kept
        self._request: Any = compiled.create_infer_request()

    def run(
        self, prompts: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> Vectors:
        if self._request is None:
            raise ServingError("the runner is closed")
        num_rows = padded_rows(sum(len(prompt) for prompt in prompts))
        layout = lay_out_prompts(prompts, num_rows, types=types)
        arrays = {
            "token_ids": layout.token_ids,
            "positions": layout.positions,
            "types": layout.types,
            "token_of_cell": layout.token_of_cell,
            "cell_of_token": layout.cell_of_token,
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


def padded_rows(num_tokens: int) -> int:
    """Return the number of rows of a pass.

    Kernels are compiled for each number of rows, so there are few different numbers.
    """
    grain = 4 if num_tokens <= 32 else 8 if num_tokens <= 128 else 32
    return -(-num_tokens // grain) * grain


def _warm_up(runner: OpenVINOEncoder, config: EngineConfig) -> None:
    """Run a pass of each size.

    The first one packs the weights; the first of each size compiles kernels for it.
    """
    sizes = {padded_rows(count) for count in range(1, config.max_num_batched_tokens + 1)}
    for size in warm_up_within(WARM_UP_SECONDS, sorted(sizes)):
        full, rest = divmod(size, runner.max_model_len)
        lengths = [runner.max_model_len] * full + [rest] * (rest > 0)
        runner.run([[0] * length for length in lengths])
