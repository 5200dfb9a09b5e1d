"""The ASGI application of a front-end process that forwards requests to the master.

Each ASGI message becomes one of ours, so the master's application has the same back-pressure, and
waits for the body, as in one process.
"""

import asyncio
from collections.abc import Iterable

from starlette.types import Receive, Scope, Send

from mindspore_serving import log
from mindspore_serving.errors import ServingError
from mindspore_serving.frontends import access
from mindspore_serving.frontends.routes import ROUTE
from mindspore_serving.server.processes import messages
from mindspore_serving.server.processes.messages import (
    AsgiCall,
    AsgiCallEnd,
    BodyChunk,
    BodyRequest,
    CancelRequest,
    ChunkAck,
    ResponseChunk,
    ToFrontEnd,
)
from mindspore_serving.server.processes.pipe import Pipe
from mindspore_serving.tracing.request_span import current


class MasterApp:
    """The ASGI application of the master, called from a front-end process."""

    def __init__(self, pipe: Pipe[ToFrontEnd], numbers: Iterable[int]) -> None:
        self._pipe = pipe
        self._numbers = iter(numbers)
        self._events: dict[int, asyncio.Queue[BodyRequest | ResponseChunk | AsgiCallEnd]] = {}

    def take(self, event: BodyRequest | ResponseChunk | AsgiCallEnd) -> None:
        """Handle a message of the master about a call."""
        queue = self._events.get(event.id)
        if queue is not None:
            queue.put_nowait(event)
        else:
            self._drop(event)

    def _drop(self, event: BodyRequest | ResponseChunk | AsgiCallEnd) -> None:
        if isinstance(event, ResponseChunk):
            self._pipe.view(event.body)  # frees its memory at once

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        number = next(self._numbers)
        self._events[number] = asyncio.Queue()
        span = current.get()
        context = () if span is None else (span.context.traceparent, span.context.state)
        self._pipe.send(AsgiCall(number, _to_message(scope), log.request_id.get(), *context))
        giving: set[asyncio.Task[None]] = set()
        try:
            while not isinstance(event := await self._events[number].get(), AsgiCallEnd):
                if isinstance(event, BodyRequest):  # the response may start before the body ends
                    giving.add(asyncio.create_task(self._give(number, receive)))
                else:
                    if event.status:
                        scope[ROUTE] = event.route
                    await self._send(event, send)
        except BaseException:
            self._pipe.send(CancelRequest(number))
            raise
        finally:
            queue = self._events.pop(number)
            while not queue.empty():
                self._drop(queue.get_nowait())
            for task in giving:
                task.cancel()
        _note(event.entry)
        if event.has_failed:
            raise ServingError("the master failed to answer; its log says why")

    async def _give(self, number: int, receive: Receive) -> None:
        message = await receive()
        if message["type"] == "http.disconnect":
            self._pipe.send(BodyChunk(number, has_left=True))
        else:
            body = self._pipe.put(message.get("body", b""))
            self._pipe.send(BodyChunk(number, body, message.get("more_body", False)))

    async def _send(self, event: ResponseChunk, send: Send) -> None:
        body = self._pipe.view(event.body)
        if event.status:
            start = {"status": event.status, "headers": event.headers}
            await send({"type": "http.response.start", **start})
        else:
            await send({"type": "http.response.body", "body": body, "more_body": event.more})
        self._pipe.send(ChunkAck(event.id))


def _to_message(scope: Scope) -> messages.Scope:
    return messages.Scope(**{name: scope[name] for name in messages.Scope.__struct_fields__})


def _note(noted: access.Entry) -> None:
    """Copy the master's entry to the access log entry of this process."""
    entry = access.current.get()
    if entry is not None:
        entry.servable, entry.method, entry.tokens = noted.servable, noted.method, noted.tokens
