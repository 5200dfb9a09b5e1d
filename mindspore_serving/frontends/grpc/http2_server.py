"""A gRPC server on this package's HTTP/2, as fast as its RESTful server.  Knows no method."""

from collections.abc import Callable, Sequence
from typing import Any

import grpc

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.frontends.access import ResponseCounter
from mindspore_serving.frontends.address import Address, remove_socket
from mindspore_serving.frontends.grpc.call import GrpcCall, RefusedMethod
from mindspore_serving.frontends.grpc.messages import Code
from mindspore_serving.frontends.http.exchange import Exchange, ExchangeOutput
from mindspore_serving.frontends.http.head import HeadRefusal, RequestHead
from mindspore_serving.frontends.http.server import ExchangeServer
from mindspore_serving.frontends.http2.stream import Http2Stream
from mindspore_serving.tls import Certificates


class GrpcMethods:
    """Opens calls of the methods of `handlers`; messages have at most `max_message` bytes.

    `closing` are called first when the server stops.
    """

    def __init__(
        self,
        handlers: Sequence[Any],
        max_message: int,
        closing: Sequence[Callable[[], None]] = (),
        *,
        max_metadata: int = ServerLimits().max_metadata,
    ) -> None:
        """Create the methods; metadata of a call has at most `max_metadata` bytes."""
        self.handlers, self.max_message, self._closing = handlers, max_message, closing
        self._max_metadata = max_metadata
        self._methods: dict[bytes, Any] = {}

    def find(self, head: RequestHead, output: ExchangeOutput) -> Exchange | None:
        """Return the exchange of a call; None for a request that is no call."""
        is_call = head.fields.get(b"content-type", b"").startswith(b"application/grpc")
        if not is_call or head.method != b"POST" or not isinstance(output, Http2Stream):
            return None
        method = self.method(head.target)
        if head.size > self._max_metadata:
            text = f"the metadata has over {self._max_metadata} bytes"
            method = RefusedMethod(Code.RESOURCE_EXHAUSTED, text)
        return GrpcCall(method, head, output, self.max_message)

    def open(self, head: RequestHead, output: ExchangeOutput) -> Exchange:
        """Return the exchange of a call.  Raises HeadRefusal for a request that is no call."""
        call = self.find(head, output)
        if call is None:
            raise HeadRefusal(415, "This is a gRPC server: send a call of gRPC by HTTP/2.")
        return call

    def close(self) -> None:
        """Let the services know that their server stops."""
        for close in self._closing:
            close()

    def method(self, target: bytes) -> Any:
        """Return the method of a path; of an unknown path, a method that refuses."""
        return self._methods.get(target) or self._find(target)

    def _find(self, target: bytes) -> Any:
        details = _Details(target.decode("latin-1"))
        for handler in self.handlers:
            method = handler.service(details)
            if method is not None:
                self._methods[target] = method
                return method
        return RefusedMethod(Code.UNIMPLEMENTED, f"Method not found: {details.method}")


class _Details(grpc.HandlerCallDetails):
    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()


class Http2GrpcServer(ExchangeServer):
    """A server of gRPC methods alone."""

    def __init__(
        self,
        address: Address,
        methods: GrpcMethods,
        limits: ServerLimits | None = None,
        responses: ResponseCounter | None = None,
    ) -> None:
        super().__init__(address, methods.open, methods.max_message, limits, responses=responses)
        self.shared.speaks_http1 = False  # clients know a server of gRPC by its first frame
        self._calls = methods

    async def start(self, tls: Certificates | None, tag: str = "Serving gRPC server") -> None:
        await super().start(tls, tag)

    async def stop(self, grace: float) -> None:
        if self.is_running:
            self._calls.close()
            await super().stop(grace)
            remove_socket(self.address)
