"""The master's side of gRPC calls that front-end processes forward.  Knows no service."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any, NoReturn

import grpc.aio
from starlette.types import ASGIApp, Receive, Scope, Send

from mindspore_serving import log
from mindspore_serving.frontends.grpc.http2_server import GrpcMethods
from mindspore_serving.frontends.grpc.messages import (
    Code,
    Metadata,
    decode_metadata,
    encode_metadata,
    encode_status,
)
from mindspore_serving.frontends.memory import name_of
from mindspore_serving.server.processes.messages import RPC

_CHANGING = ("/RepositoryModelLoad", "/RepositoryModelUnload")


class RpcApp:
    """An ASGI application that answers gRPC calls by `methods`, and other requests by `other`.

    The chunks of a call are whole messages.  `sync` is awaited after a call that loads or unloads a
    servable, so that all front ends know it.
    """

    def __init__(
        self,
        methods: GrpcMethods,
        sync: Callable[[], Awaitable[None]],
        other: ASGIApp | None = None,
    ) -> None:
        self._methods, self._sync, self._other = methods, sync, other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != RPC:
            assert self._other is not None
            await self._other(scope, receive, send)
            return
        method = self._methods.method(scope["path"].encode("latin-1"))
        call = ForwardedContext(scope, receive, method.request_deserializer)
        try:
            await self._answer(call, method, send)
            call.status = Code.OK
        except grpc.aio.AbortError:
            pass
        except Exception:
            log.error("answering a call", exc_info=True)
            call.status, call.details = Code.UNKNOWN, "the call failed"
        finally:
            call.end()
        if call.path.endswith(_CHANGING):
            await self._sync()
        status = encode_status(call.status or Code.UNKNOWN, call.details)
        fields = [*status, *encode_metadata(call.trailing_metadata())]
        await send({"type": "http.response.start", "status": 200, "headers": fields})

    async def _answer(self, call: "ForwardedContext", method: Any, send: Send) -> None:
        if method.response_streaming:
            async with aclosing(method.stream_stream(call.requests(), call)) as responses:
                async for response in responses:
                    await _send(method, response, send)
        else:
            await _send(method, await method.stream_unary(call.requests(), call), send)


async def _send(method: Any, response: Any, send: Send) -> None:
    serialize = method.response_serializer
    body = response if serialize is None else serialize(response)
    await send({"type": "http.response.body", "body": body, "more_body": True})


class ForwardedContext:
    """The context of a forwarded call, as its method sees it."""

    def __init__(self, scope: Scope, receive: Receive, deserialize: Any) -> None:
        """Create the context; `deserialize` makes messages of bytes, None if they stay bytes."""
        self.path: str = scope["path"]
        self.status: Code | None = None  # None of a call that its client cancels
        self.details = ""
        self._scope, self._receive, self._deserialize = scope, receive, deserialize
        self._metadata: Metadata = tuple(decode_metadata(scope["headers"]))
        self._trailing: Metadata = ()
        self._has_all = False
        self._on_done: list[Callable[[Any], None]] = []
        loop, timeout = asyncio.get_running_loop(), scope["timeout"]
        self._deadline = None if timeout is None else loop.time() + timeout

    def end(self) -> None:
        """Call what was added by `add_done_callback`."""
        for call in self._on_done:
            call(self)

    async def read(self) -> Any:
        """Return the next message of the client; None after the last."""
        if self._has_all:
            return None
        message = await self._receive()
        if message["type"] != "http.request":
            self._has_all = True
            return None
        body = bytes(message["body"])
        return body if self._deserialize is None else self._deserialize(body)

    async def requests(self) -> AsyncIterator[Any]:
        """Iterate over the messages of the client."""
        while (message := await self.read()) is not None:
            yield message

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def set_trailing_metadata(self, trailing: Iterable[tuple[str, str | bytes]]) -> None:
        self._trailing = tuple(trailing)

    def trailing_metadata(self) -> Metadata:
        return self._trailing

    def peer(self) -> str:
        return name_of(self._scope["client"])

    def time_remaining(self) -> float | None:
        """Return the seconds until the client's deadline, None without a deadline."""
        if self._deadline is None:
            return None
        return max(0.0, float(self._deadline - asyncio.get_running_loop().time()))

    def code(self) -> Code | None:
        return self.status

    async def abort(
        self, code: Code, details: str = "", trailing_metadata: Metadata = ()
    ) -> NoReturn:
        self.status, self.details = code, details
        if trailing_metadata:
            self._trailing = tuple(trailing_metadata)
        raise grpc.aio.AbortError(details)

    def cancelled(self) -> bool:
        """Return whether the client has disconnected or cancelled the call."""
        return self.status is None

    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        self._on_done.append(call)
