"""What a worker says of itself in shared memory: the master reads it at any time, also while a
stage holds the worker's interpreter, and when the worker is dead.

Each thread that runs work of requests has a lane: when it began, which stage, the ids of the parts.
Behind the lanes are a count of heartbeats, how much is loaded, what the process uses, and how large
the batches were.
"""

import os
import resource
import struct
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mindspore_serving.metrics.histogram import SIZES, Histogram

NUM_LANES = 2
STAGES, STEPS = range(NUM_LANES)  # the thread that runs stages, and a language model's engine
_LENGTH = 1024  # numbers of 8 bytes in a lane: when, stage, count, ids
_SINCE, _STAGE, _COUNT, _IDS = range(4)
MOST_IDS = _LENGTH - _IDS
_ANY = MOST_IDS + 1  # the count that stands for any parts
_BEATS = NUM_LANES * _LENGTH * 8
_LOADED = _BEATS + 8
_USAGE = _LOADED + 8
_BATCHES = _USAGE + 3 * 8  # a count for each bound of SIZES and above, and the sum
SIZE = _BATCHES + (len(SIZES) + 2) * 8
_NUMBERS = (SIZE - _USAGE) // 8
BEAT_SECONDS = 0.2  # between two heartbeats
USAGE_SECONDS = 1.0  # between two looks at what the process uses


_HEAD = struct.Struct("qqqq")  # with the first id
_REST = struct.Struct("qq")
_NUMBER = struct.Struct("q")


class Lane:
    """The writing end of one lane, for one thread.  `memory` are the SIZE bytes of all lanes; where
    there are none, nobody reads.
    """

    def __init__(self, memory: memoryview, number: int) -> None:
        self._memory = memory if len(memory) == SIZE else memoryview(bytearray(SIZE))
        self._start = number * _LENGTH * 8

    def begin(
        self, stage: int = 0, ids: Sequence[int] | None = None, since: float | None = None
    ) -> None:
        """Stage `stage` begins, counted from 0, with the parts `ids`; None for any.  `since` is now
        or a time by `time.monotonic`.
        """
        start = self._start
        now = time.monotonic_ns() if since is None else int(since * 1e9)
        if ids is None or len(ids) > MOST_IDS:
            _HEAD.pack_into(self._memory, start, now, stage, _ANY, 0)
        elif len(ids) == 1:
            _HEAD.pack_into(self._memory, start, now, stage, 1, ids[0])
        else:
            _REST.pack_into(self._memory, start + 8, stage, len(ids))
            struct.pack_into(f"{len(ids)}q", self._memory, start + _IDS * 8, *ids)
            _NUMBER.pack_into(self._memory, start, now)

    def end(self) -> None:
        """Nothing runs."""
        _NUMBER.pack_into(self._memory, self._start, 0)


@dataclass(frozen=True, slots=True)
class Running:
    """What a thread of a worker runs: `ids` of parts, or None for any that the worker has."""

    lane: int
    since: float  # by `time.monotonic`, which is one clock for all processes of a machine
    stage: int
    ids: frozenset[int] | None

    def has(self, part_id: int) -> bool:
        """Whether it may be at this part."""
        return self.ids is None or part_id in self.ids


def beat(memory: memoryview) -> None:
    """Count a heartbeat."""
    (count,) = struct.unpack_from("q", memory, _BEATS)
    struct.pack_into("q", memory, _BEATS, count + 1)


def beats(memory: memoryview) -> int | None:
    """The heartbeats that were counted; None where `memory` is not shared with the worker."""
    return struct.unpack_from("q", memory, _BEATS)[0] if len(memory) == SIZE else None


def set_loaded(memory: memoryview, share: float) -> None:
    """So much of the servable is loaded, from 0 to 1."""
    if len(memory) == SIZE:
        struct.pack_into("d", memory, _LOADED, share)


def loaded(memory: memoryview) -> float:
    """How much of the servable is loaded, from 0 to 1, as far as it is known."""
    found: float = struct.unpack_from("d", memory, _LOADED)[0] if len(memory) == SIZE else 0.0
    return found


class BatchSizes:
    """Counts the batches that one thread runs."""

    def __init__(self, memory: memoryview) -> None:
        memory = memory if len(memory) == SIZE else memoryview(bytearray(SIZE))
        self._numbers = memory[_BATCHES:].cast("q")  # a count for each bound and above, and the sum

    def observe(self, size: int) -> None:
        self._numbers[bisect_left(SIZES, size)] += 1
        self._numbers[-1] += size


def batch_sizes(memory: memoryview) -> Histogram:
    """How many batches of which size were run."""
    found = Histogram(SIZES)
    *counts, total = numbers(memory)[3:]
    found.add(total, counts)
    return found


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """What a process uses: seconds of processor time, bytes in RAM, open descriptors."""

    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    num_open_files: int = 0


def set_usage(memory: memoryview) -> None:
    """Write down what this process uses now."""
    times = os.times()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    num_open = len(os.listdir("/proc/self/fd")) - 1  # but for that of the directory
    microseconds = int((times.user + times.system) * 1e6)
    if len(memory) == SIZE:
        struct.pack_into(
            "3q", memory, _USAGE, microseconds, pages * resource.getpagesize(), num_open
        )


def usage(memory: memoryview) -> ProcessUsage:
    """What it wrote down last."""
    microseconds, resident_bytes, num_open_files = numbers(memory)[:3]
    return ProcessUsage(microseconds / 1e6, resident_bytes, num_open_files)


def numbers(memory: memoryview) -> list[int]:
    """Usage and sizes of batches, to be copied to another machine."""
    if len(memory) != SIZE:
        return [0] * _NUMBERS
    return list(struct.unpack_from(f"{_NUMBERS}q", memory, _USAGE))


def set_numbers(memory: memoryview, found: Sequence[int]) -> None:
    """Copy `numbers` from another machine.  Raises ValueError if they cannot be those."""
    if len(found) != _NUMBERS or not all(0 <= one < 1 << 63 for one in found):
        raise ValueError("it sent other numbers than were expected")
    struct.pack_into(f"{_NUMBERS}q", memory, _USAGE, *found)


def write(memory: memoryview, num_beats: int, running: Iterable[Running]) -> None:
    """Copy what the worker of another machine says of itself."""
    lanes = {one.lane: one for one in running}
    for number in range(NUM_LANES):
        lane, one = Lane(memory, number), lanes.get(number)
        if one is None:
            lane.end()
        else:
            lane.begin(one.stage, None if one.ids is None else sorted(one.ids), one.since)
    struct.pack_into("q", memory, _BEATS, num_beats)


def read(memory: memoryview) -> Iterator[Running]:
    """What runs, by the SIZE bytes that the lanes of a worker write."""
    if len(memory) != SIZE:
        return
    numbers = memory.cast("q")
    for lane in range(NUM_LANES):
        own = numbers[lane * _LENGTH : (lane + 1) * _LENGTH]
        since, stage, count = own[:_IDS].tolist()
        ids = frozenset(own[_IDS : _IDS + count]) if count <= MOST_IDS else None
        if since and since == own[_SINCE]:  # else it has changed meanwhile
            yield Running(lane, since / 1e9, stage, ids)
