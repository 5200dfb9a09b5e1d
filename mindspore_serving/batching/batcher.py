"""Queue that decides when a batch is complete.

It knows no clock and no event loop: callers pass `now`.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")
MAX_SAMPLE = 512  # items


@dataclass(slots=True)
class Batcher(Generic[T]):
    """FIFO queue whose items leave in batches.

    Without a delay a batch is complete at once.  With `max_batch_delay_ms` it is complete when
    `preferred_batch_size` items are queued or the oldest has been queued that long.
    """

    max_batch_delay_ms: float = 0
    preferred_batch_size: int = 0
    _waiting: deque[tuple[float, T]] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return (item for _, item in self._waiting)

    def pairs(self) -> Iterator[tuple[float, T]]:
        """Iterate over the items, each with the time at which it was added."""
        return iter(self._waiting)

    def num_ahead(self, tenant: str) -> int:
        """Return how many queued items leave before one that `tenant` would add, at most."""
        return len(self)

    def sample(self, limit: int = MAX_SAMPLE) -> list[T]:
        """Return at most `limit` items, spread evenly over the queue."""
        step = -(-len(self._waiting) // limit) or 1
        return [item for _, item in islice(self._waiting, 0, None, step)]

    def add(self, item: T, now: float) -> None:
        self._waiting.append((now, item))

    def pop(self) -> T:
        """Remove and return the oldest item; the queue is not empty."""
        return self._waiting.popleft()[1]

    def put_back(self, item: T) -> None:
        """Return a taken `item` that could not be sent to the head of the queue, due at once."""
        self._waiting.appendleft((float("-inf"), item))

    def peek(self) -> T | None:
        """Return the oldest item, or None if the queue is empty."""
        return self._waiting[0][1] if self._waiting else None

    def due(self) -> float | None:
        """Return the time at which the oldest item must leave; None if the queue is empty."""
        return self._waiting[0][0] + self.max_batch_delay_ms / 1000 if self._waiting else None

    def is_complete(self, now: float) -> bool:
        """Return whether a batch can be taken."""
        due = self.due()
        return due is not None and (now >= due or 0 < self.preferred_batch_size <= len(self))

    def take(self, limit: int, now: float) -> list[T]:
        """Remove and return the next batch, oldest items first; [] if no batch is complete.

        At most `limit` items.
        """
        preferred = self.preferred_batch_size
        if not self.is_complete(now):
            return []
        if preferred:
            limit = min(limit, preferred)
        return [self.pop() for _ in range(min(limit, len(self._waiting)))]

    def keep(self, predicate: Callable[[T], bool]) -> None:
        """Remove the items for which `predicate` is false."""
        self._waiting = deque(pair for pair in self._waiting if predicate(pair[1]))

    def clear(self) -> list[T]:
        """Remove and return all items."""
        items = [item for _, item in self._waiting]
        self._waiting.clear()
        return items
