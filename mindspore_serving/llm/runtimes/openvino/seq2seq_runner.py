"""Runner of models with an encoder and a decoder, for the engine that runs decoders.

A cache block holds a whole sequence: the cross keys and values of its prompt, and the keys and
values of its answer.  Answers to the same prompt share the former.  A step encodes the prompts that
are complete, together as far as their lengths are alike, computes the first tokens of their
answers, and then a token of each other answer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import openvino as ov

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.descriptions.families.seq2seq import RELATIVE
from mindspore_serving.llm.models.seq2seq import open_seq2seq
from mindspore_serving.llm.options import check_seq2seq
from mindspore_serving.llm.runtimes.main_memory import read_main_memory
from mindspore_serving.llm.runtimes.openvino.fusion import computes_integers_as_floats
from mindspore_serving.llm.runtimes.openvino.opening import compile_graph
from mindspore_serving.llm.runtimes.openvino.options import options_from
from mindspore_serving.llm.runtimes.openvino.processor import capabilities
from mindspore_serving.llm.runtimes.openvino.seq2seq_graphs import MASKED, PARTS, Seq2SeqGraphs
from mindspore_serving.llm.runtimes.openvino.seq2seq_slots import (
    SequenceTables,
    Slot,
    sharing_of,
)
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from mindspore_serving.llm.step import CacheMemory, Logits, Row, Step

Array: TypeAlias = npt.NDArray[Any]

_MEMORY_PART = 0.12  # of the memory, for keys and values
_MAX_PADDING = 1.5  # tokens of prompts that are encoded together, with padding, by those without


@dataclass(frozen=True, slots=True)
class _Part:
    """Row `index` of a step, with its slot; `tokens` are those behind the prompt."""

    index: int
    row: Row
    slot: Slot
    tokens: Sequence[int]

    @property
    def count(self) -> int:
        """Number of tokens of each answer."""
        return 1 if self.row.parents else len(self.tokens)

    @property
    def lanes(self) -> list[tuple[int, Sequence[int]]]:
        """Rows of the tables, each with its tokens."""
        if self.row.parents:
            return [(row, [token]) for row, token in zip(self.slot.rows, self.tokens, strict=True)]
        return [(self.slot.rows[0], self.tokens)]


def open_runner(directory: str | Path, config: EngineConfig) -> "Seq2SeqRunner":
    """Open the model in `directory`.

    Of `config`: `dtype` "auto", "f32", or "bf16" on processors that have it; `quantization`,
    `num_threads`, `max_model_len`, `max_num_seqs`, `kv_cache_memory`.

    Raises StartError: an option that does not apply, a broken or unknown checkpoint.
    """
    check_seq2seq(config)
    return Seq2SeqRunner(directory, config)


class Seq2SeqRunner:
    """A `Runner` whose blocks are sequences.

    `max_prompt_len` and `max_answer_len` are limits of their own beside `max_model_len`.
    """

    adapters = ()
    num_slots = hidden_size = rope_switch = 0

    def __init__(self, directory: str | Path, config: EngineConfig) -> None:
        options = options_from(config, capabilities(config.num_threads))
        checkpoint, spec = open_seq2seq(directory, config.max_model_len)
        widens = computes_integers_as_floats(options.precision)
        weights = OpenVINOWeights(checkpoint, options.precision, options.bits, is_exact=widens)
        graphs = Seq2SeqGraphs(checkpoint, weights, spec)
        encoder, decoder = graphs.encoder(), graphs.decoder()
        properties = options.properties(weights.constants.group)
        self._encoder = compile_graph(encoder, properties).create_infer_request()
        self._decoder = compile_graph(decoder, properties).create_infer_request()
        self._kept = weights.constants.kept
        self.precision, self._spec = options.precision, spec
        self.vocab_size, self.answer_start = spec.vocab_size, spec.start
        self.answer_end, self.bad_words = spec.end, spec.bad_words
        self.max_prompt_len = spec.max_positions
        self.max_answer_len = spec.max_positions - len(spec.start)
        self.max_model_len = self.block_size = 2 * spec.max_positions
        token_bytes = spec.token_bytes // (2 if options.precision == "bf16" else 1)
        block_bytes = token_bytes * self.block_size
        budget = config.kv_cache_memory or int(read_main_memory().total * _MEMORY_PART)
        self.num_blocks = max(1, min(config.max_num_seqs, budget // block_bytes))
        self.cache_memory = CacheMemory(block_bytes, reason="tables of keys and values by sequence")
        sizes = (options.precision, spec.decoder_heads, spec.head_width, spec.decoder_layers)
        self._slots = SequenceTables(*sizes)
        self._self, self._cross = self._slots.answers, self._slots.prompts
        self._buckets: dict[bool, npt.NDArray[np.int32]] = {}
        if spec.family.positions == RELATIVE:
            self._buckets = {kind: spec.buckets(is_causal=kind) for kind in (False, True)}

    @property
    def num_bytes(self) -> int:
        """Bytes of all tables."""
        return self._self.num_bytes + self._cross.num_bytes

    def run(self, step: Step) -> Logits:
        """Compute `step`; see `Runner.run`."""
        for row in step.rows:
            has_room = len(row.blocks) >= max(1, len(row.parents))
            if not has_room or not all(0 <= block < self.num_blocks for block in row.blocks):
                raise ServingError(f"a row has blocks {list(row.blocks)}, expected one an answer")
        for source, target in step.copies:
            self._slots.copy(source, target)
        parts = [part for part in map(self._take, step.rows, range(len(step.rows))) if part.tokens]
        following = [part for part in parts if part.slot.num_encoded]
        logits: dict[int, Logits] = {}  # by the index of the row
        self._start([part for part in parts if not part.slot.num_encoded], logits)
        self._decode([part for part in following if part.count == 1], logits)
        for part in following:
            if part.count > 1:
                self._decode([part], logits)
        if not logits:
            return np.empty((0, self.vocab_size), np.float32)
        return np.concatenate([logits[index] for index in sorted(logits)])

    def release_blocks(self, blocks: Sequence[int]) -> None:
        """Do nothing: tables are for all sequences together."""

    def close(self) -> None:
        """Free the model."""
        self._encoder = self._decoder = None
        self._kept = []

    def _take(self, row: Row, index: int) -> _Part:
        """Return what a row computes; its part of a prompt waits in its slot for the rest."""
        slot = self._slots.find(row.blocks, is_new=row.start == 0)
        if row.parents:
            self._slots.follow(slot, row.parents)
        num_prompt = max(0, min(row.num_encoded - row.start, len(row.tokens)))
        slot.prompt += row.tokens[:num_prompt]
        return _Part(index, row, slot, row.tokens[num_prompt:])

    # --- prompts ------------------------------------------------------------------------------

    def _start(self, starting: list[_Part], logits: dict[int, Logits]) -> None:
        """Encode complete prompts, and compute the first tokens of their answers."""
        for group in _groups(starting):
            shown = self._encode([part.slot.prompt for part in group])
            self._slots.fit(num_encoded=shown.shape[-1])
            for number, name in self._names():
                bits = self._cross.bits(self._encoder.get_tensor(name))
                for part, row_bits in zip(group, bits, strict=True):
                    length = len(part.slot.prompt)
                    self._cross.write(number, part.slot.source, 0, row_bits[:, :length])
            for part in group:
                part.slot.num_encoded, part.slot.prompt = len(part.slot.prompt), []
            self._compute(group, logits, shown, is_new=True)

    def _encode(self, prompts: Sequence[Sequence[int]]) -> Array:
        """Run the encoder; return which of its columns are tokens, as a mask."""
        longest = max(map(len, prompts))
        grain = 8 if longest <= 64 else 32
        columns = -(-longest // grain) * grain
        ids = np.zeros((len(prompts), columns), np.int32)
        shown = np.full((len(prompts), 1, 1, columns), MASKED, np.float32)
        for index, prompt in enumerate(prompts):
            ids[index, : len(prompt)] = prompt
            shown[index, ..., : len(prompt)] = 0
        arrays = {"ids": ids, "shown": shown}
        if self._buckets:
            positions = np.arange(columns)[None]
            arrays["seen"] = self._rows_of_distances(positions, positions, is_causal=False)
        _infer(self._encoder, {name: ov.Tensor(array) for name, array in arrays.items()})
        return shown

    # --- answers ------------------------------------------------------------------------------

    def _decode(self, parts: list[_Part], logits: dict[int, Logits]) -> None:
        """Compute a token of each answer of some slots, or several of a single one."""
        if not parts:
            return
        self._slots.arrange([part.slot for part in parts])
        needed = max(part.slot.num_decoded + part.count for part in parts)
        self._slots.fit(num_decoded=needed)
        num_sources = 1 + max(part.slot.source for part in parts)
        shown = np.full((num_sources, 1, 1, self._cross.num_cells), MASKED, np.float32)
        for part in parts:
            shown[part.slot.source, ..., : part.slot.num_encoded] = 0
        self._compute(parts, logits, shown, is_new=False)

    def _compute(
        self, parts: list[_Part], logits: dict[int, Logits], shown: Array, *, is_new: bool
    ) -> None:
        """Run the decoder on rows with as many tokens each.

        Rows that are new read the encoder's results; the others, which are the first, the tables.
        """
        lanes = [(*lane, part) for part in parts for lane in part.lanes]
        if not is_new:
            lanes.sort(key=lambda lane: lane[0])
        count, cells = len(lanes[0][1]), 0 if is_new else self._self.num_cells
        rows, lengths = [lane[0] for lane in lanes], [lane[2].slot.num_decoded for lane in lanes]
        positions = np.array(lengths, np.int32)[:, None] + np.arange(count, dtype=np.int32)
        sources = {id(part): index for index, part in enumerate(parts)}
        if not is_new:
            sources = {id(part): part.slot.source for part in parts}
        selected = _selected(parts, rows, count)
        arrays = {
            "ids": np.array([lane[1] for lane in lanes], np.int32),
            "shown": shown,
            "seen": self._seen(positions, lengths, cells),
            "rows": np.array(sum(selected, []) or [0], np.int32),
            **sharing_of([sources[id(lane[2])] for lane in lanes], len(shown), count),
            **({} if self._buckets else {"positions": positions}),
        }
        tensors = {name: ov.Tensor(array) for name, array in arrays.items()}
        for number, name in self._names():
            if is_new:
                tensors[f"self_{name}"] = self._self.empty(len(lanes))
                tensors[f"cross_{name}"] = self._encoder.get_tensor(name)
            else:
                tensors[f"self_{name}"] = self._self.tensor(number, 0, len(lanes))
                tensors[f"cross_{name}"] = self._cross.tensor(number, 0, len(shown))
        _infer(self._decoder, tensors)
        self._slots.fit(num_decoded=max(lengths) + count)
        for number, name in self._names():
            bits = self._self.bits(self._decoder.get_tensor(f"new_{name}"))
            self._self.write_all(number, rows, lengths, bits)
        computed, offset = np.array(self._decoder.get_tensor("logits").data), 0
        for part, chosen in zip(parts, selected, strict=True):
            part.slot.num_decoded += count
            if chosen:
                logits[part.index] = computed[offset : offset + len(chosen)]
                offset += len(chosen)

    def _names(self) -> Iterable[tuple[int, str]]:
        """Iterate over the tables: their numbers, and their names in the graphs."""
        for number in range(2 * self._spec.decoder_layers):
            yield number, f"{PARTS[number % 2]}.{number // 2}"

    def _seen(self, positions: Array, lengths: Sequence[int], cells: int) -> Array:
        """Return the input of that name: `cells` earlier tokens, then the new ones."""
        num_rows, count = positions.shape
        earlier = np.arange(cells)[None, None, :] < np.array(lengths)[:, None, None]
        new = np.tril(np.ones((count, count), bool))[None]
        is_seen = np.concatenate(
            [
                np.broadcast_to(earlier, (num_rows, count, cells)),
                np.broadcast_to(new, (num_rows, count, count)),
            ],
            2,
        )
        if not self._buckets:
            return np.where(is_seen, np.float32(0), MASKED)[:, None]
        keys = np.concatenate([np.broadcast_to(np.arange(cells), (num_rows, cells)), positions], 1)
        distances = self._rows_of_distances(positions, keys, is_causal=True)
        return np.where(is_seen, distances, np.int32(self._spec.num_buckets))

    def _rows_of_distances(self, queries: Array, keys: Array, *, is_causal: bool) -> Array:
        table, first = self._buckets[is_causal], self._spec.max_positions - 1
        distances = keys[..., None, :] - queries[..., :, None]
        rows: Array = table[np.clip(distances + first, 0, len(table) - 1)]
        return rows


def _groups(starting: list[_Part]) -> Iterable[list[_Part]]:
    """Iterate over groups of prompts of similar lengths, and of as many tokens behind them."""
    rest = sorted(starting, key=lambda part: (len(part.tokens), len(part.slot.prompt)))
    while rest:
        group, total = [rest[0]], len(rest[0].slot.prompt)
        for part in rest[1:]:
            length = len(part.slot.prompt)
            is_alike = len(part.tokens) == len(group[0].tokens)
            if not is_alike or (len(group) + 1) * length > _MAX_PADDING * (total + length):
                break
            group.append(part)
            total += length
        yield group
        rest = rest[len(group) :]


def _selected(parts: Sequence[_Part], rows: Sequence[int], count: int) -> list[list[int]]:
    """Return the tokens of a step with `count` tokens a row whose logits each part needs."""
    number_of = {row: number for number, row in enumerate(rows)}
    selected = []
    for part in parts:
        begin = 0 if part.row.parents else count - part.row.num_logits
        numbers = [number_of[row] for row, _ in part.lanes]
        selected.append([n * count + offset for n in numbers for offset in range(begin, count)])
    return selected


def _infer(request: Any, tensors: Mapping[str, Any]) -> None:
    for name, tensor in tensors.items():
        request.set_tensor(name, tensor)
    try:
        request.infer()
    except RuntimeError as error:
        raise ServingError(f"openvino failed in a step: {error}") from error
