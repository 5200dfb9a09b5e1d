"""Batch-invariant attention: a token's result does not depend on other tokens, to the bit.

Queries are cut into tiles by their positions, and so are keys: a tile of queries has the same shape
and the same order of sums however its sequence is cut into steps.  A tile of keys that a query does
not see adds exactly zero to it.  On a CPU, in float32.

    keys:     0 ... 127 | 128 ... 255 | ...     tiles of KEYS positions
    queries:  0 ... 7 | 8 ... 15 | ...          tiles of QUERIES positions; those that the
                                                step does not compute are padding
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
    """An `AttentionPath` whose tiles do not depend on the step."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    def plan(self, layout: Layout) -> AttentionPlan:
        tiles = [tile for span in layout.spans for tile in _tiles(span)]
        tiles.sort(key=lambda tile: -tile.base)  # tiles that see a tile of keys are a prefix
        ends = np.array([tile.end for tile in tiles])
        starts = range(0, int(ends.max()), KEYS)
        counts = tuple((start, int((ends > start).sum())) for start in starts)

        def attention(arrays: Sequence[torch.Tensor]) -> Invariant:
            tokens, query_of_token, bases, tables = arrays
            return Invariant(tokens, query_of_token, bases, tables, counts, self._block_size)

        return AttentionPlan(_arrays(tiles), attention)

    def decoding(self, rows: torch.Tensor) -> Attention:
        raise RuntimeError("this attention is for CPUs, and graphs are for CUDA")


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries at positions `base` .. `base + QUERIES - 1` of a sequence.

    The step computes `begin` .. `end - 1`; they are its tokens from `token` on.
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
    """Return the arrays of `Invariant`: tokens, query_of_token, bases and tables.

    A query that the step does not compute has token 0.
    """
    tokens = np.zeros((len(tiles), QUERIES), np.int64)
    query_of_token = np.zeros(sum(tile.end - tile.begin for tile in tiles), np.int64)
    for index, tile in enumerate(tiles):
        count, first = tile.end - tile.begin, tile.begin - tile.base
        span_tokens = np.arange(tile.token, tile.token + count)
        tokens[index, first : first + count] = span_tokens
        query_of_token[span_tokens] = np.arange(count) + index * QUERIES + first
    bases = np.array([tile.base for tile in tiles])
    return [tokens, query_of_token, bases, block_tables([tile.span for tile in tiles])]


@dataclass(slots=True)
class RunningSums:
    """Running softmax of each query over the keys so far (online softmax).

    The largest score, the sum of the weights relative to it, and the weighted sum of the values;
    each [tiles, kv_heads, rows, 1 or head_dim].
    """

    best: torch.Tensor
    shares: torch.Tensor
    values: torch.Tensor

    def add(self, count: int, scores: torch.Tensor, values: torch.Tensor) -> None:
        """Add keys with `scores` and `values` to the first `count` tiles."""
        best = torch.maximum(self.best[:count], scores.amax(-1, keepdim=True))
        base = best.masked_fill(best == -torch.inf, 0.0)  # no key was visible yet
        shares, kept = torch.exp(scores - base), torch.exp(self.best[:count] - base)
        self.best[:count] = best
        self.shares[:count] = self.shares[:count] * kept + shares.sum(-1, keepdim=True)
        self.values[:count] = self.values[:count] * kept + shares @ values


@dataclass(frozen=True, slots=True)
class Invariant:
    """An `Attention` over tiles.

    `counts` has for each tile of keys its first position and the number of tiles that see it.
    """

    tokens: torch.Tensor  # [tiles, QUERIES]
    query_of_token: torch.Tensor  # [T], index among the queries of all tiles
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
            tile_keys, tile_values = (
                x.flatten(0, 1)[slots].transpose(1, 2).float() for x in (keys, values)
            )
            scores = self._scores(queries[:count] @ tile_keys.transpose(2, 3), start, spec)
            sums.add(count, scores, tile_values)
        out = (sums.values / sums.shares).view(
            len(queries), spec.num_kv_heads, -1, QUERIES, spec.head_dim
        )
        flat = out.permute(0, 3, 1, 2, 4).reshape(len(queries) * QUERIES, -1)
        return flat[self.query_of_token]

    def _queries(self, q: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
        """Return the queries, [tiles, kv_heads, heads of each * QUERIES, head_dim]."""
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
        """Return the cache slots of a tile of keys, [count, KEYS].

        Beyond a table's end, where every key is masked, its last slot is repeated.
        """
        slots = self._slots.get(start)
        if slots is None:
            last = self.tables.shape[1] * self.block_size - 1
            positions = torch.arange(start, start + KEYS).clamp(max=last)
            blocks = self.tables[:count, positions // self.block_size]
            slots = self._slots[start] = blocks * self.block_size + positions % self.block_size
        return slots

    def _scores(self, scores: torch.Tensor, start: int, spec: AttentionSpec) -> torch.Tensor:
        """Scale the scores, and set those of masked keys to -inf."""
        bases = self.bases[: len(scores)]
        positions = bases[:, None, None] + torch.arange(QUERIES)[:, None]
        distances = (positions - torch.arange(start, start + KEYS))[:, None, None]
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
