"""What an event loop gives to another thread, which collects it: a bounded queue."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

_MAX_LENGTH = 256  # items that wait to be collected; who gives more of them waits

T = TypeVar("T")


class EventOutbox(Generic[T]):
    """`wake` is called where there is something to collect."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop = loop
        self._wake = wake
        self._items: deque[T] = deque()
        self._is_full = False
        self._is_drained = asyncio.Event()

    def put(self, item: T) -> None:
        """On the loop."""
        self._items.append(item)
        self._wake()

    async def drained(self) -> None:
        """On the loop: wait while too much is not collected."""
        while len(self._items) > _MAX_LENGTH:
            self._is_drained.clear()
            self._is_full = True
            if len(self._items) > _MAX_LENGTH:  # what is collected from now on ends the wait
                await self._is_drained.wait()

    def collect(self) -> Iterator[T]:
        """On the other thread: all that there is."""
        while self._items:
            yield self._items.popleft()
        if self._is_full:
            self._is_full = False
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._is_drained.set)
