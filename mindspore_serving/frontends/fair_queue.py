"""A lock for one task at a time that serves client addresses in turn."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mindspore_serving.errors import Overloaded


class FairQueue:
    """A lock whose waiters are granted round-robin by address.

    A task that waits over `patience` seconds is refused with an error that has `reason`.
    """

    def __init__(self, reason: str, patience: float) -> None:
        self._reason = reason
        self._patience = patience
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by address, the next first
        self._is_taken = False

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Hold the lock; `address` is that of the client.  Raises Overloaded."""
        if self._is_taken:
            await self._wait(address)
        self._is_taken = True
        try:
            yield
        finally:
            self._grant_next()

    async def _wait(self, address: str) -> None:
        granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(granted)
        try:
            await asyncio.wait([granted], timeout=self._patience)
        except asyncio.CancelledError:
            if granted.done():
                self._grant_next()
            else:
                self._remove(address, granted)
            raise
        if not granted.done():
            self._remove(address, granted)
            raise Overloaded(f"other requests are queued before this: {self._reason}")

    def _remove(self, address: str, granted: "asyncio.Future[None]") -> None:
        self._waiting[address].remove(granted)
        if not self._waiting[address]:
            del self._waiting[address]

    def _grant_next(self) -> None:
        if not self._waiting:
            self._is_taken = False
            return
        address = next(iter(self._waiting))
        queue = self._waiting.pop(address)
        queue.popleft().set_result(None)
        if queue:
            self._waiting[address] = queue  # after the other addresses
