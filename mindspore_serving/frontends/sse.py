"""Server-sent events: a response whose pieces come as they are made.  Knows no protocol's JSON."""

import asyncio
from collections.abc import AsyncIterator, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
PING_SECONDS = 15.0


def event(data: bytes, name: bytes = b"") -> bytes:
    """The bytes of one event."""
    if name:
        return b"event: %b\ndata: %b\n\n" % (name, data)
    return b"data: %b\n\n" % data


class EventStream(StreamingResponse):
    """Sends the bytes that `events` yields, each as it comes.

    When the client leaves, the iterator is closed: a generator's `finally` or `with` runs, and
    frees what it holds.  Silence is filled with `ping` so that proxies keep the connection.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        headers: Mapping[str, str] | None = None,
        *,
        media_type: str = "text/event-stream",
        ping: bytes = b":\n\n",
    ) -> None:
        super().__init__(
            _filled(events, ping), headers={**HEADERS, **(headers or {})}, media_type=media_type
        )
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()


async def _filled(events: AsyncIterator[bytes], ping: bytes) -> AsyncIterator[bytes]:
    upcoming = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            done, _ = await asyncio.wait([upcoming], timeout=PING_SECONDS)
            if not done:
                yield ping
                continue
            chunk = upcoming.result()
            if chunk is None:
                return
            yield chunk
            upcoming = asyncio.ensure_future(anext(events, None))
    finally:
        upcoming.cancel()
        await asyncio.wait([upcoming])
