"""Attention whose result for a token does not depend on the other tokens of the step, to the bit.

Queries are cut into tiles by their positions, and keys as well: a tile of queries has the same
shape and the same order of sums wherever its sequence is cut into steps.  A tile of keys that a
query does not see adds exactly nothing to it.  On a CPU, in float32.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from mindspore_serving.llm.models.ops import AttentionSpec
from mindspore_serving.llm.runtimes.layout import Indices, Layout, TokenSpan
from mindspore_serving.llm.runtimes.torch.attention import (
    Attention,
    AttentionPlan,
    alibi_slopes,
    block_tables,
)

QUERIES = 8  # positions of a tile of queries
KEYS = 128  # positions of a tile of keys


class InvariantPath:
    """An `AttentionPath`."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    def plan(self, layout: Layout) -> AttentionPlan:
        tiles = [tile for span in layout.spans for tile in _tiles(span)]
        tiles.sort(key=lambda tile: -tile.base)  # those that see a tile of keys come first
        ends = np.array([tile.end for tile in tiles])
        starts = range(0, int(ends.max()), KEYS)
        counts = tuple((start, int((ends > start).sum())) for start in starts)

        def attention(arrays: Sequence[torch.Tensor]) -> Invariant:
            tokens, places, bases, tables = arrays
            return Invariant(tokens, places, bases, tables, counts, self._block_size)

        return AttentionPlan(_arrays(tiles), attention)

    def decoding(self, rows: torch.Tensor) -> Attention:
        raise RuntimeError("steps are graphs on CUDA alone, and this attention is for CPUs")


@dataclass(frozen=True, slots=True)
class Tile:
    """The queries at `base` .. `base + QUERIES - 1`, of which the step computes
    `begin` .. `end - 1`; they are the step's tokens from `token` on.
    """

    span: TokenSpan
    base: int
    begin: int
    end: int
    token: int


def _tiles(span: TokenSpan) -> Iterator[Tile]:
    for base in range(span.start // QUERIES * QUERIES, span.length, QUERIES):
        begin, end = max(base, span.start), min(base + QUERIES, span.length)
        yield Tile(span, base, begin, end, span.begin + begin - span.start)


def _arrays(tiles: Sequence[Tile]) -> list[Indices]:
    """Token of each query of each tile, 0 if it is not in the step; place of each token among
    those; position of each tile; blocks of its sequence.
    """
    tokens = np.zeros((len(tiles), QUERIES), np.int64)
    places = np.zeros(sum(tile.end - tile.begin for tile in tiles), np.int64)
    for index, tile in enumerate(tiles):
        count, first = tile.end - tile.begin, tile.begin - tile.base
        own = np.arange(tile.token, tile.token + count)
        tokens[index, first : first + count] = own
        places[own] = np.arange(count) + index * QUERIES + first
    bases = np.array([tile.base for tile in tiles])
    return [tokens, places, bases, block_tables([tile.span for tile in tiles])]


@dataclass(slots=True)
class RunningSums:
    """Of the keys so far, for each query: the largest score, the sum of the shares relative to it,
    and of the values by their shares.  [tiles, kv_heads, rows, 1 or head_dim].
    """

    best: torch.Tensor
    shares: torch.Tensor
    values: torch.Tensor

    def add(self, count: int, scores: torch.Tensor, values: torch.Tensor) -> None:
        """Keys with `scores` and `values`, to the first `count` tiles."""
        best = torch.maximum(self.best[:count], scores.amax(-1, keepdim=True))
        base = best.masked_fill(best == -torch.inf, 0.0)  # nothing is seen yet
        shares, kept = torch.exp(scores - base), torch.exp(self.best[:count] - base)
        self.best[:count] = best
        self.shares[:count] = self.shares[:count] * kept + shares.sum(-1, keepdim=True)
        self.values[:count] = self.values[:count] * kept + shares @ values


@dataclass(frozen=True, slots=True)
class Invariant:
    """An `Attention`; `counts` are (first position, how many of the tiles see it) of each tile of
    keys.
    """

    tokens: torch.Tensor  # [tiles, QUERIES]
    places: torch.Tensor  # [T]
    bases: torch.Tensor  # [tiles]
    tables: torch.Tensor  # [tiles, blocks]
    counts: tuple[tuple[int, int], ...]
    block_size: int
    _slots: dict[int, torch.Tensor] = field(default_factory=dict)  # by first position

    def attend(
        self, keys: torch.Tensor, values: torch.Tensor, q: torch.Tensor, spec: AttentionSpec,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        queries = self._queries(q, spec)
        sums = self._begin(queries, sinks)
        for start, count in self.counts:
            slots = self._slots_of(start, count)
            own, their = (x.flatten(0, 1)[slots].transpose(1, 2).float() for x in (keys, values))
            scores = self._scores(queries[:count] @ own.transpose(2, 3), start, spec)
            sums.add(count, scores, their)
        out = (sums.values / sums.shares).view(
            len(queries), spec.num_kv_heads, -1, QUERIES, spec.head_dim
        )
        return out.permute(0, 3, 1, 2, 4).reshape(len(queries) * QUERIES, -1)[self.places]

    def _queries(self, q: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
        """[tiles, kv_heads, heads of each * QUERIES, head_dim]"""
        heads = q[self.tokens].unflatten(-1, (spec.num_kv_heads, -1, spec.head_dim))
        return heads.permute(0, 2, 3, 1, 4).flatten(2, 3)

    @staticmethod
    def _begin(queries: torch.Tensor, sinks: torch.Tensor | None) -> RunningSums:
        column = queries[..., :1]
        if sinks is None:
            best, shares = torch.full_like(column, -torch.inf), torch.zeros_like(column)
        else:
            each = sinks.float().view(queries.shape[1], -1, 1).expand(-1, -1, QUERIES)
            best = each.flatten(1)[None, :, :, None].repeat(len(queries), 1, 1, 1)
            shares = torch.ones_like(column)
        return RunningSums(best, shares, torch.zeros_like(queries))

    def _slots_of(self, start: int, count: int) -> torch.Tensor:
        """[count, KEYS]; beyond a table's end, where nothing is seen, its last slot."""
        slots = self._slots.get(start)
        if slots is None:
            last = self.tables.shape[1] * self.block_size - 1
            positions = torch.arange(start, start + KEYS).clamp(max=last)
            blocks = self.tables[:count, positions // self.block_size]
            slots = self._slots[start] = blocks * self.block_size + positions % self.block_size
        return slots

    def _scores(self, scores: torch.Tensor, start: int, spec: AttentionSpec) -> torch.Tensor:
        """Scaled, and -inf where a query does not see a key."""
        bases = self.bases[: len(scores)]
        places = bases[:, None, None] + torch.arange(QUERIES)[:, None]
        distances = (places - torch.arange(start, start + KEYS))[:, None, None]
        is_hidden = distances < 0
        if spec.window:
            is_hidden = is_hidden | (distances >= spec.window)
        scores = scores.unflatten(2, (-1, QUERIES)) * spec.scale
        if spec.softcap:
            scores = torch.tanh(scores / spec.softcap) * spec.softcap
        if spec.alibi is not None:
            slopes = alibi_slopes(spec.alibi, scores.device).view(spec.num_kv_heads, -1, 1, 1)
            scores = scores - slopes * distances
        return scores.masked_fill(is_hidden, -torch.inf).flatten(2, 3)
