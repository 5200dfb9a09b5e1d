"""Disconnects of clients: work for them is cancelled, and its resources are freed."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import ExitStack
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

T = TypeVar("T")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; the body of the request must have been read.

    If the client disconnects, cancels `work` and raises ClientDisconnect.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait((working, leaving))
        del working  # its error refers to this frame: no reference cycle


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


class OwnedStream:
    """Chunks of an answer, with an exit stack that is closed with it, even if none was read."""

    def __init__(self, events: AsyncIterator[bytes], stack: ExitStack) -> None:
        self._events = events
        self._stack = stack

    def __aiter__(self) -> "OwnedStream":
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._events)

    async def aclose(self) -> None:
        with self._stack:
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()
