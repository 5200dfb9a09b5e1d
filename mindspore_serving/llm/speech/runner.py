"""Computation of both graphs, and the memory of the pieces that are being decoded.

A text has a row in tables, as each text of a beam search, so that a step reads a part of each table
without copying.  Keys and values of sound stay as they are while a piece is read.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import openvino as ov

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes.openvino.fusion import computes_integers_as_floats
from mindspore_serving.llm.runtimes.openvino.opening import compile_graph
from mindspore_serving.llm.runtimes.openvino.options import PluginOptions, options_from
from mindspore_serving.llm.runtimes.openvino.processor import capabilities
from mindspore_serving.llm.runtimes.openvino.row_tables import GRAIN, RowTables
from mindspore_serving.llm.runtimes.openvino.seq2seq_slots import SequenceTables, Slot, sharing_of
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from mindspore_serving.llm.sounds.features import RATE
from mindspore_serving.llm.speech.graphs import SpeechGraphs
from mindspore_serving.llm.speech.models import SpeechModel, SpeechSizes
from mindspore_serving.llm.speech.moonshine_graphs import MoonshineGraphs

Floats: TypeAlias = npt.NDArray[np.float32]
Array: TypeAlias = npt.NDArray[Any]

MASKED = np.float32(-1e9)
GRAPHS: dict[str, type[SpeechGraphs]] = {"whisper": SpeechGraphs, "moonshine": MoonshineGraphs}


def open_weights(model: SpeechModel, config: EngineConfig) -> tuple[PluginOptions, OpenVINOWeights]:
    """Return the options of the plugin, and the constants of a model's graphs."""
    options = options_from(config, capabilities(config.num_threads))
    widens = computes_integers_as_floats(options.precision)
    weights = OpenVINOWeights(model.checkpoint, options.precision, options.bits, is_exact=widens)
    return options, weights


def row_bytes(sizes: SpeechSizes) -> int:
    """Return the bytes of a row of all tables at most, in f32."""
    cells = sizes.num_frames + sizes.max_tokens
    return 2 * 4 * sizes.decoder_layers * sizes.width * cells


@dataclass(frozen=True, slots=True)
class NewTokens:
    """New tokens of piece `key`: one of each of its texts.

    In a beam search each continues the text of the step before that `parents` has.
    """

    key: int
    tokens: Sequence[int]
    parents: Sequence[int] = ()


