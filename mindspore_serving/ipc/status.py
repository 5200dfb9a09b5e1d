"""Status of a worker in shared memory, readable while a stage blocks it and after its death.

Each thread that runs requests has a lane: its start time, the stage, the ids of the parts.  The
lanes are followed by a count of heartbeats, the share that is loaded with a text, the resource
usage of the process and the histogram of batch sizes.
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
_LENGTH = 1024  # 8-byte counters per lane: start time, stage, count, ids
_SINCE, _STAGE, _COUNT, _IDS = range(4)
MAX_IDS = _LENGTH - _IDS
_ANY = MAX_IDS + 1  # count that stands for all parts of the worker
_BEATS = NUM_LANES * _LENGTH * 8
_LOADED = _BEATS + 8
_DOING, _MAX_DOING = _LOADED + 8, 192  # offset and bytes of the text
_USAGE = _DOING + _MAX_DOING
_BATCHES = _USAGE + 3 * 8  # a count for each bound of SIZES and above, and the sum
SIZE = _BATCHES + (len(SIZES) + 2) * 8
_NUM_COUNTERS = (SIZE - _USAGE) // 8
BEAT_SECONDS = 0.2  # interval of heartbeats
USAGE_SECONDS = 1.0  # interval at which the resource usage is written


_ENTRY = struct.Struct("qqqq")  # start time, stage, count, the only id
_STAGE_AND_COUNT = struct.Struct("qq")
_NUMBER = struct.Struct("q")


class Lane:
    """Writing end of one lane, for one thread.

    `memory` are the SIZE bytes of the status; with any other size, writes go to private memory.
    """

    def __init__(self, memory: memoryview, number: int) -> None:
        self._memory = memory if len(memory) == SIZE else memoryview(bytearray(SIZE))
        self._start = number * _LENGTH * 8

    def begin(
        self, stage: int = 0, ids: Sequence[int] | None = None, since: float | None = None
    ) -> None:
        """Write that stage number `stage` starts with the parts `ids`; None for all parts.

        `since` is the start time by `time.monotonic`, by default now.  The start time is written
        last if it takes several writes: `read` drops a lane whose start time changes while it
        reads.
        """
        start = self._start
        now = time.monotonic_ns() if since is None else int(since * 1e9)
        if ids is None or len(ids) > MAX_IDS:
            _ENTRY.pack_into(self._memory, start, now, stage, _ANY, 0)
        elif len(ids) == 1:
            _ENTRY.pack_into(self._memory, start, now, stage, 1, ids[0])
        else:
            _STAGE_AND_COUNT.pack_into(self._memory, start + 8, stage, len(ids))
            struct.pack_into(f"{len(ids)}q", self._memory, start + _IDS * 8, *ids)
            _NUMBER.pack_into(self._memory, start, now)

    def end(self) -> None:
        """Write that the thread is idle."""
        _NUMBER.pack_into(self._memory, self._start, 0)


@dataclass(frozen=True, slots=True)
class Running:
    """Stage that a thread of a worker runs, and the `ids` of its parts; None for all parts."""

    lane: int
    since: float  # by `time.monotonic`, which is one clock for all processes of a machine
    stage: int
    ids: frozenset[int] | None

    def has(self, part_id: int) -> bool:
        """Return whether the stage may be working on this part."""
        return self.ids is None or part_id in self.ids


def beat(memory: memoryview) -> None:
    """Count a heartbeat."""
    (count,) = struct.unpack_from("q", memory, _BEATS)
    struct.pack_into("q", memory, _BEATS, count + 1)


def beats(memory: memoryview) -> int | None:
    """Return the number of heartbeats; None if `memory` is not shared with the worker."""
    return struct.unpack_from("q", memory, _BEATS)[0] if len(memory) == SIZE else None


def set_loaded(memory: memoryview, share: float, doing: str = "") -> None:
    """Write the share of the servable that is loaded, from 0 to 1, and what is being done.

    Only the first 192 bytes of the text are kept.
    """
    if len(memory) == SIZE:
        text = doing.encode()[:_MAX_DOING]
        struct.pack_into(f"d{_MAX_DOING}s", memory, _LOADED, share, text)


def loaded(memory: memoryview) -> float:
    """Return the share of the servable that is loaded, from 0 to 1; 0 if unknown."""
    share: float = struct.unpack_from("d", memory, _LOADED)[0] if len(memory) == SIZE else 0.0
    return share


def loading_text(memory: memoryview) -> str:
    """Return what is being done to load the servable; "" if unknown."""
    if len(memory) != SIZE:
        return ""
    text = bytes(memory[_DOING:_USAGE]).rstrip(b"\0")
    return text.decode(errors="ignore")


class BatchSizes:
    """Counter of the batches that one thread runs, by size."""

    def __init__(self, memory: memoryview) -> None:
        memory = memory if len(memory) == SIZE else memoryview(bytearray(SIZE))
        self._numbers = memory[_BATCHES:].cast("q")  # a count for each bound and above, and the sum

    def observe(self, size: int) -> None:
        self._numbers[bisect_left(SIZES, size)] += 1
        self._numbers[-1] += size


def batch_sizes(memory: memoryview) -> Histogram:
    """Return the histogram of batch sizes."""
    histogram = Histogram(SIZES)
    *counts, total = counters(memory)[3:]
    histogram.add(total, counts)
    return histogram


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """Resource usage of a process: seconds of CPU time, bytes in RAM, open descriptors."""

    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    num_open_files: int = 0


def set_usage(memory: memoryview) -> None:
    """Write the current resource usage of this process."""
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
    """Return the resource usage that the worker wrote last."""
    microseconds, resident_bytes, num_open_files = counters(memory)[:3]
    return ProcessUsage(microseconds / 1e6, resident_bytes, num_open_files)


def counters(memory: memoryview) -> list[int]:
    """Return the resource usage and batch sizes as integers, for another machine."""
    if len(memory) != SIZE:
        return [0] * _NUM_COUNTERS
    return list(struct.unpack_from(f"{_NUM_COUNTERS}q", memory, _USAGE))


def set_counters(memory: memoryview, values: Sequence[int]) -> None:
    """Write the `counters` of another machine.

    Raises ValueError if their number or range is wrong.
    """
    if len(values) != _NUM_COUNTERS or not all(0 <= value < 1 << 63 for value in values):
        raise ValueError(f"it sent {len(values)} counters, expected {_NUM_COUNTERS} of 0 or more")
    struct.pack_into(f"{_NUM_COUNTERS}q", memory, _USAGE, *values)


def write(memory: memoryview, num_beats: int, running: Iterable[Running]) -> None:
    """Write the status of a worker on another machine."""
    running_in = {stage.lane: stage for stage in running}
    for number in range(NUM_LANES):
        lane, stage = Lane(memory, number), running_in.get(number)
        if stage is None:
            lane.end()
        else:
            lane.begin(stage.stage, None if stage.ids is None else sorted(stage.ids), stage.since)
    struct.pack_into("q", memory, _BEATS, num_beats)


def read(memory: memoryview) -> Iterator[Running]:
    """Iterate over what a worker's threads run, from the SIZE bytes of its status."""
    if len(memory) != SIZE:
        return
    words = memory.cast("q")
    for number in range(NUM_LANES):
        lane = words[number * _LENGTH : (number + 1) * _LENGTH]
        since, stage, count = lane[:_IDS].tolist()
        ids = frozenset(lane[_IDS : _IDS + count]) if count <= MAX_IDS else None
        if since and since == lane[_SINCE]:  # else the worker has overwritten the lane meanwhile
            yield Running(number, since / 1e9, stage, ids)
