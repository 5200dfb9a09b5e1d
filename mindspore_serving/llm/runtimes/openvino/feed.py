"""Inputs of the compiled graph for a step, in buffers that are reused.

Setting a tensor of the request costs more than filling it, so buffers are kept by their sizes.  A
step that does not fit the cache is refused here: the kernel does not check.  Knows no model.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.checkpoint.weights import Gather
from mindspore_serving.llm.runtimes.layout import (
    RunnerLimits,
    check_copies,
    fits_slots,
    lay_out,
)
from mindspore_serving.llm.runtimes.openvino.attention import TYPES
from mindspore_serving.llm.runtimes.openvino.lora import ROWS, TOKENS
from mindspore_serving.llm.runtimes.openvino.nodes import ROPE_POSITIONS, USES_LONG_ROPE
from mindspore_serving.llm.runtimes.openvino.states import SLOTS_PER_ROW, STATE_INPUTS, fill
from mindspore_serving.llm.step import Features, Row, Step

Ints = npt.NDArray[np.int32]
Sizes = tuple[int, int, int, int]  # tokens, rows, capacity of block_indices, logits

MAX_KEPT = 256
FEATURES = ("features", "feature_rows")
MIN_BLOCK_INDICES = 64  # their capacity is a power of two, so that few sizes occur


@dataclass(frozen=True, slots=True)
class Buffers:
    """Input arrays of steps of the same sizes, and tensors over their memory."""

    arrays: dict[str, Ints]
    tensors: dict[str, Any]  # over the same memory

    @classmethod
    def of(cls, sizes: Sizes) -> "Buffers":
        """Allocate the buffers of steps of `sizes`."""
        tokens, rows, capacity, logits = sizes
        shapes: dict[str, tuple[int, ...]] = {
            "token_ids": (tokens,),
            "positions": (tokens,),
            "rows": (logits,),
            USES_LONG_ROPE: (tokens,),
            ROPE_POSITIONS: (tokens, 3),
            "past_lens": (rows,),
            "subsequence_begins": (rows + 1,),
            "block_indices": (capacity,),
            "block_indices_begins": (rows + 1,),
            "max_context_len": (),
            TYPES: (tokens,),
            "state_slots": (SLOTS_PER_ROW * rows,),
            "state_begins": (rows + 1,),
            "state_past": (rows,),
            "state_intervals": (rows,),
            TOKENS: (tokens, 1),
            ROWS: (logits, 1),
        }
        arrays = {name: np.zeros(shape, np.int32) for name, shape in shapes.items()}
        arrays["state_begins"][:] = np.arange(rows + 1) * SLOTS_PER_ROW
        tensors = {name: ov.Tensor(array, shared_memory=True) for name, array in arrays.items()}
        return cls(arrays, tensors)


class Feed:
    """Fills the inputs of `request`.

    `names` are the inputs of its graph; those in `gathered` are rows of tables by token.  `share`
    is that of `RankPart.share_features`.
    """

    def __init__(
        self, request: Any, names: Sequence[str], limits: RunnerLimits,
        gathered: Mapping[str, Gather] = MappingProxyType({}),
        share: Callable[[Features | None], Features | None] = lambda features: features,
    ) -> None:  # fmt: skip
        self.request = request
        self._gathered, self._share = gathered, share
        self._rows: list[npt.NDArray[np.float32]] = []  # of tables, which the request reads
        self._names = [name for name in names if name not in (*FEATURES, *gathered)]
        self._takes_features = FEATURES[0] in names
        self._has_features = True  # the request's features are not known to be empty
        self._is_adapted = TOKENS in names
        self._switches = USES_LONG_ROPE in names
        self._has_axes = ROPE_POSITIONS in names
        self._has_types = TYPES in names
        self._has_states = STATE_INPUTS[0] in names
        self._limits = limits
        self._kept: OrderedDict[Sizes, Buffers] = OrderedDict()
        self._current: Buffers | None = None

    def load(self, step: Step) -> None:
        """Set the inputs to `step`.  Raises ServingError before the request has changed."""
        lengths = [len(row.tokens) for row in step.rows]
        ends = [row.start + length for row, length in zip(step.rows, lengths, strict=True)]
        counts = [-(-end // self._limits.block_size) for end in ends]
        # Shapes are checked before packing, which relies on them; token ids and blocks after it,
        # as one comparison per packed array is cheaper than one per row.
        if not self._fit_limits(step.rows, lengths, ends, counts):
            self._refuse(step)
        capacity = max(MIN_BLOCK_INDICES, 1 << (sum(counts) - 1).bit_length())
        num_logits = sum(row.num_logits for row in step.rows)
        buffers = self._buffers((step.num_tokens, len(step.rows), capacity, num_logits))
        arrays = buffers.arrays
        arrays["token_ids"][:] = _joined((row.tokens for row in step.rows), step.num_tokens)
        blocks = arrays["block_indices"][: sum(counts)]
        used = (row.blocks[:count] for row, count in zip(step.rows, counts, strict=True))
        blocks[:] = _joined(used, len(blocks))
        if not self._are_in_range(arrays["token_ids"], blocks, ends):
            self._refuse(step)
        check_copies(step, self._limits.num_blocks)
        np.cumsum(counts, out=arrays["block_indices_begins"][1:])
        arrays["max_context_len"][...] = max(ends)
        self._fill_rows(arrays, step.rows, lengths)
        if self._has_axes:
            positions = step.rope_positions()
            arrays[ROPE_POSITIONS][:] = (
                arrays["positions"][:, None] if positions is None else positions
            )
        features = step.features() if self._takes_features or self._has_types else None
        if self._has_types:
            arrays[TYPES][:] = 0
            if features is not None:
                arrays[TYPES][features.positions] = 1
        self._set_tensors(buffers)
        self._set_gathered_rows(arrays["token_ids"])
        if self._takes_features:
            self._set_features(self._share(features))

    def _fit_limits(
        self, rows: Sequence[Row], lengths: list[int], ends: list[int], counts: list[int]
    ) -> bool:
        """Return whether there are rows, all within the limits; token ids are not checked."""
        limits = self._limits
        if not rows or not all(map(_is_shaped, rows, lengths, ends, counts)):
            return False
        if any(row.adapter and row.adapter not in limits.adapters for row in rows):
            return False
        return not self._has_states or all(fits_slots(row, limits.num_slots) for row in rows)

    def _fill_rows(self, arrays: dict[str, Ints], rows: Sequence[Row], lengths: list[int]) -> None:
        """Fill the inputs that describe rows: offsets, positions, logits, adapters and states."""
        logits = [row.num_logits for row in rows]
        arrays["past_lens"][:] = [row.start for row in rows]
        np.cumsum(lengths, out=arrays["subsequence_begins"][1:])
        _fill_positions(arrays, lengths)
        _fill_logits(arrays, logits)
        if self._switches:
            arrays[USES_LONG_ROPE][:] = np.repeat([row.uses_long_rope for row in rows], lengths)
        if self._is_adapted:
            adapters = [row.adapter for row in rows]
            arrays[TOKENS][:, 0] = np.repeat(adapters, lengths)
            arrays[ROWS][:, 0] = np.repeat(adapters, logits)
        if self._has_states:
            fill(arrays, rows, self._limits.num_slots)

    def _are_in_range(self, tokens: Ints, blocks: Ints, ends: Sequence[int]) -> bool:
        """Return whether lengths, tokens and blocks are in range.

        One comparison checks both ends of a range: a negative number is a large unsigned one.
        """
        limits = self._limits
        return bool(
            max(ends) <= limits.max_model_len
            and int(tokens.view(np.uint32).max()) < limits.vocab_size
            and int(blocks.view(np.uint32).max()) < limits.num_blocks
        )

    def _refuse(self, step: Step) -> None:
        lay_out(step, self._limits)  # checks row by row, and names the wrong one
        raise ServingError("a step has no rows")

    def _buffers(self, sizes: Sizes) -> Buffers:
        buffers = self._kept.get(sizes)
        if buffers is None:
            buffers = self._kept[sizes] = Buffers.of(sizes)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(sizes)
        return buffers

    def _set_tensors(self, buffers: Buffers) -> None:
        if buffers is not self._current:
            for name in self._names:
                self.request.set_tensor(name, buffers.tensors[name])
            self._current = buffers

    def _set_gathered_rows(self, tokens: Ints) -> None:
        self._rows = [gather(tokens) for gather in self._gathered.values()]
        for name, rows in zip(self._gathered, self._rows, strict=True):
            self.request.set_tensor(name, ov.Tensor(rows, shared_memory=True))

    def _set_features(self, features: Features | None) -> None:
        if features is None and not self._has_features:
            return
        self._has_features = features is not None
        width = self.request.get_compiled_model().input("features").get_partial_shape()[1]
        vectors = np.zeros((0, width.get_length()), np.float32)
        feature_rows = np.zeros(0, np.int32)
        if features is not None:
            vectors, feature_rows = features.vectors, features.positions.astype(np.int32)
        for name, array in zip(FEATURES, (vectors, feature_rows), strict=True):
            self.request.set_tensor(name, ov.Tensor(array))  # a copy


def _is_shaped(row: Row, length: int, end: int, count: int) -> bool:
    return (
        length > 0 and row.start >= 0 and 0 <= row.num_logits <= length and count <= len(row.blocks)
    )


def _joined(parts: Any, count: int) -> Ints:
    return np.fromiter(chain.from_iterable(parts), np.int32, count)


def _fill_positions(arrays: dict[str, Ints], lengths: Sequence[int]) -> None:
    starts = arrays["past_lens"]
    if len(starts) == len(arrays["positions"]):  # one token each
        arrays["positions"][:] = starts
        return
    shifts = starts - arrays["subsequence_begins"][:-1]
    arrays["positions"][:] = np.repeat(shifts, lengths)
    arrays["positions"][:] += np.arange(len(arrays["positions"]), dtype=np.int32)


def _fill_logits(arrays: dict[str, Ints], logits: Sequence[int]) -> None:
    """Fill `rows` with the indices of the last `logits` tokens of each sequence."""
    lasts = arrays["subsequence_begins"][1:]
    ends = np.cumsum(logits)
    shifts = np.repeat(lasts - ends, logits)
    arrays["rows"][:] = shifts + np.arange(len(arrays["rows"]))
