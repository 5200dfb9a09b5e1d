"""The ASGI application of a front-end process for what only the master can answer.

Each message of ASGI is one of ours: the master's application waits for room and for the body as it
would in one process.
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
    Abandon,
    Ask,
    Given,
    Over,
    Sent,
    Taken,
    ToFrontEnd,
    Wanted,
)
from mindspore_serving.server.processes.pipe import Pipe
from mindspore_serving.tracing.request_span import current


class MasterApp:
    """An ASGI application: that of the master."""

    def __init__(self, pipe: Pipe[ToFrontEnd], numbers: Iterable[int]) -> None:
        self._pipe = pipe
        self._numbers = iter(numbers)
        self._events: dict[int, asyncio.Queue[Wanted | Sent | Over]] = {}

    def take(self, event: Wanted | Sent | Over) -> None:
        """The master says more of a call."""
        queue = self._events.get(event.id)
        if queue is not None:
            queue.put_nowait(event)
        else:
            self._drop(event)

    def _drop(self, event: Wanted | Sent | Over) -> None:
        if isinstance(event, Sent):
            self._pipe.view(event.body)  # nobody's: it is given back at once

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        number = next(self._numbers)
        self._events[number] = asyncio.Queue()
        span = current.get()
        context = () if span is None else (span.context.traceparent, span.context.state)
        self._pipe.send(Ask(number, _to_message(scope), log.request_id.get(), *context))
        giving: set[asyncio.Task[None]] = set()
        try:
            while not isinstance(event := await self._events[number].get(), Over):
                if isinstance(event, Wanted):  # the answer may begin before the body has come
                    giving.add(asyncio.create_task(self._give(number, receive)))
                else:
                    if event.status:
                        scope[ROUTE] = event.route
                    await self._send(event, send)
        except BaseException:
            self._pipe.send(Abandon(number))
            raise
        finally:
            queue = self._events.pop(number)
            while not queue.empty():
                self._drop(queue.get_nowait())
            for task in giving:
                task.cancel()
        _note(event.entry)
        if event.has_failed:
            raise ServingError("the master could not answer; its log says why")

    async def _give(self, number: int, receive: Receive) -> None:
        message = await receive()
        if message["type"] == "http.disconnect":
            self._pipe.send(Given(number, has_left=True))
        else:
            body = self._pipe.put(message.get("body", b""))
            self._pipe.send(Given(number, body, message.get("more_body", False)))

    async def _send(self, event: Sent, send: Send) -> None:
        body = self._pipe.view(event.body)
        if event.status:
            start = {"status": event.status, "headers": event.headers}
            await send({"type": "http.response.start", **start})
        else:
            await send({"type": "http.response.body", "body": body, "more_body": event.more})
        self._pipe.send(Taken(event.id))


def _to_message(scope: Scope) -> messages.Scope:
    return messages.Scope(**{name: scope[name] for name in messages.Scope.__struct_fields__})


def _note(noted: access.Entry) -> None:
    """What the master has noted, for the access log of this process."""
    entry = access.current.get()
    if entry is not None:
        entry.servable, entry.method, entry.tokens = noted.servable, noted.method, noted.tokens
