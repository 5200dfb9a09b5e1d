"""The master's side of an ASGI call that a front-end process has forwarded."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache, partial

import msgspec
from starlette.types import ASGIApp, Message, Scope

from mindspore_serving import log
from mindspore_serving.core.service import header_of_task
from mindspore_serving.errors import ServableUnavailable
from mindspore_serving.frontends import access, answer_headers
from mindspore_serving.frontends.http.head import UPGRADE
from mindspore_serving.frontends.http.upgraded import STOP
from mindspore_serving.frontends.memory import Quota
from mindspore_serving.frontends.spans import route_of
from mindspore_serving.server.processes.messages import (
    RPC,
    AsgiCall,
    AsgiCallEnd,
    BodyChunk,
    BodyRequest,
    ResponseChunk,
    ToMaster,
)
from mindspore_serving.server.processes.pipe import Pipe
from mindspore_serving.tracing.request_span import RequestSpan, current

_quota = cache(Quota)  # of the messages of forwarded WebSockets, by its limit


class ForwardedCall:
    """A forwarded call of the application `app`.

    `sync` is awaited before a call of HTTP, so that the application sees the counts of all front
    ends, and before its response, so that all front ends know its changes.
    """

    def __init__(
        self, ask: AsgiCall, pipe: Pipe[ToMaster], app: ASGIApp, sync: Callable[[], Awaitable[None]]
    ) -> None:
        self._ask = ask
        self._scope: Scope = {
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "root_path": "",
            **msgspec.structs.asdict(ask.scope),
        }
        if memory := ask.scope.upgrade_memory:
            self._scope["extensions"] = {UPGRADE: _quota(memory).allowance(ask.scope.client)}
        self._pipe = pipe
        self._app = app
        self._sync = sync
        self._body_message: asyncio.Future[Message] | None = None
        self._acknowledged = asyncio.Event()
        self._added: dict[str, str] = {}  # headers of the answer

    async def run(self, span: RequestSpan | None) -> None:
        """Run the call; `span` is the span of the front end, None if it is not traced."""
        log.request_id.set(self._ask.request_id)
        current.set(span)
        answer_headers.current.set(self._added.update)
        header_of_task.set(partial(answer_headers.find_header, self._scope["headers"]))
        entry = access.Entry("", "", "")
        access.current.set(entry)
        has_failed = False
        try:
            if self._ask.scope.type != RPC:
                await self._sync()
            await self._app(self._scope, self._receive, self._send)
        except Exception:
            log.error("answering a forwarded request failed", exc_info=True)
            has_failed = True
        entry.request_id = log.request_id.get()
        self._pipe.send(AsgiCallEnd(self._ask.id, has_failed, entry))

    def on_body(self, chunk: BodyChunk) -> None:
        """Handle a chunk of the body, or that the client has disconnected."""
        message: Message = {"type": "http.disconnect"}
        if chunk.stop:
            message = {"type": STOP, "error": ServableUnavailable(chunk.stop)}
        elif not chunk.has_left:
            body = self._pipe.view(chunk.body)  # its memory is freed with the last reference
            message = {"type": "http.request", "body": body, "more_body": chunk.more}
        if self._body_message is not None and not self._body_message.done():
            self._body_message.set_result(message)

    def on_ack(self) -> None:
        """Handle that the front end has sent the last chunk."""
        self._acknowledged.set()

    async def _receive(self) -> Message:
        if self._body_message is None:  # else the previous receiver was cancelled
            self._body_message = asyncio.get_running_loop().create_future()
            self._pipe.send(BodyRequest(self._ask.id))
        message = await asyncio.shield(self._body_message)
        self._body_message = None
        return message

    async def _send(self, message: Message) -> None:
        self._acknowledged.clear()
        if message["type"] == "http.response.start":
            if self._ask.scope.type != RPC:
                await self._sync()
            headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
            headers += ((name.encode(), value.encode()) for name, value in self._added.items())
            route = route_of(self._scope)
            self._pipe.send(ResponseChunk(self._ask.id, message["status"], headers, route=route))
        else:
            body = self._pipe.put(message.get("body", b""))
            self._pipe.send(
                ResponseChunk(self._ask.id, 0, [], body, message.get("more_body", False))
            )
        await self._acknowledged.wait()
