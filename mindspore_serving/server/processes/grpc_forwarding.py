"""The gRPC methods of a front-end process, which the process answers itself or the master does.

A call that the master answers passes message by message in both directions.  Knows no service.
"""

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing, suppress
from typing import Any, TypeAlias
from urllib.parse import unquote

from starlette.types import Message, Scope

from mindspore_serving.frontends.grpc.messages import (
    Code,
    Metadata,
    decode_metadata,
    encode_metadata,
)
from mindspore_serving.frontends.memory import client_of
from mindspore_serving.frontends.message_reader import Context
from mindspore_serving.frontends.v2.shared_memory import RemoteRegionError
from mindspore_serving.server.processes.master_app import MasterCalls
from mindspore_serving.server.processes.messages import RPC

Behavior: TypeAlias = Callable[[Any, Any], Any]
_CODES = {b"%d" % code.value[0]: code for code in Code}
_STATUS, _TEXT = b"grpc-status", b"grpc-message"


class FrontEndMethods:
    """A handler with the methods of `handlers`.

    This process answers calls of the methods `local`, by path, for which `takes` returns True; the
    application `server` of the master answers the others.  With `rereads` it answers also those for
    which a method raises RemoteRegionError.
    """

    def __init__(
        self,
        handlers: Collection[Any],
        local: Collection[str],
        master: MasterCalls,
        server: int,
        *,
        takes: Callable[[Any], bool],
        rereads: bool,
    ) -> None:
        self._handlers, self._local = handlers, local
        self._master, self._server = master, server
        self._takes = takes
        self._rereads = rereads

    def service(self, details: Any) -> Any:
        """Return the method of a path, None for a path that no service has."""
        methods = (handler.service(details) for handler in self._handlers)
        method = next((method for method in methods if method is not None), None)
        if method is None:
            return None
        streams = method.response_streaming
        forward = MasterMethod(self._master, self._server, details.method, streams=streams)
        if details.method not in self._local:
            return forward
        if streams:
            stream = self._stream(method.stream_stream, forward.stream_stream)
            return method._replace(stream_stream=stream)
        return method._replace(stream_unary=self._unary(method.stream_unary, forward.stream_unary))

    def _stream(self, local: Behavior, forward: Behavior) -> Behavior:
        def answer(requests: Any, context: Context) -> Any:
            return (local if self._takes(context) else forward)(requests, context)

        return answer

    def _unary(self, local: Behavior, forward: Behavior) -> Behavior:
        async def answer(requests: Any, context: Any) -> Any:
            if self._takes(context):
                if not self._rereads:
                    return await local(requests, context)
                context = RereadableContext(context)
                with suppress(RemoteRegionError):
                    return await local(requests, context)
                context.rewind()
            return await forward(requests, context)

        return answer


class MasterMethod:
    """A method that the master answers, for the server `server`; `streams` if by a stream."""

    request_deserializer = response_serializer = None

    def __init__(self, master: MasterCalls, server: int, path: str, *, streams: bool) -> None:
        self._master, self._server, self._path = master, server, path
        self.response_streaming = streams

    async def stream_unary(self, requests: object, context: Any) -> bytes:
        """Return the only message of the master.  Aborts the call if there is none."""
        async with aclosing(self.stream_stream(requests, context)) as responses:
            received = [bytes(response) async for response in responses]
        return received[-1]

    async def stream_stream(self, _: object, context: Any) -> AsyncGenerator[Any, None]:
        """Iterate over the messages of the master, and end the call with its status."""

        async def receive() -> Message:
            message = await context.read()
            if message is None:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": message, "more_body": True}

        fields: list[tuple[bytes, bytes]] = []
        scope = _scope_of(self._path, context)
        async with aclosing(self._master.run(self._server, scope, receive)) as answer:
            async for message in answer:
                if message["type"] == "http.response.start":
                    fields = message["headers"]
                else:
                    yield message["body"]
        status = {name: value for name, value in fields if name in (_STATUS, _TEXT)}
        code, text = _CODES[status[_STATUS]], unquote(status.get(_TEXT, b"").decode())
        trailing = tuple(decode_metadata(row for row in fields if row[0] not in status))
        if code is not Code.OK:
            await context.abort(code, text, trailing)
        context.set_trailing_metadata(trailing)


def _scope_of(path: str, context: Any) -> Scope:
    metadata: Metadata = context.invocation_metadata()
    return {
        "type": RPC,
        "http_version": "2",
        "scheme": "",
        "server": None,
        "client": client_of(context.peer()),
        "method": "POST",
        "path": path,
        "raw_path": b"",
        "query_string": b"",
        "headers": [*encode_metadata(metadata)],
        "timeout": context.time_remaining(),
    }


class RereadableContext:
    """The context of a call whose messages can be read again after `rewind`."""

    def __init__(self, context: Any) -> None:
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
