"""When a batch leaves: full or overdue.  No clock and no loop: `now` is an argument."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")
MOST_SHOWN = 512  # items


@dataclass(slots=True)
class Batcher(Generic[T]):
    """Items in order of arrival.  Whatever waits may leave at once; with a delay when
    `preferred_batch_size` items wait or the oldest has waited for so long.
    """

    max_batch_delay_ms: float = 0
    preferred_batch_size: int = 0
    _waiting: deque[tuple[float, T]] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return (item for _, item in self._waiting)

    def some(self, most: int = MOST_SHOWN) -> list[T]:
        """Items from all of the queue, at most so many."""
        step = -(-len(self._waiting) // most) or 1
        return [item for _, item in islice(self._waiting, 0, None, step)]

    def add(self, item: T, now: float) -> None:
        self._waiting.append((now, item))

    def put_back(self, item: T) -> None:
        """`item` was taken but could not leave; it is first again and overdue."""
        self._waiting.appendleft((float("-inf"), item))

    def peek(self) -> T | None:
        """The oldest item, or None."""
        return self._waiting[0][1] if self._waiting else None

    def due(self) -> float | None:
        """When the oldest item must leave; None if nothing waits."""
        return self._waiting[0][0] + self.max_batch_delay_ms / 1000 if self._waiting else None

    def take(self, limit: int, now: float) -> list[T]:
        """At most `limit` items, oldest first; empty while it pays to wait."""
        due, preferred = self.due(), self.preferred_batch_size
        if due is None or (now < due and not 0 < preferred <= len(self._waiting)):
            return []
        if preferred:
            limit = min(limit, preferred)
        return [self._waiting.popleft()[1] for _ in range(min(limit, len(self._waiting)))]

    def keep(self, is_wanted: Callable[[T], bool]) -> None:
        """Take everything else out."""
        self._waiting = deque(pair for pair in self._waiting if is_wanted(pair[1]))

    def clear(self) -> list[T]:
        """Everything that waits, taken out."""
        items = [item for _, item in self._waiting]
        self._waiting.clear()
        return items
