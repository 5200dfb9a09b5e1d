"""Computation of Whisper's graphs, and the memory of the sequences that are being decoded.

Sequences are the first rows of tables, so that a step reads a part of each table without copying.
Keys and values of sound stay as they are while a sequence runs; those of tokens grow, for all rows
at once, when a sequence needs more cells.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import openvino as ov

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes.openvino.fusion import computes_integers_as_floats
from mindspore_serving.llm.runtimes.openvino.opening import compile_graph
from mindspore_serving.llm.runtimes.openvino.options import options_from
from mindspore_serving.llm.runtimes.openvino.processor import capabilities
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from mindspore_serving.llm.speech.graphs import PARTS, SpeechGraphs
from mindspore_serving.llm.speech.settings import SpeechModel, SpeechSizes

Floats: TypeAlias = npt.NDArray[np.float32]
Array: TypeAlias = npt.NDArray[Any]

GRAIN = 64  # cells by which the tables of tokens grow
MASKED = np.float32(-1e9)


def row_bytes(sizes: SpeechSizes) -> int:
    """Return the bytes of a row of all tables at most, in f32."""
    cells = sizes.num_frames + sizes.max_tokens
    return 2 * 4 * sizes.decoder_layers * sizes.width * cells


class SpeechRunner:
    """Runner of encoder and decoder, with tables for `num_rows` sequences.  Used by one thread.

    Raises StartError: an option that does not apply, tensors that do not fit.
    """

    def __init__(self, model: SpeechModel, config: EngineConfig, num_rows: int) -> None:
        options = options_from(config, capabilities(config.num_threads))
        widens = computes_integers_as_floats(options.precision)
        weights = OpenVINOWeights(
            model.checkpoint, options.precision, options.bits, is_exact=widens
        )
        graphs = SpeechGraphs(weights, model.sizes)
        self.precision, self.num_rows = options.precision, num_rows
        self._sizes, self._alignment_heads = model.sizes, model.alignment_heads
        self._kind = ov.Type.bf16 if options.precision == "bf16" else ov.Type.f32
        self._dtype = np.uint16 if options.precision == "bf16" else np.float32
        encoder, decoder = graphs.encoder(), graphs.decoder()
        properties = options.properties(weights.constants.group)
        self._encoder = compile_graph(encoder, properties).create_infer_request()
        self._decoder = compile_graph(decoder, properties).create_infer_request()
        self._graphs, self._properties = graphs, properties
        self._aligner: Any = None
        self._kept = weights.constants.kept
        sizes = model.sizes
        width = sizes.width // sizes.decoder_heads
        self._row_shape = (sizes.decoder_heads, width)
        self._cells = GRAIN
        self._tables: dict[str, Array] = {
            f"{part}.{layer}": np.zeros(
                (num_rows, sizes.decoder_heads, self._length(part), width), self._dtype
            )
            for part in PARTS
            for layer in range(sizes.decoder_layers)
        }

    def _length(self, part: str) -> int:
        return self._cells if part.startswith("self") else self._sizes.num_frames

    @property
    def num_bytes(self) -> int:
        """Bytes of all tables."""
        return sum(table.nbytes for table in self._tables.values())

    def encode(self, features: Floats, row: int) -> None:
        """Compute the keys and values of a piece of sound for `row`."""
        self._encoder.set_tensor("features", ov.Tensor(features[None]))
        self._infer(self._encoder)
        for part in PARTS[2:]:
            for layer in range(self._sizes.decoder_layers):
                name = f"{part}.{layer}"
                self._tables[name][row] = self._bits(self._encoder, name)[0]

    def start(self, row: int, tokens: Sequence[int], rows: Sequence[int]) -> Floats:
        """Compute the first tokens of `row`; return the logits after those at `rows`."""
        count = len(tokens)
        self._grow(count)
        padded = -(-count // 4) * 4 if count <= 16 else -(-count // 32) * 32
        ids = np.zeros((1, padded), np.int32)
        ids[0, :count] = tokens
        positions = np.minimum(np.arange(padded, dtype=np.int32), self._sizes.max_tokens - 1)[None]
        mask = np.full((1, 1, padded, self._cells + padded), MASKED, np.float32)
        mask[..., self._cells :] = np.triu(np.full((padded, padded), MASKED), 1)
        arrays = {
            "ids": ids,
            "positions": positions,
            "mask": mask,
            "rows": np.array(rows, np.int32),
        }
        return self._step(arrays, [(row, 0, count)])

    def step(self, tokens: Sequence[int], lengths: Sequence[int]) -> Floats:
        """Compute one token of each of the first rows; return the logits after it.

        `lengths` are the numbers of tokens before it.
        """
        count = len(tokens)
        self._grow(max(lengths) + 1)
        ids = np.array(tokens, np.int32)[:, None]
        positions = np.array(lengths, np.int32)[:, None]
        mask = np.zeros((count, 1, 1, self._cells + 1), np.float32)
        for row, length in enumerate(lengths):
            mask[row, ..., length : self._cells] = MASKED
        spans = [(row, length, 1) for row, length in enumerate(lengths)]
        rows = np.arange(count, dtype=np.int32)
        arrays = {"ids": ids, "positions": positions, "mask": mask, "rows": rows}
        return self._step(arrays, spans)

    def move(self, source: int, target: int) -> None:
        """Copy the memory of a row to another."""
        for table in self._tables.values():
            table[target] = table[source]

    def align(self, row: int, tokens: Sequence[int]) -> Floats:
        """Return how the tokens of `row` attend to its frames: scores [heads, tokens, frames]."""
        if self._aligner is None:
            graph = self._graphs.decoder(self._alignment_heads)
            self._aligner = compile_graph(graph, self._properties).create_infer_request()
        count = len(tokens)
        tensors = {
            "ids": np.array([tokens], np.int32),
            "positions": np.arange(count, dtype=np.int32)[None],
            "mask": np.triu(np.full((1, 1, count, count), MASKED, np.float32), 1),
        }
        for name, array in tensors.items():
            self._aligner.set_tensor(name, ov.Tensor(array))
        for part in PARTS[2:]:
            for layer in range(self._sizes.decoder_layers):
                self._set_table(self._aligner, f"{part}.{layer}", slice(row, row + 1))
        self._infer(self._aligner)
        scores: Floats = self._aligner.get_tensor("weights").data[0].copy()
        return scores

    def close(self) -> None:
        self._encoder = self._decoder = self._aligner = None
        self._tables, self._kept = {}, []

    def _step(self, arrays: dict[str, Array], spans: Sequence[tuple[int, int, int]]) -> Floats:
        """Compute tokens of adjacent rows; `spans` are row, first cell and number of each."""
        chosen = slice(spans[0][0], spans[-1][0] + 1)
        for name, array in arrays.items():
            self._decoder.set_tensor(name, ov.Tensor(array))
        for name in self._tables:
            self._set_table(self._decoder, name, chosen)
        self._infer(self._decoder)
        for part in PARTS[:2]:
            for layer in range(self._sizes.decoder_layers):
                new = self._bits(self._decoder, f"new_{part}.{layer}")
                table = self._tables[f"{part}.{layer}"]
                for index, (row, begin, count) in enumerate(spans):
                    table[row, :, begin : begin + count] = new[index, :, :count]
        logits: Floats = self._decoder.get_tensor("logits").data.copy()
        return logits

    def _grow(self, needed: int) -> None:
        if needed <= self._cells:
            return
        before, self._cells = self._cells, -(-needed // GRAIN) * GRAIN
        heads, width = self._row_shape
        for name, table in self._tables.items():
            if name.startswith("self"):
                grown = np.zeros((self.num_rows, heads, self._cells, width), self._dtype)
                grown[:, :, :before] = table
                self._tables[name] = grown

    def _set_table(self, request: Any, name: str, chosen: slice) -> None:
        view = self._tables[name][chosen]
        request.set_tensor(name, ov.Tensor(view, ov.Shape(list(view.shape)), self._kind))

    def _bits(self, request: Any, name: str) -> Array:
        tensor = request.get_tensor(name)
        if self._kind == ov.Type.f32:
            return np.asarray(tensor.data)
        count = int(np.prod(tensor.shape))
        return np.asarray(tensor.data).view(np.uint16).reshape(-1)[:count].reshape(tensor.shape)

    def _infer(self, request: Any) -> None:
        try:
            request.infer()
        except RuntimeError as error:
            raise ServingError(f"openvino failed in a step: {error}") from error
