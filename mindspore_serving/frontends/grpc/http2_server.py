"""A gRPC server on this package's HTTP/2, as fast as its RESTful server.  Knows no method."""

from collections.abc import Callable, Sequence
from typing import Any

import grpc
from google.protobuf.descriptor import FileDescriptor

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.frontends.access import ResponseCounter
from mindspore_serving.frontends.address import Address, remove_socket
from mindspore_serving.frontends.grpc.call import GrpcCall, RefusedMethod
from mindspore_serving.frontends.grpc.connect import (
    VERSION,
    ConnectCall,
    media_type,
    message_kinds,
)
from mindspore_serving.frontends.grpc.direct import DirectCall
from mindspore_serving.frontends.grpc.messages import Code, call_head
from mindspore_serving.frontends.grpc.unary import DirectMethod
from mindspore_serving.frontends.grpc.web import WEB_TYPES, GrpcWebCall
from mindspore_serving.frontends.http.exchange import Exchange, ExchangeOutput, Fields
from mindspore_serving.frontends.http.head import HeadRefusal, RequestHead
from mindspore_serving.frontends.http.server import ExchangeServer
from mindspore_serving.frontends.http2.stream import Http2Stream
from mindspore_serving.tls import Certificates

_WEB = b"application/grpc-web"


class GrpcMethods:
    """Opens calls of the methods of `handlers`; messages have at most `max_message` bytes.

    `closing` are called first when the server stops.  Clients may call the services of the
    descriptors `files` by Connect, too.
    """

    def __init__(
        self,
        handlers: Sequence[Any],
        max_message: int,
        closing: Sequence[Callable[[], None]] = (),
        *,
        max_metadata: int = ServerLimits().max_metadata,
        files: Sequence[FileDescriptor] = (),
    ) -> None:
        """Create the methods; metadata of a call has at most `max_metadata` bytes."""
        self.handlers, self.max_message, self._closing = handlers, max_message, closing
        self._max_metadata = max_metadata
        self._methods: dict[bytes, Any] = {}
        self._kinds = message_kinds(files)
        self._services = {_service_of(path) for path in self._kinds}

    def is_call(self, head: RequestHead) -> bool:
        """Return whether a request is a call by gRPC, gRPC-Web or Connect."""
        if head.facts is not None:  # as of an earlier request with the same head
            return True
        if head.method != b"POST":
            return False
        kind = head.fields.get(b"content-type", b"")
        if kind.startswith(b"application/grpc"):
            return head.version == "2" or kind.startswith(_WEB)
        return VERSION in head.fields or _service_of(head.target) in self._services

    def open(self, head: RequestHead, output: ExchangeOutput, cors: Fields = ()) -> Exchange:
        """Return the exchange of a call; a web page may read its answer by the fields `cors`.

        Raises HeadRefusal for messages of an unknown form.
        """
        facts = call_head(head)
        method = self.method(head.target)
        if facts.size > self._max_metadata:
            text = f"the metadata has over {self._max_metadata} bytes"
            method = RefusedMethod(Code.RESOURCE_EXHAUSTED, text)
        kind = head.fields.get(b"content-type", b"")
        if not kind.startswith(b"application/grpc"):
            kinds = self._kinds.get(head.target)
            return ConnectCall(method, head, output, self.max_message, cors, kinds=kinds)
        if not kind.startswith(_WEB):
            assert isinstance(output, Http2Stream)
            direct = method.stream_unary
            if isinstance(direct, DirectMethod):
                return DirectCall(direct, facts, output, self.max_message)
            return GrpcCall(method, head, output, self.max_message)
        is_text = WEB_TYPES.get(media_type(head))
        if is_text is None:
            accepted = b", ".join(WEB_TYPES).decode()
            raise HeadRefusal(415, f"The content type is not one of gRPC-Web: {accepted}.")
        return GrpcWebCall(method, head, output, self.max_message, cors, is_text=is_text)

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


def _service_of(path: bytes) -> bytes:
    return path[1:].partition(b"/")[0]


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
        super().__init__(address, self._open, methods.max_message, limits, responses=responses)
        self.shared.speaks_http1 = False  # clients know a server of gRPC by its first frame
        self._calls = methods

    def _open(self, head: RequestHead, output: ExchangeOutput) -> Exchange:
        if not self._calls.is_call(head):
            raise HeadRefusal(415, "This is a gRPC server: send a call of gRPC by HTTP/2.")
        return self._calls.open(head, output)

    async def start(self, tls: Certificates | None, tag: str = "Serving gRPC server") -> None:
        await super().start(tls, tag)

    async def stop(self, grace: float) -> None:
        if self.is_running:
            self._calls.close()
            await super().stop(grace)
            remove_socket(self.address)
