"""Limit of the memory of HTTP answers that clients do not read.

A client can read its answer as slowly as it likes while there is room.  If there is none, the
oldest connection of the address that uses the most memory is aborted.
"""

from collections import Counter
from typing import Any, Protocol

from mindspore_serving import log

LARGE = 1 << 20  # bytes: connections with less are checked by the periodic sweep only


class UnsentAnswer(Protocol):
    """A connection with `num_unsent` bytes of answers."""

    @property
    def num_unsent(self) -> int: ...

    def describe(self, name: str) -> Any:
        """Return a fact about the transport."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...


class UnsentAnswers:
    """Connections with much unsent data, the oldest first, of at most `limit` bytes in all.

    The newest one is never aborted.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._connections: dict[UnsentAnswer, None] = {}

    def add(self, connection: UnsentAnswer) -> None:
        """Add a connection with much unsent data."""
        self._connections.setdefault(connection)
        if connection.num_unsent >= LARGE:
            self.end_oldest()

    def discard(self, connection: UnsentAnswer) -> None:
        """Remove a connection whose data is sent, or that is lost."""
        self._connections.pop(connection, None)

    def end_oldest(self) -> None:
        """Abort connections down to the limit: the oldest of the address with the most data."""
        sizes = {connection: connection.num_unsent for connection in self._connections}
        total = sum(sizes.values())
        if total <= self._limit:
            return
        addresses = {connection: _address_of(connection) for connection in sizes}
        of_address: Counter[str] = Counter()
        for connection, address in addresses.items():
            of_address[address] += sizes[connection]
        addresses.popitem()  # the newest
        while addresses and total > self._limit:
            # max() returns the first, which is the oldest.
            oldest = max(addresses, key=lambda each: of_address[addresses[each]])
            total -= sizes[oldest]
            of_address[addresses.pop(oldest)] -= sizes[oldest]
            del self._connections[oldest]
            log.warning(
                "HTTP: the connection of a client that does not read its answer is closed, as "
                "unsent answers use all their memory (max_unsent_memory)"
            )
            oldest.abort()


def _address_of(connection: UnsentAnswer) -> str:
    name = connection.describe("peername")
    return str(name[0]) if isinstance(name, tuple) else ""