class SpeechRunner:
    """Runner of encoder and decoder for up to `num_rows` texts at a time.  Used by one thread.

    Pieces have keys, which `encode` gives; those that are done have to be dropped.

    Raises StartError: an option that does not apply, tensors that do not fit.
    """

    def __init__(self, model: SpeechModel, config: EngineConfig, num_rows: int) -> None:
        options, weights = open_weights(model, config)
        graphs = GRAPHS[model.family.model_type](weights, model.sizes)
        self.precision, self.num_rows = options.precision, num_rows
        self._sizes, self._alignment_heads = model.sizes, model.alignment_heads
        encoder, decoder = graphs.encoder(), graphs.decoder()
        properties = options.properties(weights.constants.group)
        self._encoder = compile_graph(encoder, properties).create_infer_request()
        self._decoder = compile_graph(decoder, properties).create_infer_request()
        self._graphs, self._properties = graphs, properties
        self._aligner: Any = None
        self._kept = weights.constants.kept
        sizes = model.sizes
        self._tables = SequenceTables(
            options.precision,
            sizes.decoder_heads,
            sizes.width // sizes.decoder_heads,
            sizes.decoder_layers,
            GRAIN if sizes.has_lengths else sizes.num_frames,
        )

        if sizes.has_lengths:
            # OpenVINO 2026.4 keeps the attention of a first sound of one frame, which is wrong for
            # all longer ones.
            self._compute(np.zeros(RATE, np.float32))

    @property
    def num_bytes(self) -> int:
        """Bytes of all tables."""
        return self._tables.answers.num_bytes + self._tables.prompts.num_bytes

    @property
    def max_bytes(self) -> int:
        """Bytes of all tables at most."""
        return self.num_rows * row_bytes(self._sizes) // (2 if self.precision == "bf16" else 1)

    @property
    def room(self) -> str:
        """Description of what it computes together, for people."""
        size = self.max_bytes >> 20
        return f"up to {self.num_rows} pieces of 30 s together, keys and values of up to {size} MiB"

    def encode(self, features: Floats, key: int) -> None:
        """Compute the keys and values of a piece of sound."""
        self._compute(features)
        slot, prompts = self._tables.find([key], is_new=True), self._tables.prompts
        num_frames = int(self._encoder.get_tensor("cross_key.0").shape[2])
        self._tables.fit(num_encoded=num_frames)
        slot.num_encoded = num_frames
        for number, name in self._names("cross"):
            prompts.write(number, slot.source, 0, prompts.bits(self._encoder.get_tensor(name))[0])

    def _compute(self, features: Floats) -> None:
        self._encoder.set_tensor("features", ov.Tensor(features[None]))
        infer(self._encoder)

    def start(self, key: int, tokens: Sequence[int], rows: Sequence[int]) -> Floats:
        """Compute the first tokens of a piece; return the logits after those at `rows`."""
        count = len(tokens)
        slot = self._tables.find([key], is_new=False)
        slot.rows, slot.num_decoded = slot.rows[:1], 0
        padded = -(-count // 4) * 4 if count <= 16 else -(-count // 32) * 32
        ids = np.zeros((1, padded), np.int32)
        ids[0, :count] = tokens
        positions = np.minimum(np.arange(padded, dtype=np.int32), self._sizes.max_tokens - 1)[None]
        self._tables.arrange([slot])
        self._tables.fit(num_decoded=count)
        cells = self._tables.answers.num_cells
        mask = np.full((1, 1, padded, cells + padded), MASKED, np.float32)
        mask[..., cells:] = np.triu(np.full((padded, padded), MASKED), 1)
        arrays = {
            "ids": ids,
            "positions": positions,
            "mask": mask,
            "rows": np.array(rows, np.int32),
        }
        return self._step(arrays, [(slot.rows[0], slot)], count)

    def step(self, pieces: Sequence[NewTokens]) -> list[Floats]:
        """Compute new tokens; return the logits after those of each piece, [texts, V]."""
        slots = [self._tables.find([piece.key], is_new=False) for piece in pieces]
        for slot, piece in zip(slots, pieces, strict=True):
            if piece.parents:
                self._tables.follow(slot, piece.parents)
        self._tables.arrange(slots)
        self._tables.fit(num_decoded=1 + max(slot.num_decoded for slot in slots))
        token_of = {
            row: (token, slot)
            for slot, piece in zip(slots, pieces, strict=True)
            for row, token in zip(slot.rows, piece.tokens, strict=True)
        }
        lanes = [token_of[row] for row in range(len(token_of))]
        lengths = np.array([slot.num_decoded for _, slot in lanes])[:, None]
        cells = self._tables.answers.num_cells
        mask = np.where(np.arange(cells + 1) < lengths, np.float32(0), MASKED)
        mask[:, cells] = 0
        arrays = {
            "ids": np.array([[token] for token, _ in lanes], np.int32),
            "positions": lengths.astype(np.int32),
            "mask": mask[:, None, None],
            "rows": np.arange(len(lanes), dtype=np.int32),
        }
        logits = self._step(arrays, [(row, slot) for row, (_, slot) in enumerate(lanes)], 1)
        return [logits[slot.rows] for slot in slots]

    def drop(self, key: int) -> None:
        """Free the memory of a piece."""
        self._tables.drop([key])

    def align(self, key: int, tokens: Sequence[int]) -> Floats:
        """Return how the tokens of a piece attend to its frames: scores [heads, tokens, frames]."""
        if self._aligner is None:
            graph = self._graphs.decoder(self._alignment_heads)
            self._aligner = compile_graph(graph, self._properties).create_infer_request()
        count = len(tokens)
        tensors = {
            "ids": ov.Tensor(np.array([tokens], np.int32)),
            "positions": ov.Tensor(np.arange(count, dtype=np.int32)[None]),
            "mask": ov.Tensor(np.triu(np.full((1, 1, count, count), MASKED, np.float32), 1)),
        }
        source = self._tables.find([key], is_new=False).source
        for number, name in self._names("cross"):
            tensors[name] = self._tables.prompts.tensor(number, source, source + 1)
        infer(self._aligner, tensors)
        scores: Floats = self._aligner.get_tensor("weights").data[0].copy()
        return scores

    def close(self) -> None:
        self._encoder = self._decoder = self._aligner = None
        self._kept = []

    def _step(
        self, arrays: dict[str, Array], lanes: Sequence[tuple[int, Slot]], count: int
    ) -> Floats:
        """Compute tokens of the first rows, of which the first `count` of each are kept."""
        answers, prompts = self._tables.answers, self._tables.prompts
        sources = [slot.source for _, slot in lanes]
        num_sources, num_tokens = 1 + max(sources), arrays["ids"].shape[1]
        arrays |= sharing_of(sources, num_sources, num_tokens)
        if self._sizes.has_lengths:
            arrays["shown"] = _shown({slot.source: slot.num_encoded for _, slot in lanes}, prompts)
        tensors = {name: ov.Tensor(array) for name, array in arrays.items()}
        for number, name in self._names("self"):
            tensors[name] = answers.tensor(number, 0, len(lanes))
        for number, name in self._names("cross"):
            tensors[name] = prompts.tensor(number, 0, num_sources)
        infer(self._decoder, tensors)
        rows, lengths = [row for row, _ in lanes], [slot.num_decoded for _, slot in lanes]
        for number, name in self._names("self"):
            bits = answers.bits(self._decoder.get_tensor(f"new_{name}"))
            answers.write_all(number, rows, lengths, bits[:, :, :count])
        for slot in {id(slot): slot for _, slot in lanes}.values():
            slot.num_decoded += count
        logits: Floats = self._decoder.get_tensor("logits").data.copy()
        return logits

    def _names(self, kind: str) -> Iterator[tuple[int, str]]:
        """Iterate over tables of answers ("self") or sound: numbers, and names in the graphs."""
        for layer in range(self._sizes.decoder_layers):
            for part in range(2):
                yield 2 * layer + part, f"{kind}_{('key', 'value')[part]}.{layer}"


def _shown(lengths: Mapping[int, int], tables: RowTables) -> Floats:
    """Return what is added to scores of the frames of each source, of which some are there."""
    counts = np.zeros((1 + max(lengths), 1, 1, 1), np.int64)
    for source, length in lengths.items():
        counts[source] = length
    return np.where(np.arange(tables.num_cells) < counts, np.float32(0), MASKED)


def infer(request: Any, tensors: Mapping[str, Any] | None = None) -> None:
    """Compute a graph with inputs.  Raises ServingError."""
    for name, tensor in (tensors or {}).items():
        request.set_tensor(name, tensor)
    try:
        request.infer()
    except RuntimeError as error:
        raise ServingError(f"openvino failed in a step: {error}") from error
