"""Calls of the master's ASGI applications by a front-end process.

Each ASGI message becomes one of ours, so the master's application has the same back-pressure, and
waits for the body, as in one process.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import TypeAlias

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from mindspore_serving import log
from mindspore_serving.errors import ServingError
from mindspore_serving.frontends import access
from mindspore_serving.frontends.http.head import UPGRADE
from mindspore_serving.frontends.http.upgraded import STOP
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

_Event: TypeAlias = BodyRequest | ResponseChunk | AsgiCallEnd
_Events: TypeAlias = "asyncio.Queue[_Event | Exception]"
_FIELDS = msgspec.structs.fields(messages.Scope)


class MasterCalls:
    """Calls of the master's applications, one for each server."""

    def __init__(self, pipe: Pipe[ToFrontEnd], numbers: Iterable[int]) -> None:
        self._pipe = pipe
        self._numbers = iter(numbers)
        self._events: dict[int, _Events] = {}

    def take(self, event: _Event) -> None:
        """Handle a message of the master about a call."""
        queue = self._events.get(event.id)
        if queue is not None:
            queue.put_nowait(event)
        else:
            self._drop(event)

    def _drop(self, event: _Event | Exception) -> None:
        if isinstance(event, ResponseChunk):
            self._pipe.view(event.body)  # frees its memory at once

    def app(self, server: int) -> ASGIApp:
        """Return the master's application of a server."""

        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            async with aclosing(self.run(server, scope, receive)) as answer:
                async for message in answer:
                    await send(message)

        return call

    async def run(
        self, server: int, scope: Scope, receive: Receive
    ) -> AsyncGenerator[AsgiMessage, None]:
        """Call the application of a server, and iterate over the messages that it sends.

        It goes on when the next message is asked for.  Raises ServingError if it fails.
        """
        number = next(self._numbers)
        events = self._events[number] = asyncio.Queue()
        span = current.get()
        context = () if span is None else (span.context.traceparent, span.context.state)
        message = AsgiCall(number, server, _to_message(scope), log.request_id.get(), *context)
        self._pipe.send(message)
        giving: set[asyncio.Task[None]] = set()
        try:
            while not isinstance(event := await events.get(), AsgiCallEnd):
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, BodyRequest):  # the response may start before the body ends
                    task = asyncio.create_task(self._give(number, receive, events))
                    giving.add(task)
                    task.add_done_callback(giving.discard)
                elif event.status:
                    scope[ROUTE] = event.route
                    start = {"status": event.status, "headers": event.headers}
                    yield {"type": "http.response.start", **start}
                    self._pipe.send(ChunkAck(number))
                else:
                    body = {"body": self._pipe.view(event.body), "more_body": event.more}
                    yield {"type": "http.response.body", **body}
                    self._pipe.send(ChunkAck(number))
        except BaseException:
            self._pipe.send(CancelRequest(number))
            raise
        finally:
            queue = self._events.pop(number)
            while not queue.empty():
                self._drop(queue.get_nowait())
            for task in [*giving]:
                task.cancel()
        _note(event.entry)
        if event.has_failed:
            raise ServingError("the master failed to answer; its log says why")

    async def _give(self, number: int, receive: Receive, events: _Events) -> None:
        try:
            message = await receive()
        except Exception as error:  # the reader of `events` raises it
            events.put_nowait(error)
            return
        if message["type"] == "http.disconnect":
            self._pipe.send(BodyChunk(number, has_left=True))
        elif message["type"] == STOP:
            self._pipe.send(BodyChunk(number, stop=str(message["error"])))
        else:
            body = self._pipe.put(message.get("body", b""))
            self._pipe.send(BodyChunk(number, body, message.get("more_body", False)))


def _to_message(scope: Scope) -> messages.Scope:
    fields = {row.name: scope[row.name] for row in _FIELDS if row.name in scope}
    if memory := scope.get("extensions", {}).get(UPGRADE):
        fields["upgrade_memory"] = memory.limit
    return messages.Scope(**fields)


def _note(noted: access.Entry) -> None:
    """Copy the master's entry to the access log entry of this process."""
    entry = access.current.get()
    if entry is not None:
        entry.servable, entry.method, entry.tokens = noted.servable, noted.method, noted.tokens
        if noted.num_received is not None:
            entry.num_received = noted.num_received
    log.request_id.set(noted.request_id)
