"""A call of the master's ASGI application that came through a front-end process."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from starlette.types import ASGIApp, Message, Scope

from mindspore_serving import log
from mindspore_serving.frontends import access
from mindspore_serving.frontends.spans import route_of
from mindspore_serving.server.processes.messages import Ask, Given, Over, Sent, ToMaster, Wanted
from mindspore_serving.server.processes.pipe import Pipe
from mindspore_serving.tracing.request_span import RequestSpan, current


class AskedCall:
    """Runs `app` once.  `sync` is awaited before it, so that it knows what all front ends have
    counted, and before its answer, so that they know what it has changed.
    """

    def __init__(
        self, ask: Ask, pipe: Pipe[ToMaster], app: ASGIApp, sync: Callable[[], Awaitable[None]]
    ) -> None:
        self._ask = ask
        self._scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "root_path": "",
            **msgspec.structs.asdict(ask.scope),
        }
        self._pipe = pipe
        self._app = app
        self._sync = sync
        self._given: asyncio.Future[Message] | None = None
        self._room = asyncio.Event()

    async def run(self, span: RequestSpan | None) -> None:
        """`span` is that of the front end, if the request is traced."""
        log.request_id.set(self._ask.request_id)
        current.set(span)
        entry = access.Entry("", "", "")
        access.current.set(entry)
        has_failed = False
        try:
            await self._sync()
            await self._app(self._scope, self._receive, self._send)
        except Exception:
            log.error("a request failed", exc_info=True)
            has_failed = True
        self._pipe.send(Over(self._ask.id, has_failed, entry))

    def give(self, given: Given) -> None:
        """The front end has more of the body."""
        message: Message = {"type": "http.disconnect"}
        if not given.has_left:
            body = self._pipe.view(given.body)  # whoever drops it gives it back
            message = {"type": "http.request", "body": body, "more_body": given.more}
        if self._given is not None and not self._given.done():
            self._given.set_result(message)

    def go_on(self) -> None:
        """The front end has taken what was sent."""
        self._room.set()

    async def _receive(self) -> Message:
        if self._given is None:  # else who wanted it was cancelled
            self._given = asyncio.get_running_loop().create_future()
            self._pipe.send(Wanted(self._ask.id))
        message = await asyncio.shield(self._given)
        self._given = None
        return message

    async def _send(self, message: Message) -> None:
        self._room.clear()
        if message["type"] == "http.response.start":
            await self._sync()
            headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
            route = route_of(self._scope)
            self._pipe.send(Sent(self._ask.id, message["status"], headers, route=route))
        else:
            body = self._pipe.put(message.get("body", b""))
            self._pipe.send(Sent(self._ask.id, 0, [], body, message.get("more_body", False)))
        await self._room.wait()
