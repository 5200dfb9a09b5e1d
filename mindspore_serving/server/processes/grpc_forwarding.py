"""Forwarding of gRPC calls from a front-end process to the master's own gRPC server.

Calls that only the master can answer are relayed message by message, in both directions.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, suppress
from typing import Any

import grpc
import grpc.aio

from mindspore_serving.frontends.grpc.access import Behavior
from mindspore_serving.frontends.grpc.calls import OpenCalls
from mindspore_serving.frontends.message_reader import Context
from mindspore_serving.frontends.v2.shared_memory import RemoteRegionError

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1 << 20),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),  # while the master stops, retries without a pause take gigabytes
]
_CHANGING = ("/RepositoryModelLoad", "/RepositoryModelUnload")
_HOP_BY_HOP = ("grpc-", "user-agent", "te", "content-type")  # metadata of a single connection


class Forwarder:
    """A handler that forwards all methods of `services` to the server at `address`."""

    def __init__(
        self,
        address: str,
        services: tuple[str, ...],
        refresh: Callable[[], Awaitable[None]],
        calls: Mapping[str, OpenCalls],
    ) -> None:
        """Create the handler and its channel.

        Args:
            address: address of the master's gRPC server.
            services: full names of the gRPC services.
            refresh: awaited before the end of a call that loads or unloads a servable.
            calls: limits of concurrent calls by suffix of the method's name; the first match
                counts.
        """
        self._refresh = refresh
        self._channel = grpc.aio.insecure_channel(address, _OPTIONS)
        self._services = services
        self._calls = calls

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a method, None if it belongs to no forwarded service."""
        method = details.method
        if method.strip("/").partition("/")[0] not in self._services:
            return None
        call = self._channel.stream_stream(method, None, None)
        open_calls = next(calls for suffix, calls in self._calls.items() if method.endswith(suffix))

        async def answer(_: object, context: Context) -> AsyncIterator[bytes]:
            async with open_calls.holding(context):
                async for message in _forward(call, context):
                    yield message
            if method.endswith(_CHANGING):
                await self._refresh()

        return grpc.stream_stream_rpc_method_handler(answer)


async def _forward(begin: Any, context: Context) -> AsyncIterator[bytes]:
    metadata = [
        (name, value)
        for name, value in context.invocation_metadata() or ()
        if not name.startswith(_HOP_BY_HOP)
    ]
    upstream = begin(_messages(context), metadata=metadata, timeout=context.time_remaining())
    has_begun = False
    try:
        async for message in upstream:
            has_begun = True
            yield message
        context.set_trailing_metadata(tuple(await upstream.trailing_metadata()))
    except grpc.aio.AioRpcError as failure:
        error = failure
        if error.code() is grpc.StatusCode.INTERNAL and not has_begun:
            empty = begin(_no_messages(), metadata=metadata, timeout=context.time_remaining())
            error = await _refusal(empty) or error
        trailing: Any = tuple(error.trailing_metadata() or ())
        await context.abort(error.code(), error.details() or "", trailing)
    finally:
        upstream.cancel()


async def _refusal(empty: Any) -> grpc.aio.AioRpcError | None:
    """Return the error with which the master refuses a call before reading it, None if it does not.

    If the master refuses a call while grpcio is about to send a message, grpcio reports INTERNAL
    instead of the master's error; `empty` is the same call without a message.
    """
    try:
        async for _ in empty:
            pass
    except grpc.aio.AioRpcError as error:
        return None if error.code() is grpc.StatusCode.INVALID_ARGUMENT else error
    finally:
        empty.cancel()
    return None


async def _no_messages() -> AsyncIterator[bytes]:
    nothing: tuple[bytes, ...] = ()
    for message in nothing:
        yield message


async def _messages(context: Context) -> AsyncIterator[Any]:
    """Iterate over the messages of the client.

    A read is never cancelled: gRPC could not send the response of a call that ends before the
    client has sent all its messages.
    """
    while True:
        reading = asyncio.ensure_future(_read(context))
        message = await asyncio.shield(reading)
        if not isinstance(message, bytes):
            return
        yield message


async def _read(context: Context) -> Any:
    with suppress(asyncio.CancelledError, grpc.aio.BaseError):  # the call has ended
        return await context.read()


class CallRouter:
    """A handler that answers calls of some methods in this process, and forwards the rest.

    `local` is the handler of `methods` in this process, for calls for which `takes` returns True;
    `forwarding` handles the other calls.
    """

    def __init__(
        self,
        local: Any,
        methods: Collection[str],
        forwarding: Any,
        takes: Callable[[Context], bool],
    ) -> None:
        self._local = local
        self._methods = methods
        self._forwarding = forwarding
        self._takes = takes

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a method, None if it is none of `methods`.

        Called once per method, so the decision about a call is made in the handler.
        """
        local = self._local.service(details) if details.method in self._methods else None
        if local is None:
            return None
        forward = self._forwarding.service(details).stream_stream
        if local.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._stream(local.stream_stream, forward))
        return grpc.stream_unary_rpc_method_handler(self._unary(local.stream_unary, forward))

    def _stream(self, local: Behavior, forward: Behavior) -> Behavior:
        async def answer(requests: Any, context: Context) -> AsyncIterator[bytes]:
            behavior = local if self._takes(context) else forward
            async with aclosing(behavior(requests, context)) as responses:
                async for response in responses:
                    yield response

        return answer

    def _unary(self, local: Behavior, forward: Behavior) -> Behavior:
        async def answer(requests: Any, context: Any) -> Any:
            if self._takes(context):
                context = RereadableContext(context)
                with suppress(RemoteRegionError):
                    return await local(requests, context)
                context.rewind()
            async with aclosing(forward(requests, context)) as responses:
                received = [response async for response in responses]
            return received[-1] if received else b""

        return answer


class RereadableContext:
    """The context of a call whose messages can be read again after `rewind`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._messages: list[Any] = []
        self._rewound: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def rewind(self) -> None:
        """Let `read` return the messages read so far once more."""
        self._rewound, self._messages = self._messages, []

    async def read(self) -> Any:
        """Return the next message."""
        if self._rewound:
            return self._rewound.pop(0)
        message = await self._context.read()
        self._messages.append(message)
        return message
