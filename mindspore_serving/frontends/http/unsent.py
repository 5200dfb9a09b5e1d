"""Answers that clients do not take: what they take of memory together has a limit.

A client may take its answer as slowly as it likes while there is room; where there is none, the one
that has had its own for longest loses it.
"""

import asyncio
from typing import Protocol

from mindspore_serving import log


class Writing(Protocol):
    """A connection, of which `transport` holds what is not sent."""

    transport: asyncio.Transport


class UnsentAnswers:
    """The connections with much that is not sent, the oldest first; `most` bytes in all, but that
    the newest has what it needs."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._connections: dict[Writing, None] = {}

    def add(self, connection: Writing) -> None:
        """Much of what was written to it is not sent."""
        self._connections.setdefault(connection)
        self.end_oldest()

    def discard(self, connection: Writing) -> None:
        """Most of it is sent, or the connection is lost."""
        self._connections.pop(connection, None)

    def end_oldest(self) -> None:
        """End the oldest connections while all take too much."""
        sizes = {one: one.transport.get_write_buffer_size() for one in self._connections}
        total = sum(sizes.values())
        for one in list(sizes)[:-1]:
            if total <= self._most:
                return
            total -= sizes[one]
            del self._connections[one]
            log.warning(
                "HTTP: a client that does not take its answer is cut off, as such answers take all "
                "memory that there is for them (max_unsent_memory)"
            )
            one.transport.abort()
