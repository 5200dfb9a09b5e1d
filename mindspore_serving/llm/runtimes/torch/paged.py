"""Attention by `kernels`: which tokens are computed together, by how many programs."""

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

PROGRAMS_PER_PROCESSOR = 2  # that keep one of the device's multiprocessors busy
KEYS_OF_A_SPLIT = 256  # at least; merging costs more than fewer are worth
MOST_SPLITS = 32


@dataclass(frozen=True, slots=True)
class PagedPath:
    """An `AttentionPath`.  `num_processors` are the device's; a token has `group` rows in a tile,
    of which the largest have `most_rows`, in all layers.
    """

    block_size: int
    num_processors: int
    group: int
    most_rows: int

    @classmethod
    def of(
        cls, spec: AttentionSpec, dtype: torch.dtype, block_size: int, num_processors: int
    ) -> "PagedPath":
        """For layers shaped like `spec` that are computed in `dtype`."""
        rows = kernels.most_rows(spec, dtype)
        return cls(block_size, num_processors, kernels.padded_group(spec), rows)

    def plan(self, layout: Layout) -> AttentionPlan:
        """Sequences whose new tokens fit the smallest tile, and apart from them all others."""
        few: list[TokenSpan] = []
        many: list[TokenSpan] = []
        for span in layout.spans:
            is_few = (span.end - span.begin) * self.group <= self.least_rows
            (few if is_few else many).append(span)
        parts = [part for part in ((few, self.least_rows), (many, self.most_rows)) if part[0]]
        arrays = [
            array
            for spans, rows in parts
            for array in (_sequences(spans), _tiles(spans, rows // self.group))
        ]

        def attention(arrays: Sequence[torch.Tensor]) -> Paged:
            own = zip(parts, arrays[::2], arrays[1::2], strict=True)
            tiled = (
                (Tiles(sequences, tiles, rows), max(span.length for span in spans))
                for (spans, rows), sequences, tiles in own
            )
            return Paged(self, tuple(tiled))

        return AttentionPlan(arrays, attention)

    def decoding(self, rows: torch.Tensor) -> "Paged":
        sequences = torch.arange(len(rows), device=rows.device)
        tiles = torch.stack([sequences, torch.zeros_like(sequences)], 1)
        longest = (rows.shape[1] - TABLE) * self.block_size
        return Paged(self, ((Tiles(rows, tiles, self.least_rows), longest),))

    @property
    def least_rows(self) -> int:
        return max(MIN_SIDE, self.group)

    def num_splits(self, num_tiles: int, longest: int, spec: AttentionSpec) -> int:
        """Programs that share out the keys of each of `num_tiles`, of which the longest sequence
        has `longest`.
        """
        programs = num_tiles * spec.num_kv_heads
        keys = min(longest, spec.window) if spec.window else longest
        wanted = self.num_processors * PROGRAMS_PER_PROCESSOR // programs
        return max(1, min(wanted, -(-keys // KEYS_OF_A_SPLIT), MOST_SPLITS))


@dataclass(frozen=True, slots=True)
class Paged:
    """An `Attention`.  `parts`: tiles, and the length of their longest sequence."""

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
    """[tiles, 2], each of `num_tokens` new tokens at most."""
    return np.array(
        [
            (index, first)
            for index, span in enumerate(spans)
            for first in range(0, span.end - span.begin, num_tokens)
        ]
    )
