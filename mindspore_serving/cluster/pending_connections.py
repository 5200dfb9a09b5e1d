"""Connections that have not authenticated yet: their limit, and which is closed at the limit."""

from collections import Counter
from collections.abc import Callable


class PendingConnections:
    """Connections that have not authenticated yet, at most `limit`.

    One more replaces the oldest connection of the address that has the most: so a peer that opens
    many and stays silent keeps no other out.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[object, tuple[str, Callable[[], None]]] = {}  # the oldest first
        self._count_by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._known)

    def add(self, connection: object, address: str, close: Callable[[], None]) -> None:
        """Add a connection; `close` is called if another one replaces it."""
        self._known[connection] = address, close
        self._count_by_address[address] += 1
        if len(self._known) > self._limit:
            self._close_oldest()

    def discard(self, connection: object) -> None:
        """Remove a connection that has authenticated or ended."""
        address, _ = self._known.pop(connection, ("", None))
        if address in self._count_by_address:
            self._count_by_address[address] -= 1
            if not self._count_by_address[address]:
                del self._count_by_address[address]

    def _close_oldest(self) -> None:
        largest = max(self._count_by_address.values())
        for connection, (address, close) in self._known.items():
            if self._count_by_address[address] == largest:
                self.discard(connection)
                close()
                return
