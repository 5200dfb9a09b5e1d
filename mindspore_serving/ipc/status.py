"""What a worker runs now, in shared memory: the master reads it at any time, also while a stage
holds the worker's interpreter, and when the worker is dead.

Each thread that runs work of requests has a lane: when it began, which stage, the ids of the items.
"""

import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

NUM_LANES = 2
STAGES, STEPS = range(NUM_LANES)  # the thread that runs stages, and a language model's engine
_LENGTH = 1024  # numbers of 8 bytes in a lane: when, stage, count, ids
_SINCE, _STAGE, _COUNT, _IDS = range(4)
MOST_IDS = _LENGTH - _IDS
SIZE = NUM_LANES * _LENGTH * 8


class Lane:
    """The writing end of one lane, for one thread.  `memory` are the SIZE bytes of all lanes."""

    def __init__(self, memory: memoryview, number: int) -> None:
        self._memory = memory
        self._start = number * _LENGTH * 8

    def begin(self, stage: int, ids: Sequence[int]) -> None:
        """Stage `stage` begins, counted from 0, with the items `ids`."""
        count, now = len(ids), time.monotonic_ns()
        if count > MOST_IDS:
            ids = ()
        form = f"{len(ids) + _IDS}q"
        struct.pack_into(form, self._memory, self._start, now, stage, count, *ids)

    def end(self) -> None:
        """Nothing runs."""
        struct.pack_into("q", self._memory, self._start, 0)


@dataclass(frozen=True, slots=True)
class Running:
    """What a thread of a worker runs: `ids` of items, or None for any that the worker has."""

    lane: int
    since: float  # by `time.monotonic`, which is one clock for all processes of a machine
    stage: int
    ids: frozenset[int] | None


def read(memory: memoryview) -> Iterator[Running]:
    """What runs, by the SIZE bytes that the lanes of a worker write."""
    numbers = memory.cast("q")
    for lane in range(NUM_LANES):
        own = numbers[lane * _LENGTH : (lane + 1) * _LENGTH].tolist()
        if own[_SINCE]:
            count = own[_COUNT]
            ids = frozenset(own[_IDS : _IDS + count]) if count <= MOST_IDS else None
            yield Running(lane, own[_SINCE] / 1e9, own[_STAGE], ids)
