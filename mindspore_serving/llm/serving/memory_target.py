"""Decision how much memory the prefix cache may take, by the memory that the machine has left.

    available memory   0 %          5 %                  10 %                       of the total
                       |  give back  | the cache stays as  |  it may grow, but leaves
                       |  up to 10 % | large as it is      |  10 % available

If processes are stalled for memory, the cache gives back half of what it has every CUT_SECONDS; it
grows again when they have not been for CALM_SECONDS.  Pure functions of numbers: no clock, no I/O.
"""

import math
from dataclasses import dataclass

from mindspore_serving.llm.runtimes.main_memory import MainMemory

LOW = 0.05  # share of the memory; with less available, the cache gives back
RESERVE = 0.10  # share of the memory that the cache leaves available
STALLED = 10.0  # percentage of the time in which a process waits for memory
CALM = 1.0  # the same, below which the cache may grow
CUT_SECONDS = 10.0  # the interval of which `MainMemory.stalled` is the average
CALM_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class MemoryTarget:
    """Bytes that the cache may take; when memory was last short, and when half was given back."""

    num_bytes: int
    short_at: float = -math.inf
    cut_at: float = -math.inf

    def is_short(self, now: float) -> bool:
        """Return whether memory is short at the time `now` of the decision."""
        return self.short_at == now


def decide(
    last: MemoryTarget, memory: MainMemory, used: int, limit: int, now: float
) -> MemoryTarget:
    """Return the target of a cache that takes `used` bytes and may take `limit`.

    `last` is the target of the last decision, `now` the time in seconds.
    """
    reserve = int(memory.total * RESERVE)
    is_low = memory.available < memory.total * LOW
    is_stalled = memory.stalled >= STALLED
    if not is_low and not is_stalled:
        is_calm = memory.stalled < CALM and now - last.short_at >= CALM_SECONDS
        ceiling = limit if is_calm else last.num_bytes
        allowed = used + max(0, memory.available - reserve)
        return MemoryTarget(min(ceiling, limit, allowed), last.short_at, last.cut_at)
    target, cut_at = min(last.num_bytes, used), last.cut_at
    if is_low:
        target = min(target, used - (reserve - memory.available))
    if is_stalled and now - cut_at >= CUT_SECONDS:
        target, cut_at = min(target, used // 2), now
    return MemoryTarget(max(0, target), now, cut_at)
