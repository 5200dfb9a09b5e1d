"""Counts the calls of a gRPC service and their answers, and logs them if there is an access log."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Protocol

import grpc

from mindspore_serving import log
from mindspore_serving.frontends import access
from mindspore_serving.frontends.access import Entry, Responses
from mindspore_serving.frontends.memory import MemoryPeer
from mindspore_serving.frontends.message_reader import Context

Behavior = Callable[[Any, Context], Any]
_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


class Unsent(Protocol):
    """Counts answers until they are sent; ends calls for whose answers there is no room."""

    counted_by_method: set[str]  # paths of methods that count for themselves

    async def hold(self, context: Context, num_bytes: int) -> None:
        """Until the call ends."""
        ...

    async def begin(self, context: Context, num_bytes: int) -> MemoryPeer:
        """Until `end`.  Gives whose it is."""
        ...

    def end(self, peer: MemoryPeer, num_bytes: int) -> None: ...


class Counted:
    """A handler in place of the service `inner`, all of whose methods take streams of requests."""

    def __init__(
        self,
        inner: "grpc.GenericRpcHandler[Any, Any]",
        responses: Responses,
        unsent: Unsent | None = None,
    ) -> None:
        """`unsent` counts the answers, and the messages of streams, until they are sent."""
        self._inner = inner
        self._responses = responses
        self._unsent = unsent
        self._known: dict[str, Any] = {}  # methods that exist

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        known = self._known.get(details.method)
        if known is None:
            found = self._inner.service(details)
            if found is None:
                return None
            known = self._known[details.method] = self._counted(found, details.method)
        return known

    def _counted(self, found: Any, path: str) -> Any:
        unsent = self._unsent
        if unsent is not None and path in unsent.counted_by_method:
            unsent = None
        calls = _Calls(path, self._responses, unsent)
        serializers = found.request_deserializer, found.response_serializer
        if found.response_streaming:
            behavior = calls.stream(found.stream_stream)
            return grpc.stream_stream_rpc_method_handler(behavior, *serializers)
        return grpc.stream_unary_rpc_method_handler(calls.unary(found.stream_unary), *serializers)


class _Calls:
    """Of one method."""

    def __init__(self, path: str, responses: Responses, unsent: Unsent | None) -> None:
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
                                yield response  # comes back when it is sent
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
    """The name of the status that a call has ended with, or will."""
    code: Any = context.code() or grpc.StatusCode.OK  # a number, or nothing yet
    return _NAMES.get(code, "UNKNOWN") if isinstance(code, int) else str(code.name)


def _size(response: Any) -> int:
    return len(response) if isinstance(response, bytes) else int(response.ByteSize())
