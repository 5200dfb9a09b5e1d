"""Counting of gRPC calls and their answers, and their lines in the access log."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Protocol

import grpc

from mindspore_serving import log
from mindspore_serving.frontends import access
from mindspore_serving.frontends.access import Entry, ResponseCounter
from mindspore_serving.frontends.memory import MemoryPeer
from mindspore_serving.frontends.message_reader import Context

Behavior = Callable[[Any, Context], Any]
_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


class UnsentCounter(Protocol):
    """A counter of answers until they are sent; it aborts calls whose answers have no room."""

    counted_by_method: set[str]  # paths of methods that count their answers themselves

    async def hold(self, context: Context, num_bytes: int) -> None:
        """Count an answer until the call ends."""
        ...

    async def begin(self, context: Context, num_bytes: int) -> MemoryPeer:
        """Count a message until `end`; return its peer."""
        ...

    def end(self, peer: MemoryPeer, num_bytes: int) -> None:
        """Release a message that is sent."""
        ...


class CountingHandler:
    """A handler around the service `inner`, whose methods all take streams of requests."""

    def __init__(
        self,
        inner: "grpc.GenericRpcHandler[Any, Any]",
        responses: ResponseCounter,
        unsent: UnsentCounter | None = None,
    ) -> None:
        """Count calls in `responses`, and answers in `unsent` until they are sent."""
        self._inner = inner
        self._responses = responses
        self._unsent = unsent
        self._handlers: dict[str, Any] = {}  # by path

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        handler = self._handlers.get(details.method)
        if handler is None:
            inner = self._inner.service(details)
            if inner is None:
                return None
            handler = self._handlers[details.method] = self._counted(inner, details.method)
        return handler

    def _counted(self, handler: Any, path: str) -> Any:
        unsent = self._unsent
        if unsent is not None and path in unsent.counted_by_method:
            unsent = None
        calls = _Calls(path, self._responses, unsent)
        serializers = handler.request_deserializer, handler.response_serializer
        if handler.response_streaming:
            behavior = calls.stream(handler.stream_stream)
            return grpc.stream_stream_rpc_method_handler(behavior, *serializers)
        return grpc.stream_unary_rpc_method_handler(calls.unary(handler.stream_unary), *serializers)


class _Calls:
    """Calls of one method."""

    def __init__(self, path: str, responses: ResponseCounter, unsent: UnsentCounter | None) -> None:
        self._path = path
        self._protocol = access.protocol_of_service(path.strip("/").partition("/")[0])
        self._responses = responses
        self._unsent = unsent

    def unary(self, behavior: Behavior) -> Behavior:
        async def answer(requests: Any, context: Context) -> Any:
            entry, num_sent = self._begin(context), 0
            try:
                response = await behavior(requests, context)
                if self._unsent is not None:
                    await self._unsent.hold(context, len(response))
                num_sent = len(response)
                return response
            finally:
                self._end(context, entry, num_sent)

        return answer

    def stream(self, behavior: Behavior) -> Behavior:
        async def answer(requests: Any, context: Context) -> AsyncIterator[Any]:
            entry, num_sent = self._begin(context), 0
            try:
                async with aclosing(behavior(requests, context)) as responses:
                    async for response in responses:
                        size = _size(response)
                        num_sent += size
                        if self._unsent is None:
                            yield response
                        else:
                            peer = await self._unsent.begin(context, size)
                            try:
                                yield response  # resumes when it is sent
                            finally:
                                self._unsent.end(peer, size)
            finally:
                self._end(context, entry, num_sent)

        return answer

    def _begin(self, context: Context) -> Entry | None:
        if not self._responses.is_logged:
            return None
        entry = Entry(context.peer(), "", self._path)
        access.current.set(entry)
        return entry

    def _end(self, context: Context, entry: Entry | None, num_sent: int) -> None:
        name = status_of(context)
        if isinstance(sys.exc_info()[1], (asyncio.CancelledError, GeneratorExit)):
            name = grpc.StatusCode.CANCELLED.name
        if entry is not None:
            entry.request_id = log.request_id.get()
        self._responses.add(self._protocol, name, entry, num_sent)


def status_of(context: Context) -> str:
    """Return the name of the status with which a call has ended, or will end."""
    code: Any = context.code() or grpc.StatusCode.OK  # an int, or None before the end
    return _NAMES.get(code, "UNKNOWN") if isinstance(code, int) else str(code.name)


def _size(response: Any) -> int:
    return len(response) if isinstance(response, bytes) else int(response.ByteSize())
