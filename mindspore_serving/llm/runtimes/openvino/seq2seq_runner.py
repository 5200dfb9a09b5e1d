"""Runner of models with an encoder and a decoder, for the engine that runs decoders.

A cache block holds a whole sequence: the cross keys and values of its prompt, and the keys and
values of its answer.  A step encodes the prompts that are complete, together as far as their
lengths are alike, computes the first tokens of their answers, and then a token of each other
answer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
from mindspore_serving.llm.runtimes.openvino.row_tables import RowTables
from mindspore_serving.llm.runtimes.openvino.seq2seq_graphs import MASKED, PARTS, Seq2SeqGraphs
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from mindspore_serving.llm.step import CacheMemory, Logits, Row, Step

Array: TypeAlias = npt.NDArray[Any]

_MEMORY_PART = 0.12  # of the memory, for keys and values
_MAX_PADDING = 1.5  # tokens of prompts that are encoded together, with padding, by those without


@dataclass(slots=True)
class _Slot:
    """A sequence: its row of the tables, and how many cells of it are used."""

    row: int
    prompt: list[int] = field(default_factory=list)
    num_encoded: int = 0  # tokens of the prompt, once their cross keys and values are there
    num_decoded: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """Row `index` of a step, with its slot; `tokens` are those behind the prompt."""

    index: int
    row: Row
    slot: _Slot
    tokens: Sequence[int]


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

    `max_prompt_len` and `max_answer_len` are limits of their own beside `max_model_len`, and
    `answer_start` are the first tokens of the decoder, which belong to no answer.
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
        self.max_prompt_len = spec.max_positions
        self.max_answer_len = spec.max_positions - len(spec.start)
        self.max_model_len = self.block_size = 2 * spec.max_positions
        token_bytes = spec.token_bytes // (2 if options.precision == "bf16" else 1)
        block_bytes = token_bytes * self.block_size
        budget = config.kv_cache_memory or int(read_main_memory().total * _MEMORY_PART)
        self.num_blocks = max(1, min(config.max_num_seqs, budget // block_bytes))
        self.cache_memory = CacheMemory(block_bytes, reason="tables of keys and values by sequence")
        sizes = (options.precision, spec.decoder_heads, spec.head_width, spec.decoder_layers)
        self._self, self._cross = RowTables(*sizes), RowTables(*sizes)
        self._slots: dict[int, _Slot] = {}  # by block
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
            if len(row.blocks) != 1 or not 0 <= row.blocks[0] < self.num_blocks:
                raise ServingError(f"a row has blocks {list(row.blocks)}, expected one")
        for source, target in step.copies:
            self._copy(source, target)
        parts = [part for part in map(self._take, step.rows, range(len(step.rows))) if part.tokens]
        following = [part for part in parts if part.slot.num_encoded]
        logits: dict[int, Logits] = {}  # by the index of the row
        self._start([part for part in parts if not part.slot.num_encoded], logits)
        singles = [part for part in following if len(part.tokens) == 1]
        self._arrange([part.slot for part in singles])
        singles.sort(key=lambda part: part.slot.row)
        self._decode(singles, logits)
        for part in following:
            if len(part.tokens) > 1:
                self._decode([part], logits)
        if not logits:
            return np.empty((0, self.vocab_size), np.float32)
        return np.concatenate([logits[index] for index in sorted(logits)])

    def release_blocks(self, blocks: Sequence[int]) -> None:
        """Do nothing: tables are for all sequences together."""

    def close(self) -> None:
        """Free the model."""
        self._encoder = self._decoder = None
        self._slots, self._kept = {}, []

    def _take(self, row: Row, index: int) -> _Part:
        """Return what a row computes; its part of a prompt waits in its slot for the rest."""
        block = row.blocks[0]
        if row.start == 0:
            self._slots.pop(block, None)
        if block not in self._slots:
            self._slots[block] = _Slot(self._free_row())
        slot = self._slots[block]
        num_prompt = max(0, min(row.num_encoded - row.start, len(row.tokens)))
        slot.prompt += row.tokens[:num_prompt]
        return _Part(index, row, slot, row.tokens[num_prompt:])

    # --- rows of the tables -------------------------------------------------------------------

    def _free_row(self) -> int:
        used = {slot.row for slot in self._slots.values()}
        return next(row for row in range(self.num_blocks) if row not in used)

    def _copy(self, source: int, target: int) -> None:
        self._slots.pop(target, None)
        origin = self._slots[source]
        copied = self._slots[target] = _Slot(self._free_row(), origin.prompt[:])
        self._fit()
        copied.num_encoded, copied.num_decoded = origin.num_encoded, origin.num_decoded
        self._self.copy(origin.row, copied.row, origin.num_decoded)
        self._cross.copy(origin.row, copied.row, origin.num_encoded)

    def _fit(self, num_decoded: int = 0, num_encoded: int = 0) -> None:
        """Make room for all slots, and for rows of so many cells."""
        slots = self._slots.values()
        num_rows = 1 + max((slot.row for slot in slots), default=0)
        decoded = {slot.row: slot.num_decoded for slot in slots if slot.num_decoded}
        encoded = {slot.row: slot.num_encoded for slot in slots if slot.num_encoded}
        self._self.fit(num_rows, decoded, num_decoded)
        self._cross.fit(num_rows, encoded, num_encoded)

    def _arrange(self, slots: Sequence[_Slot]) -> None:
        """Move `slots` to the first rows."""
        moving = [slot for slot in slots if slot.row >= len(slots)]
        if not moving:
            return
        here = {id(slot) for slot in slots}
        by_row = {slot.row: slot for slot in self._slots.values()}
        free = (row for row in range(len(slots)) if id(by_row.get(row)) not in here)
        for slot, row in zip(moving, free, strict=True):
            other = by_row.get(row)
            for table, name in ((self._self, "num_decoded"), (self._cross, "num_encoded")):
                length = max(getattr(slot, name), getattr(other, name) if other else 0)
                table.swap(slot.row, row, length)
            if other is not None:
                other.row = slot.row
            slot.row = row

    # --- prompts ------------------------------------------------------------------------------

    def _start(self, starting: list[_Part], logits: dict[int, Logits]) -> None:
        """Encode complete prompts, and compute the first tokens of their answers."""
        for group in _groups(starting):
            shown = self._encode([part.slot.prompt for part in group])
            self._fit(num_encoded=shown.shape[-1])
            for number, name in self._names():
                bits = self._cross.bits(self._encoder.get_tensor(name))
                for part, row_bits in zip(group, bits, strict=True):
                    length = len(part.slot.prompt)
                    self._cross.write(number, part.slot.row, 0, row_bits[:, :length])
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
        """Compute a token of each of the first rows, or several of a single one."""
        if not parts:
            return
        self._fit(num_decoded=max(part.slot.num_decoded + len(part.tokens) for part in parts))
        shown = np.full((len(parts), 1, 1, self._cross.num_cells), MASKED, np.float32)
        for index, part in enumerate(parts):
            shown[index, ..., : part.slot.num_encoded] = 0
        self._compute(parts, logits, shown, is_new=False)

    def _compute(
        self, parts: list[_Part], logits: dict[int, Logits], shown: Array, *, is_new: bool
    ) -> None:
        """Run the decoder on rows with as many tokens each.

        Rows that are new read the encoder's results; the others, which are adjacent, the tables.
        """
        count = len(parts[0].tokens)
        cells = 0 if is_new else self._self.num_cells
        lengths = [part.slot.num_decoded for part in parts]
        positions = np.array(lengths, np.int32)[:, None] + np.arange(count, dtype=np.int32)
        selected = [
            index * count + offset
            for index, part in enumerate(parts)
            for offset in range(count - part.row.num_logits, count)
        ]
        arrays = {
            "ids": np.array([part.tokens for part in parts], np.int32),
            "shown": shown,
            "seen": self._seen(positions, lengths, cells),
            "rows": np.array(selected or [0], np.int32),
            **({} if self._buckets else {"positions": positions}),
        }
        tensors = {name: ov.Tensor(array) for name, array in arrays.items()}
        begin = parts[0].slot.row
        end = begin + len(parts)
        for number, name in self._names():
            if is_new:
                tensors[f"self_{name}"] = self._self.empty(len(parts))
                tensors[f"cross_{name}"] = self._encoder.get_tensor(name)
            else:
                tensors[f"self_{name}"] = self._self.tensor(number, begin, end)
                tensors[f"cross_{name}"] = self._cross.tensor(number, begin, end)
        _infer(self._decoder, tensors)
        self._fit(num_decoded=max(lengths) + count)
        rows = [part.slot.row for part in parts]
        for number, name in self._names():
            bits = self._self.bits(self._decoder.get_tensor(f"new_{name}"))
            self._self.write_all(number, rows, lengths, bits)
        computed, offset = np.array(self._decoder.get_tensor("logits").data), 0
        for part in parts:
            part.slot.num_decoded += count
            if part.row.num_logits:
                logits[part.index] = computed[offset : offset + part.row.num_logits]
                offset += part.row.num_logits

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


def _infer(request: Any, tensors: Mapping[str, Any]) -> None:
    for name, tensor in tensors.items():
        request.set_tensor(name, tensor)
    try:
        request.infer()
    except RuntimeError as error:
        raise ServingError(f"openvino failed in a step: {error}") from error
