"""Clients that disconnect: what is done for them stops, and what it holds is freed."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import ExitStack
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

T = TypeVar("T")


async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives.  Raises ClientDisconnect, and cancels it, when the client leaves; the
    body must have been read.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(left(request.receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait((working, leaving))
        del working  # whose error refers to this call


async def left(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Owned:
    """The bytes of `events`, and what is freed when it is closed, even if none was read."""

    def __init__(self, events: AsyncIterator[bytes], stack: ExitStack) -> None:
        self._events = events
        self._stack = stack

    def __aiter__(self) -> "Owned":
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._events)

    async def aclose(self) -> None:
        with self._stack:
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()
