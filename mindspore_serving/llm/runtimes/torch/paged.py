"""Attention by `kernels`: how tokens are tiled, and how many programs share a tile's keys."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mindspore_serving.llm.models.ops import AttentionSpec
from mindspore_serving.llm.runtimes.layout import Indices, Layout, TokenSpan
from mindspore_serving.llm.runtimes.torch import kernels
from mindspore_serving.llm.runtimes.torch.attention import (
    TABLE,
    AttentionPlan,
    alibi_slopes,
    block_tables,
)
from mindspore_serving.llm.runtimes.torch.kernels import MIN_SIDE, Tiles

PROGRAMS_PER_PROCESSOR = 2  # enough to keep a multiprocessor busy
MIN_KEYS_PER_SPLIT = 256  # with fewer, merging costs more than splitting saves
MAX_SPLITS = 32


@dataclass(frozen=True, slots=True)
class PagedPath:
    """An `AttentionPath` by Triton kernels.

    `num_processors` are the device's multiprocessors; a new token has `group` rows in a tile, and
    the largest tiles have `max_rows` rows, in all layers.
    """

    block_size: int
    num_processors: int
    group: int
    max_rows: int

    @classmethod
    def of(
        cls, spec: AttentionSpec, dtype: torch.dtype, block_size: int, num_processors: int
    ) -> "PagedPath":
        """Return the path for layers shaped like `spec` that are computed in `dtype`."""
        rows = kernels.max_rows(spec, dtype)
        return cls(block_size, num_processors, kernels.padded_group(spec), rows)

    def plan(self, layout: Layout) -> AttentionPlan:
        """Plan small tiles for sequences whose new tokens fit one, and large tiles for the rest."""
        few: list[TokenSpan] = []
        many: list[TokenSpan] = []
        for span in layout.spans:
            is_few = (span.end - span.begin) * self.group <= self.min_rows
            (few if is_few else many).append(span)
        parts = [part for part in ((few, self.min_rows), (many, self.max_rows)) if part[0]]
        arrays = [
            array
            for spans, rows in parts
            for array in (_sequences(spans), _tiles(spans, rows // self.group))
        ]

        def attention(arrays: Sequence[torch.Tensor]) -> Paged:
            tensors = zip(parts, arrays[::2], arrays[1::2], strict=True)
            tiled = (
                (Tiles(sequences, tiles, rows), max(span.length for span in spans))
                for (spans, rows), sequences, tiles in tensors
            )
            return Paged(self, tuple(tiled))

        return AttentionPlan(arrays, attention)

    def decoding(self, rows: torch.Tensor) -> "Paged":
        sequences = torch.arange(len(rows), device=rows.device)
        tiles = torch.stack([sequences, torch.zeros_like(sequences)], 1)
        longest = (rows.shape[1] - TABLE) * self.block_size
        return Paged(self, ((Tiles(rows, tiles, self.min_rows), longest),))

    @property
    def min_rows(self) -> int:
        return max(MIN_SIDE, self.group)

    def num_splits(self, num_tiles: int, longest: int, spec: AttentionSpec) -> int:
        """Return the number of programs that share the keys of each tile.

        `num_tiles` are those of the step, whose longest sequence has `longest` tokens.
        """
        programs = num_tiles * spec.num_kv_heads
        keys = min(longest, spec.window) if spec.window else longest
        to_fill_device = self.num_processors * PROGRAMS_PER_PROCESSOR // programs
        return max(1, min(to_fill_device, -(-keys // MIN_KEYS_PER_SPLIT), MAX_SPLITS))


@dataclass(frozen=True, slots=True)
class Paged:
    """An `Attention` by Triton kernels; `parts` are tiles and their longest sequence's length."""

    path: PagedPath
    parts: tuple[tuple[Tiles, int], ...]

    def attend(
        self, keys: torch.Tensor, values: torch.Tensor, q: torch.Tensor, spec: AttentionSpec,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        q = q.contiguous()
        out = torch.empty_like(q)
        slopes = None if spec.alibi is None else alibi_slopes(spec.alibi, q.device)
        for tiles, longest in self.parts:
            splits = self.path.num_splits(len(tiles.tiles), longest, spec)
            cache = (keys, values)
            kernels.attend(tiles, cache, q, out, spec=spec, slopes=slopes, num_splits=splits)
        return out


def _sequences(spans: Sequence[TokenSpan]) -> Indices:
    numbers = [(span.begin, span.end - span.begin, span.length) for span in spans]
    return np.concatenate([np.array(numbers), block_tables(spans)], 1)


def _tiles(spans: Sequence[TokenSpan], num_tokens: int) -> Indices:
    """Return tiles of at most `num_tokens` new tokens, [tiles, 2]."""
    return np.array(
        [
            (index, first)
            for index, span in enumerate(spans)
            for first in range(0, span.end - span.begin, num_tokens)
        ]
    )
