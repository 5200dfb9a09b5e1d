"""Priority levels of a method's queue: the level of a request, and the limits of each level.

Sends nothing.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import TypeAlias

from mindspore_serving.batching.batcher import Batcher
from mindspore_serving.batching.fair import FairBatcher
from mindspore_serving.batching.priority import PriorityBatcher
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.errors import Overloaded
from mindspore_serving.master.request import IDLE, SENT, PendingPart

CHECK_SECONDS = 0.005  # at least, between two checks for requests that wait too long
CallLater: TypeAlias = Callable[[float, Callable[[], None]], asyncio.TimerHandle]


class QueueLevels:
    """Levels 1 (first) to `priority_levels` of one method; its queue has them from 0."""

    def __init__(
        self,
        deployment: Deployment,
        preferred: int,
        label: str,
        call_later: CallLater,
        on_ended_removed: Callable[[int], None],
    ) -> None:
        """Create the queue; `on_ended_removed` gets numbers of removed parts of ended requests."""
        self._call_later = call_later
        self._on_ended_removed = on_ended_removed
        self._checked_at = inf  # when the timer fires
        self._timer: asyncio.TimerHandle | None = None
        count = deployment.priority_levels
        delay = deployment.max_batch_delay_ms
        self.queue: PriorityBatcher[PendingPart] = PriorityBatcher(
            delay, preferred, count, self._index
        )
        self._default = deployment.default_priority or count
        self._seconds = {int(level): ms / 1000 for level, ms in deployment.level_queue_ms.items()}
        self._sizes = {int(level): size for level, size in deployment.level_queue_sizes.items()}
        self._label = label

    def _index(self, part: PendingPart) -> int:
        level = part.request.priority
        return (level if 0 < level <= len(self.queue.levels) else self._default) - 1

    def check(self, parts: Sequence[PendingPart]) -> None:
        """Raise Overloaded if the queue of the level of `parts`, of one request, has no room."""
        index = self._index(parts[0])
        size = self._sizes.get(index + 1)
        if size is not None and len(self.queue.levels[index]) + len(parts) > size:
            raise Overloaded(
                f"{self._label}: {len(self.queue.levels[index])} requests of priority {index + 1} "
                f"are queued, and the limit is {size} (level_queue_sizes)"
            )

    def watch(self, now: float) -> None:
        """Refuse the requests that wait too long, as soon as the time is there."""
        due = self.next_check()
        if due is not None and due < self._checked_at:
            if self._timer is not None:
                self._timer.cancel()
            self._checked_at = due
            self._timer = self._call_later(max(CHECK_SECONDS, due - now), self.refuse_overdue)

    def refuse_overdue(self) -> None:
        """Refuse requests that have been queued for longer than their level allows."""
        self._checked_at, self._timer = inf, None
        now = time.monotonic()
        overdue, num_ended = self.take_overdue(now)
        self._on_ended_removed(num_ended)
        for part, error in overdue:
            part.request.fail(error)
        self.watch(now)

    def next_check(self) -> float | None:
        """Return when the oldest request of a level will have waited too long; None without one."""
        heads = ((level, self.queue.levels[level - 1].peek()) for level in self._seconds)
        dues = [part.request.started + self._seconds[level] for level, part in heads if part]
        return min(dues, default=None)

    def take_overdue(self, now: float) -> tuple[list[tuple[PendingPart, Overloaded]], int]:
        """Remove parts that have waited too long; return them with their errors.

        Also the number of removed parts of requests that had ended.
        """
        overdue, num_ended = [], 0
        for level, seconds in self._seconds.items():
            queue = self.queue.levels[level - 1]
            while (part := queue.peek()) is not None:
                if part.request.is_done:
                    num_ended += 1
                elif part.request.started + seconds > now or _runs(part):
                    break
                else:
                    part.state = IDLE
                    overdue.append((part, self._late(level, seconds)))
                queue.pop()
        return overdue, num_ended

    def _late(self, level: int, seconds: float) -> Overloaded:
        text = (
            f"{self._label}: the request of priority {level} waited for over {seconds:g} s "
            "(level_queue_ms)"
        )
        return Overloaded(text, retry_after=seconds)


PartQueue: TypeAlias = (
    "Batcher[PendingPart] | FairBatcher[PendingPart] | PriorityBatcher[PendingPart]"
)


def in_turns(queue: PartQueue) -> PartQueue:
    """Return `queue` as one whose parts leave in turns of their tenants, unless it has levels."""
    return FairBatcher(queue, _tenant_of, _cost_of) if isinstance(queue, Batcher) else queue


def make_queue(
    deployment: Deployment,
    preferred: int,
    label: str,
    call_later: CallLater,
    on_ended_removed: Callable[[int], None],
) -> "tuple[PartQueue, QueueLevels | None]":
    """Return the queue of a method, and its levels if there are any."""
    if not deployment.priority_levels:
        return Batcher(deployment.max_batch_delay_ms, preferred), None
    levels = QueueLevels(deployment, preferred, label, call_later, on_ended_removed)
    return levels.queue, levels


def _runs(part: PendingPart) -> bool:
    """Return whether a worker has another part of the request."""
    return any(other.state is SENT for other in part.request.parts)


def _tenant_of(part: PendingPart) -> str:
    return part.request.tenant


def _cost_of(part: PendingPart) -> float:
    """Return the number of instances of `part`, as far as it is known here."""
    return max(1, len(part.chunks))
