"""gRPC calls of a front-end process that only the master can answer: passed to the master's own
server, message by message, and its answers back.
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
    ("grpc.enable_retries", 0),  # without a pause, while the master stops: they take gigabytes
]
_CHANGING = ("/RepositoryModelLoad", "/RepositoryModelUnload")
_OWN = ("grpc-", "user-agent", "te", "content-type")  # metadata that each connection has


class Forwarding:
    """A handler of all methods of `services`, which are on the server at `address`."""

    def __init__(
        self,
        address: str,
        services: tuple[str, ...],
        refresh: Callable[[], Awaitable[None]],
        calls: Mapping[str, OpenCalls],
    ) -> None:
        """`refresh` is awaited before a call ends that has changed what is served.  `calls` say how
        many may be passed on, by the end of the method's name: the first that fits.
        """
        self._refresh = refresh
        self._channel = grpc.aio.insecure_channel(address, _OPTIONS)
        self._services = services
        self._calls = calls

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        method = details.method
        if method.strip("/").partition("/")[0] not in self._services:
            return None
        call = self._channel.stream_stream(method, None, None)
        open_calls = next(one for end, one in self._calls.items() if method.endswith(end))

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
        if not name.startswith(_OWN)
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
    """Why the master refuses a call before it reads it, if it does; `empty` is one without a
    message.  grpcio reports INTERNAL if it was about to send the message at that moment.
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
    """Those of the client.  A call that is answered before it has sent all may still be read: gRPC
    could not send the answer if the reading were cancelled.
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


class Choosing:
    """A handler of the methods that `own` has of `methods`: of calls that it `takes`, others are
    passed on.
    """

    def __init__(
        self, own: Any, methods: Collection[str], forwarding: Any, takes: Callable[[Context], bool]
    ) -> None:
        self._own = own
        self._methods = methods
        self._forwarding = forwarding
        self._takes = takes

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Asked once for each method, whoever calls it."""
        own = self._own.service(details) if details.method in self._methods else None
        if own is None:
            return None
        pass_on = self._forwarding.service(details).stream_stream
        if own.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._stream(own.stream_stream, pass_on))
        return grpc.stream_unary_rpc_method_handler(self._unary(own.stream_unary, pass_on))

    def _stream(self, own: Behavior, pass_on: Behavior) -> Behavior:
        async def answer(requests: Any, context: Context) -> AsyncIterator[bytes]:
            behavior = own if self._takes(context) else pass_on
            async with aclosing(behavior(requests, context)) as responses:
                async for response in responses:
                    yield response

        return answer

    def _unary(self, own: Behavior, pass_on: Behavior) -> Behavior:
        async def answer(requests: Any, context: Any) -> Any:
            if self._takes(context):
                context = Reread(context)
                with suppress(RemoteRegionError):
                    return await own(requests, context)
                context.begin_again()
            async with aclosing(pass_on(requests, context)) as responses:
                found = [response async for response in responses]
            return found[-1] if found else b""

        return answer


class Reread:
    """The context of a call, whose messages can be read once more."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._messages: list[Any] = []
        self._again: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def begin_again(self) -> None:
        self._again, self._messages = self._messages, []

    async def read(self) -> Any:
        if self._again:
            return self._again.pop(0)
        message = await self._context.read()
        self._messages.append(message)
        return message
