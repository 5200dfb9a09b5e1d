"""Queue of several priority levels with the interface of `Batcher`: level 0 leaves first."""

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Generic, TypeVar

from mindspore_serving.batching.batcher import MAX_SAMPLE, Batcher

T = TypeVar("T")


class PriorityBatcher(Generic[T]):
    """FIFO queue for each level; a batch has items of higher levels first, and may mix levels.

    A batch is complete as that of a `Batcher`, where the items of all levels count.
    """

    def __init__(
        self, delay_ms: float, preferred: int, num_levels: int, level_of: Callable[[T], int]
    ) -> None:
        self.levels: list[Batcher[T]] = [Batcher(delay_ms) for _ in range(num_levels)]
        self._preferred = preferred
        self._level_of = level_of

    def __len__(self) -> int:
        return sum(map(len, self.levels))

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.levels)

    def num_ahead(self, tenant: str) -> int:
        """Return how many queued items leave before one that `tenant` would add, at most."""
        return len(self)

    def sample(self, limit: int = MAX_SAMPLE) -> list[T]:
        """Return at most `limit` items, spread evenly over the queue."""
        return list(islice(self, 0, None, -(-len(self) // limit) or 1))

    def add(self, item: T, now: float) -> None:
        self.levels[self._level_of(item)].add(item, now)

    def put_back(self, item: T) -> None:
        """Return a taken `item` to the head of its level, due at once."""
        self.levels[self._level_of(item)].put_back(item)

    def peek(self) -> T | None:
        """Return the item that leaves next, or None if the queue is empty."""
        return next((level.peek() for level in self.levels if level), None)

    def due(self) -> float | None:
        """Return the time at which the oldest item must leave; None if the queue is empty."""
        dues = (level.due() for level in self.levels)
        return min((due for due in dues if due is not None), default=None)

    def is_complete(self, now: float) -> bool:
        """Return whether a batch can be taken."""
        due = self.due()
        return due is not None and (now >= due or 0 < self._preferred <= len(self))

    def take(self, limit: int, now: float) -> list[T]:
        """Remove and return the next batch of at most `limit` items; [] if none is complete."""
        preferred = self._preferred
        if not self.is_complete(now):
            return []
        limit, taken = min(limit, preferred) if preferred else limit, list[T]()
        for level in self.levels:
            taken += (level.pop() for _ in range(min(limit - len(taken), len(level))))
        return taken

    def keep(self, predicate: Callable[[T], bool]) -> None:
        """Remove the items for which `predicate` is false."""
        for level in self.levels:
            level.keep(predicate)

    def clear(self) -> list[T]:
        """Remove and return all items."""
        return [item for level in self.levels for item in level.clear()]
