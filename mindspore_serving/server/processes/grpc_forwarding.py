"""gRPC calls of a front-end process that only the master can answer: passed to the master's own
server, message by message, and its answers back."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from mindspore_serving.frontends.message_reader import Context

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1 << 20),
    ("grpc.use_local_subchannel_pool", 1),
]
_CHANGING = ("/RepositoryModelLoad", "/RepositoryModelUnload")
_OWN = ("grpc-", "user-agent", "te", "content-type")  # metadata that each connection has


class Forwarding:
    """A handler of all methods of `services`, which are on the server at `address`."""

    def __init__(
        self, address: str, services: tuple[str, ...], refresh: Callable[[], Awaitable[None]]
    ) -> None:
        """`refresh` is awaited before a call ends that has changed what is served."""
        self._refresh = refresh
        self._channel = grpc.aio.insecure_channel(address, _OPTIONS)
        self._services = services

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        method = details.method
        if method.strip("/").partition("/")[0] not in self._services:
            return None
        call = self._channel.stream_stream(method, None, None)

        async def answer(_: object, context: Context) -> AsyncIterator[bytes]:
            async for message in _forward(call, context):
                yield message
            if method.endswith(_CHANGING):
                await self._refresh()

        return grpc.stream_stream_rpc_method_handler(answer)


async def _forward(begin: Any, context: Context) -> AsyncIterator[bytes]:
    metadata = [
        (name, value)
        for name, value in context.invocation_metadata() or ()
        if not name.startswith(_OWN)
    ]
    upstream = begin(_messages(context), metadata=metadata, timeout=context.time_remaining())
    try:
        async for message in upstream:
            yield message
        context.set_trailing_metadata(tuple(await upstream.trailing_metadata()))
    except grpc.aio.AioRpcError as error:
        trailing: Any = tuple(error.trailing_metadata() or ())
        await context.abort(error.code(), error.details() or "", trailing)
    finally:
        upstream.cancel()


async def _messages(context: Context) -> AsyncIterator[Any]:
    while isinstance(message := await context.read(), bytes):
        yield message


class Choosing:
    """The handler of calls that `takes` accepts is `own`, of others `forwarding`."""

    def __init__(
        self, own: Any, forwarding: Any, takes: Callable[[grpc.HandlerCallDetails], bool]
    ) -> None:
        self._own = own
        self._forwarding = forwarding
        self._takes = takes

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return (self._own if self._takes(details) else self._forwarding).service(details)
