"""Limits of a store by bytes and by age: when to list its values, and which to remove.

Decisions only: knows no store and no clock.
"""

from collections.abc import Hashable, Iterable
from typing import TypeVar

SHARE = 8  # an eviction frees 1/8 of the limit; 1/8 of the free space is written between listings

T = TypeVar("T", bound=Hashable)


class StoreBounds:
    """Limits of all values in a store.

    A listing of a store is slow, so it is rare: `budget` is how many bytes may be written before
    the next.  That is only a share of the free space, as other processes write there too.

    Args:
        max_bytes: of all values together, those of other users included.
        value_bytes: of the largest value that is written.
        max_seconds: after which a value that was not used is removed; 0: never.
    """

    def __init__(self, max_bytes: int, value_bytes: int, max_seconds: float = 0.0) -> None:
        self.max_bytes, self.value_bytes = max_bytes, value_bytes
        self._max_age = int(max_seconds * 1e9)
        self.budget = 0

    @property
    def is_due(self) -> bool:
        """True if the values are to be listed before another is written."""
        return self.budget < self.value_bytes

    @property
    def _step(self) -> int:
        return max(self.value_bytes, self.max_bytes // SHARE**3)

    def has_room(self, total: int) -> bool:
        """Set the budget for a store that holds `total` bytes; return whether a value fits."""
        self.budget = max(self._step, (self.max_bytes - total) // SHARE)
        return total + self._step <= self.max_bytes

    def select(self, values: Iterable[tuple[int, T, int]], now: int) -> list[T]:
        """Return the values to remove, the least recently used first, and set the budget.

        `values` are times of use in nanoseconds, names and sizes; `now` is a time as well.
        """
        rows = sorted(values, key=lambda row: row[0])
        total = sum(size for _, _, size in rows)
        target = self.max_bytes
        if not self.has_room(total):
            target -= max(self._step, self.max_bytes // SHARE)
        removed = []
        for time, name, size in rows:
            is_old = bool(self._max_age) and now - time > self._max_age
            if total <= target and not is_old:
                break
            removed.append(name)
            total -= size
        self.has_room(total)
        return removed
