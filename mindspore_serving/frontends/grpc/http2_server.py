"""A gRPC server on this package's HTTP/2, as fast as its RESTful server.  Knows no method."""

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.frontends.access import ResponseCounter
from mindspore_serving.frontends.address import Address
from mindspore_serving.frontends.grpc.call import GrpcCall, UnknownMethod
from mindspore_serving.frontends.http.exchange import Exchange, ExchangeOutput
from mindspore_serving.frontends.http.head import HeadRefusal, RequestHead
from mindspore_serving.frontends.http.server import ExchangeServer
from mindspore_serving.frontends.http2.stream import Http2Stream
from mindspore_serving.tls import Certificates


class GrpcMethods:
    """Opens calls of the methods of `handlers`; messages have at most `max_message` bytes."""

    def __init__(self, handlers: Sequence[Any], max_message: int) -> None:
        self._handlers, self._max_message = handlers, max_message
        self._methods: dict[bytes, Any] = {}

    def open(self, head: RequestHead, output: ExchangeOutput) -> Exchange:
        """Return the exchange of a call.  Raises HeadRefusal for a request that is no call."""
        is_call = head.fields.get(b"content-type", b"").startswith(b"application/grpc")
        if not is_call or head.method != b"POST" or not isinstance(output, Http2Stream):
            raise HeadRefusal(415, "This is a gRPC server: send a call of gRPC by HTTP/2.")
        method = self._methods.get(head.target) or self._find(head.target)
        return GrpcCall(method, head, output, self._max_message)

    def _find(self, target: bytes) -> Any:
        details = _Details(target.decode("latin-1"))
        for handler in self._handlers:
            method = handler.service(details)
            if method is not None:
                self._methods[target] = method
                return method
        return UnknownMethod(details.method)


class _Details(grpc.HandlerCallDetails):
    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()


class Http2GrpcServer:
    """A server of gRPC methods, started and stopped like `GrpcServer`."""

    def __init__(
        self,
        address: Address,
        handlers: Sequence[Any],
        limits: ServerLimits | None = None,
        closing: Sequence[Callable[[], None]] = (),
        responses: ResponseCounter | None = None,
    ) -> None:
        """Create a server; `closing` are called first when it stops."""
        self.address = address
        self._handlers, self._limits, self._closing = handlers, limits, closing
        self._responses = responses
        self._server: ExchangeServer | None = None

    async def start(self, max_message: int, tls: Certificates | None) -> None:
        """Listen and serve; `max_message` is in bytes.

        Raises StartError if the address cannot be bound.
        """
        methods = GrpcMethods(self._handlers, max_message)
        server = ExchangeServer(
            self.address, methods.open, max_message, self._limits, responses=self._responses
        )
        self._remove_dead_socket()
        await server.start(tls, "Serving gRPC server")
        self._server = server

    async def stop(self, grace: float) -> None:
        """Refuse new calls, give running ones `grace` seconds, free the port."""
        server, self._server = self._server, None
        if server is not None:
            for close in self._closing:
                close()
            await server.stop(grace)
            self._remove_dead_socket()

    def _remove_dead_socket(self) -> None:
        """Remove the file of a unix socket, which outlives its server."""
        path = self.address.path
        with suppress(OSError):
            if path and stat.S_ISSOCK(os.stat(path).st_mode):
                os.unlink(path)
