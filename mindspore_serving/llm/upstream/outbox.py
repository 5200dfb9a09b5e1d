"""A bounded queue from an event loop to another thread, which collects it."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

_MAX_LENGTH = 256  # items in the queue; `drained` waits above that

T = TypeVar("T")


class EventOutbox(Generic[T]):
    """Items of type `T` on their way to another thread.

    `wake` is called when there is something to collect.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop = loop
        self._wake = wake
        self._items: deque[T] = deque()
        self._is_full = False
        self._is_drained = asyncio.Event()

    def put(self, item: T) -> None:
        """Append an item.  Called on the loop."""
        self._items.append(item)
        self._wake()

    async def drained(self) -> None:
        """Wait while the queue is too long.  Called on the loop."""
        while len(self._items) > _MAX_LENGTH:
            self._is_drained.clear()
            self._is_full = True
            # Read the length again: `collect` may have emptied the queue before it saw `_is_full`.
            if len(self._items) > _MAX_LENGTH:
                await self._is_drained.wait()

    def collect(self) -> Iterator[T]:
        """Iterate over all items, removing them.  Called on the other thread."""
        while self._items:
            yield self._items.popleft()
        if self._is_full:
            self._is_full = False
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._is_drained.set)
