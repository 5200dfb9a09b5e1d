"""Placement of a layer's experts on ranks, by how many tokens each got: decisions alone.

A layer is computed when its most loaded rank is, so that rank should have as little as possible.
The hottest experts get copies; then experts go to the ranks with the least load, the hottest first.
"""

import heapq
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.models.expert_block import HeldExperts
from mindspore_serving.llm.parallel.shards import Shard

EVEN = 1.02  # times the load of the most loaded rank up to which fewer copies are taken

Placement: TypeAlias = list[tuple[int, ...]]
"""Ranks that have each expert.  They take its tokens in turn, in this order."""


def assign_experts(counts: Sequence[int], num_ranks: int, spare: int = 0) -> Placement:
    """Return which ranks have which expert of a layer whose experts got `counts` tokens.

    A rank has its part of the number of experts, and room for `spare` more: copies of experts that
    other ranks have as well.  There are as few copies as make the ranks about as even as more do.
    """
    size = len(counts)
    rooms = [min(size, Shard(rank, num_ranks).of(size).count + spare) for rank in range(num_ranks)]
    num_spare = sum(rooms) - size
    numbers = {0, num_spare, *(1 << power for power in range(num_spare.bit_length()))}
    tried = [_assign(counts, _copies(counts, num_ranks, each), rooms) for each in sorted(numbers)]
    peaks = [rank_loads(placement, counts, num_ranks).max() for placement in tried]
    limit = EVEN * min(peaks)
    return next(each for each, peak in zip(tried, peaks, strict=True) if peak <= limit)


def _assign(counts: Sequence[int], copies: Sequence[int], rooms: Sequence[int]) -> Placement:
    """Return ranks with `rooms` for the `copies` of each expert, fewer where too few have room."""
    left, loads = list(rooms), [0.0] * len(rooms)
    placement: Placement = [()] * len(counts)
    for expert in sorted(range(len(counts)), key=lambda expert: -counts[expert] / copies[expert]):
        free = [rank for rank, room in enumerate(left) if room]
        ranks = sorted(free, key=lambda rank: (loads[rank], -left[rank]))[: copies[expert]]
        for rank in ranks:
            loads[rank] += counts[expert] / len(ranks)
            left[rank] -= 1
        placement[expert] = tuple(ranks)
    return placement


def _copies(counts: Sequence[int], num_ranks: int, num_more: int) -> list[int]:
    """Return the number of copies of each expert, `num_more` than one if there are so many.

    Each is one of the expert that has the most tokens for each of its copies.
    """
    copies = [1] * len(counts)
    hottest: list[tuple[float, int]]
    hottest = [(-count, expert) for expert, count in enumerate(counts) if count and num_ranks > 1]
    heapq.heapify(hottest)
    for _ in range(num_more):
        if not hottest:
            break
        _, expert = hottest[0]
        copies[expert] += 1
        if copies[expert] == num_ranks:
            heapq.heappop(hottest)
        else:
            heapq.heapreplace(hottest, (-counts[expert] / copies[expert], expert))
    return copies


def rank_loads(
    placement: Placement, counts: Sequence[int], num_ranks: int
) -> npt.NDArray[np.float64]:
    """Return the tokens of experts that each rank computes, [num_ranks]."""
    loads = np.zeros(num_ranks)
    for ranks, count in zip(placement, counts, strict=True):
        loads[list(ranks)] += count / len(ranks)
    return loads


def held_by(rank: int, placement: Placement) -> HeldExperts:
    """Return the experts that a rank has, and which of their tokens it computes."""
    numbers = [expert for expert, ranks in enumerate(placement) if rank in ranks]
    copies = np.array([len(ranks) for ranks in placement], np.int32)
    indices = np.full((len(placement), copies.max()), -1, np.int32)
    for index, expert in enumerate(numbers):
        indices[expert, placement[expert].index(rank)] = index
    return HeldExperts(tuple(numbers), copies, indices)
