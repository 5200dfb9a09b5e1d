"""Connections that have not proved themselves yet: how many there are, and which gives way."""

from collections import Counter
from collections.abc import Callable


class Strangers:
    """At most `most`.  One more takes the place of the one that has waited longest, of those from
    the address that has most: so silence keeps nobody out.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[object, tuple[str, Callable[[], None]]] = {}  # the oldest first
        self._num_of: Counter[str] = Counter()  # by address

    def __len__(self) -> int:
        return len(self._known)

    def add(self, stranger: object, address: str, end: Callable[[], None]) -> None:
        """`end` is called if it has to give way."""
        self._known[stranger] = address, end
        self._num_of[address] += 1
        if len(self._known) > self._most:
            self._end_one()

    def discard(self, stranger: object) -> None:
        """It has proved itself, or has left."""
        address, _ = self._known.pop(stranger, ("", None))
        if address in self._num_of:
            self._num_of[address] -= 1
            if not self._num_of[address]:
                del self._num_of[address]

    def _end_one(self) -> None:
        most = max(self._num_of.values())
        for stranger, (address, end) in self._known.items():
            if self._num_of[address] == most:
                self.discard(stranger)
                end()
                return
