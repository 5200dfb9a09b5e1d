"""Keys and values in blocks, and the packing of a step's sequences into calls of a dense graph.

Plain arrays.  Knows the shapes of the graph's inputs, and no MindSpore.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.runtimes.layout import Indices, Layout, TokenSpan
from mindspore_serving.llm.runtimes.pages import in_pages, release_rows

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
HIDDEN = np.float32(-1e30)  # added to the score of a masked key


@dataclass(frozen=True, slots=True)
class GraphCall:
    """Sequences of a call, padded to S = `width` new tokens, and `padding` more rows."""

    spans: tuple[TokenSpan, ...]
    width: int
    padding: int = 0

    @property
    def rows(self) -> tuple[TokenSpan, ...]:
        """Sequences with the padding, [B]."""
        return self.spans + self.spans[-1:] * self.padding

    @property
    def tokens(self) -> Indices:
        """Index of the step's token at each position, [B, S]; padding repeats the last token."""
        counts = np.array([span.end - span.begin for span in self.rows])
        begins = np.array([span.begin for span in self.rows])
        offsets = np.minimum(np.arange(self.width), counts[:, None] - 1)
        tokens: Indices = begins[:, None] + offsets
        return tokens

    def pick(self, values: I32 | F32) -> I32 | F32:
        """Return the call's values, [B, S, ...], of a step's `values` per token, [tokens, ...]."""
        picked: I32 | F32 = values[self.tokens]
        return picked

    def locate(self, rows: Indices) -> tuple[I32, Indices]:
        """Return where this call's tokens of `rows` are, and their indices in `rows`.

        `rows` are ascending indices of the step's tokens; a token is at sequence * S + offset of
        the call.
        """
        positions, indices = [], []
        for index, span in enumerate(self.spans):
            low, high = np.searchsorted(rows, (span.begin, span.end))
            positions.append(rows[low:high] - span.begin + index * self.width)
            indices.append(np.arange(low, high))
        return np.concatenate(positions).astype(np.int32), np.concatenate(indices)

    def blocks(self, block_size: int) -> Indices:
        """Return the blocks of each sequence's past, [B, M]; padding is block 0, which is masked.

        M is at least 1, as operators refuse empty inputs.
        """
        counts = [-(-span.start // block_size) for span in self.rows]
        table = np.zeros((len(self.rows), max(1, *counts)), np.int64)
        for row, span, count in zip(table, self.rows, counts, strict=True):
            row[:count] = span.blocks[:count]
        return table

    def mask(self, block_size: int, window: int) -> F32:
        """Return what is added to the scores, [B, S, T + S]: 0 or `HIDDEN`.  `window` 0 is none."""
        length = self.blocks(block_size).shape[1] * block_size
        starts = np.array([span.start for span in self.rows])[:, None]
        new = starts + np.arange(self.width)  # [B, S] positions
        past = np.broadcast_to(np.arange(length), (len(starts), length))
        keys = np.concatenate([np.where(past < starts, past, np.iinfo(np.int64).max), new], 1)
        distances = new[:, :, None] - keys[:, None]
        is_hidden = distances < 0
        if window:
            is_hidden |= distances >= window
        return np.where(is_hidden, HIDDEN, np.float32(0))


def calls(layout: Layout) -> Iterable[GraphCall]:
    """Group the sequences of `layout` into calls.

    All that decode are one call, and the others are grouped by the power of two above their number
    of new tokens, so that less than half of a call is padding.
    """
    by_size: defaultdict[int, list[TokenSpan]] = defaultdict(list)
    for span in layout.spans:
        by_size[(span.end - span.begin - 1).bit_length()].append(span)
    for _, spans in sorted(by_size.items()):
        yield GraphCall(tuple(spans), max(span.end - span.begin for span in spans))


class BlockCache:
    """Keys and values of every layer, [kv_heads, num_blocks, block_size, head_dim] each.

    Heads come first, so that gathered blocks can be multiplied without a transposition.
    """

    def __init__(self, spec: ModelSpec, num_blocks: int, block_size: int) -> None:
        shape = (len(spec.layers), spec.num_kv_heads, num_blocks, block_size, spec.head_dim)
        self._sides = [in_pages(shape, np.float32), in_pages(shape, np.float32)]

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (from, to); all are read before any is written."""
        source, target = np.array(copies).T
        for side in self._sides:
            side[:, :, target] = side[:, :, source]

    def gather(self, table: Indices) -> list[F32]:
        """Return each layer's keys and values, [kv_heads, B, T, head_dim], of blocks [B, M]."""
        batch, count = table.shape
        gathered = []
        for layer in zip(*self._sides, strict=True):
            for side in layer:
                heads, _, size, dim = side.shape
                blocks = side.take(table.reshape(-1), axis=1)
                gathered.append(blocks.reshape(heads, batch, count * size, dim))
        return gathered

    def write(self, slots: Indices, call: GraphCall, keys: F32, values: F32) -> None:
        """Write a call's new keys and values to `slots` of its step.

        Both are [layers, kv_heads, B, S, head_dim].
        """
        counts = [span.end - span.begin for span in call.spans] + [0] * call.padding
        is_token = np.arange(call.width) < np.array(counts)[:, None]  # [B, S], no padding
        to: npt.NDArray[Any] = slots[call.tokens[is_token]]
        for side, new in zip(self._sides, (keys, values), strict=True):
            layers, heads, blocks, size, dim = side.shape
            side.reshape(layers, heads, blocks * size, dim)[:, :, to] = new[:, :, is_token]

    def release(self, blocks: Sequence[int]) -> None:
        """Return the memory of `blocks` to the system."""
        for side in self._sides:
            num_heads, num_blocks = side.shape[0] * side.shape[1], side.shape[2]
            rows = [head * num_blocks + block for head in range(num_heads) for block in blocks]
            release_rows(side, rows, num_heads * num_blocks)

    def clear(self) -> None:
        self._sides.clear()
