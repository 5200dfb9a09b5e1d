"""Answers that clients do not take: what they take of memory together has a limit.

A client may take its answer as slowly as it likes while there is room; where there is none, of the
address that has most the one that has had its own for longest loses it.
"""

import asyncio
from collections import Counter
from typing import Protocol

from mindspore_serving import log

LARGE = 1 << 20  # bytes: who waits with fewer is found when connections are looked at in turn


class UnsentAnswer(Protocol):
    """A connection, of which `transport` holds what is not sent."""

    transport: asyncio.Transport


class UnsentAnswers:
    """The connections with much that is not sent, the oldest first; `most` bytes in all, but that
    the newest has what it needs.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._connections: dict[UnsentAnswer, None] = {}

    def add(self, connection: UnsentAnswer) -> None:
        """Much of what was written to it is not sent."""
        self._connections.setdefault(connection)
        if connection.transport.get_write_buffer_size() >= LARGE:
            self.end_oldest()

    def discard(self, connection: UnsentAnswer) -> None:
        """Most of it is sent, or the connection is lost."""
        self._connections.pop(connection, None)

    def end_oldest(self) -> None:
        """End connections while all take too much: the oldest of the address that has most.  Looks
        at each of them.
        """
        sizes = {one: one.transport.get_write_buffer_size() for one in self._connections}
        total = sum(sizes.values())
        if total <= self._most:
            return
        addresses = {one: _address_of(one) for one in sizes}
        of_address: Counter[str] = Counter()
        for one, address in addresses.items():
            of_address[address] += sizes[one]
        addresses.popitem()  # the newest
        while addresses and total > self._most:
            one = max(addresses, key=lambda each: of_address[addresses[each]])  # the first of them
            total -= sizes[one]
            of_address[addresses.pop(one)] -= sizes[one]
            del self._connections[one]
            log.warning(
                "HTTP: a client that does not take its answer is cut off, as such answers take all "
                "memory that there is for them (max_unsent_memory)"
            )
            one.transport.abort()


def _address_of(connection: UnsentAnswer) -> str:
    name = connection.transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) else ""
