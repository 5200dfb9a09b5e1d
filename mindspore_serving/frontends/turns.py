"""Work of which a server does one at a time, for each address in its turn."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mindspore_serving.errors import Overloaded


class Turns:
    """Who waits over `patience` seconds for its turn is refused, and told what is being done."""

    def __init__(self, what: str, patience: float) -> None:
        self._what = what
        self._patience = patience
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the next address first
        self._is_taken = False

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """While it is this caller's turn.  Raises Overloaded."""
        if self._is_taken:
            await self._wait(address)
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, address: str) -> None:
        granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(granted)
        try:
            await asyncio.wait([granted], timeout=self._patience)
        except asyncio.CancelledError:
            if granted.done():
                self._pass_on()
            else:
                self._forget(address, granted)
            raise
        if not granted.done():
            self._forget(address, granted)
            raise Overloaded(f"others are before this one: {self._what}")

    def _forget(self, address: str, granted: "asyncio.Future[None]") -> None:
        self._waiting[address].remove(granted)
        if not self._waiting[address]:
            del self._waiting[address]

    def _pass_on(self) -> None:
        if not self._waiting:
            self._is_taken = False
            return
        address = next(iter(self._waiting))
        queue = self._waiting.pop(address)
        queue.popleft().set_result(None)
        if queue:
            self._waiting[address] = queue  # behind the others
