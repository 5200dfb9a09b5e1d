"""Priority levels of a method's queue: the level of a request, and the limits of each level.

It knows no clock and sends nothing.
"""

from collections.abc import Sequence

from mindspore_serving.batching.batcher import Batcher
from mindspore_serving.batching.priority import PriorityBatcher
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.errors import Overloaded
from mindspore_serving.master.request import IDLE, SENT, PendingPart


class QueueLevels:
    """Levels 1 (first) to `priority_levels` of one method; its queue has them from 0."""

    def __init__(self, deployment: Deployment, preferred: int, label: str) -> None:
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


def make_queue(
    deployment: Deployment, preferred: int, label: str
) -> "tuple[Batcher[PendingPart] | PriorityBatcher[PendingPart], QueueLevels | None]":
    """Return the queue of a method, and its levels if there are any."""
    if not deployment.priority_levels:
        return Batcher(deployment.max_batch_delay_ms, preferred), None
    levels = QueueLevels(deployment, preferred, label)
    return levels.queue, levels


def _runs(part: PendingPart) -> bool:
    """Return whether a worker has another part of the request."""
    return any(other.state is SENT for other in part.request.parts)
