"""When a batch leaves: full or overdue.  No clock and no loop: `now` is an argument."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mindspore_serving.core.deployment import BatchPolicy

T = TypeVar("T")


@dataclass(slots=True)
class Batcher(Generic[T]):
    """Items in order of arrival.  With `policy.max_wait` 0 whatever waits may leave at once."""

    policy: BatchPolicy = BatchPolicy()
    _waiting: OrderedDict[T, float] = field(default_factory=OrderedDict)  # and since when

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return iter(self._waiting)

    def add(self, item: T, now: float) -> None:
        self._waiting[item] = now

    def put_back(self, item: T) -> None:
        """`item` was taken but could not leave; it is first again and overdue."""
        self._waiting[item] = float("-inf")
        self._waiting.move_to_end(item, last=False)

    def discard(self, item: T) -> None:
        """Nobody waits for `item` any more; harmless if it has left."""
        self._waiting.pop(item, None)

    def peek(self) -> T | None:
        """The oldest item, or None."""
        return next(iter(self._waiting), None)

    def due(self) -> float | None:
        """When the oldest item must leave; None if nothing waits."""
        for since in self._waiting.values():
            return since + self.policy.max_wait
        return None

    def take(self, limit: int, now: float) -> list[T]:
        """At most `limit` items, oldest first; empty while it pays to wait."""
        due, preferred = self.due(), self.policy.preferred_size
        if due is None or (now < due and not 0 < preferred <= len(self._waiting)):
            return []
        if preferred:
            limit = min(limit, preferred)
        take = self._waiting.popitem
        return [take(last=False)[0] for _ in range(min(limit, len(self._waiting)))]

    def clear(self) -> list[T]:
        """Everything that waits, taken out."""
        items = list(self._waiting)
        self._waiting.clear()
        return items
