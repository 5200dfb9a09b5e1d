"""Unary calls by Connect: a POST of a message, as protobuf or JSON, and the answer or an error.

Written after the Connect protocol's specification, version 1.  Streams are called by gRPC or
gRPC-Web.
"""

import re
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec
from google.protobuf import json_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from mindspore_serving.aio import on_thread
from mindspore_serving.frontends.grpc.messages import CallFault, Code
from mindspore_serving.frontends.grpc.web import WebCall, safe_fields
from mindspore_serving.frontends.http.head import RequestHead

VERSION = b"connect-protocol-version"
Kinds: TypeAlias = tuple[type[Message], type[Message]]  # of requests and of responses
_PROTO, _JSON = b"application/proto", b"application/json"
_STREAM, _END = b"application/connect+", 2  # content type, and flag of the last message
_ACCEPTED = b"application/json, application/proto"
_ENCODINGS = b"gzip, identity"
_IS_MILLISECONDS = re.compile(rb"\d{1,10}").fullmatch
_QUICK = 4 << 10  # bytes of a message that is translated on the event loop
_STATUS = {  # of HTTP
    Code.CANCELLED: 499,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
    Code.UNAUTHENTICATED: 401,
}


class ConnectCall(WebCall):
    """A unary call by Connect; `kinds` are the classes of its messages, None if unknown."""

    __slots__ = ("_extra", "_kinds", "_type")

    def __init__(self, *arguments: Any, kinds: Kinds | None) -> None:
        super().__init__(*arguments)
        fields = self._head.fields
        self._type = media_type(self._head)
        self._encoding = fields.get(b"content-encoding", b"identity")
        self._kinds = kinds
        self._extra: list[tuple[bytes, bytes]] = []  # fields of an error
        if self._type == _JSON and kinds is not None:
            self._method = _JsonMethod(self._method, kinds[1])

    def start(self) -> None:
        if self._fault is None:
            try:
                seconds = self._check(self._head)
            except CallFault as fault:
                self._fault = fault
            else:
                self._is_started = True
                self._launch(seconds)
                return
        super().start()

    def _check(self, head: RequestHead) -> float | None:
        """Return the seconds until the deadline.  Raises CallFault for a call that is refused."""
        fields, limit = head.fields, self._max_message
        if self._type not in (_PROTO, _JSON):
            self._extra.append((b"accept-post", _ACCEPTED))
            text = f"the content type is {_shown(self._type)}, expected {_ACCEPTED.decode()}"
            raise CallFault(Code.UNIMPLEMENTED, f"{text}; call streams by gRPC or gRPC-Web")
        version = fields.get(VERSION, b"1")
        if version != b"1":
            text = f"{VERSION.decode()} is {_shown(version)}, expected 1"
            raise CallFault(Code.INVALID_ARGUMENT, text)
        if self._method.response_streaming:
            raise CallFault(Code.UNIMPLEMENTED, "the method streams: call it by gRPC or gRPC-Web")
        if self._encoding not in (b"gzip", b"identity"):
            self._extra.append((b"accept-encoding", _ENCODINGS))
            text = f"the content encoding is {_shown(self._encoding)}"
            raise CallFault(Code.UNIMPLEMENTED, f"{text}, expected {_ENCODINGS.decode()}")
        if head.body_size > limit:
            raise _too_large(head.body_size, limit)
        timeout = fields.get(b"connect-timeout-ms")
        if timeout is None:
            return None
        if not _IS_MILLISECONDS(timeout):
            text = f"connect-timeout-ms is {_shown(timeout)}, expected up to 10 digits"
            raise CallFault(Code.INVALID_ARGUMENT, text)
        return int(timeout) / 1e3

    def feed(self, data: bytes) -> None:
        if self._is_over or self._fault is not None:
            return
        is_first = not self._parts
        self._parts.append(data)
        self._count += len(data)
        try:
            if self._count > self._max_message:
                raise _too_large(self._count, self._max_message)
            if not is_first:
                self._hold(len(data))
        except CallFault as fault:
            self._parts.clear()
            self._stop(fault.code, str(fault))

    def end(self) -> None:
        if not self._is_over and self._fault is None:
            self._messages.append((True, b"".join(self._parts)))  # True: it has to be decoded
            self._parts.clear()
        super().end()

    async def _decompress(self, message: bytes) -> bytes:
        """Decompress a message, and translate it from JSON."""
        if self._encoding == b"gzip":
            message = await super()._decompress(message)
        if self._type == _PROTO:
            return message
        if self._kinds is None:
            raise CallFault(Code.UNIMPLEMENTED, "the method takes no JSON: send application/proto")
        kind, limit = self._kinds[0], self._max_message
        if len(message) < _QUICK:
            return from_json(message, kind, limit)
        return await on_thread("json", from_json, message, kind, limit)

    def _answer(self, response: Any) -> None:
        serialize = self._method.response_serializer
        data: bytes = response if serialize is None else serialize(response)
        if len(data) > self._max_message:
            raise _too_large(len(data), self._max_message)
        if self._is_over:
            return
        self._is_over, self._code, self.status = True, Code.OK, Code.OK.name
        self.num_sent += len(data)
        trailers = [(b"trailer-" + name, value) for name, value in safe_fields(self._trailing)]
        self._finish()
        head = (b"content-type", self._type), *safe_fields(self._initial)
        self._write_whole(200, (*head, *trailers), (data,))

    def _write_end(self, code: Code, text: str) -> None:
        name = "canceled" if code == Code.CANCELLED else code.name.lower()
        error = {"code": name, **({"message": text} if text else {})}
        status = 415 if (b"accept-post", _ACCEPTED) in self._extra else _STATUS.get(code, 500)
        content_type, body = _JSON, msgspec.json.encode(error)
        if self._type.startswith(_STREAM):  # the end of a stream has the error
            status, content_type, body = 200, self._type, msgspec.json.encode({"error": error})
            body = bytes((_END,)) + len(body).to_bytes(4, "big") + body
        head = (b"content-type", content_type), *safe_fields((*self._initial, *self._trailing))
        self._write_whole(status, (*head, *self._extra), (body,))


class _JsonMethod:
    """A method whose responses, of the class `kind`, are translated to JSON."""

    response_serializer = None

    def __init__(self, method: Any, kind: type[Message]) -> None:
        self._method, self._kind = method, kind
        self.response_streaming = method.response_streaming
        self.request_deserializer = method.request_deserializer

    async def stream_unary(self, requests: Any, context: WebCall) -> bytes:
        """Return the response as JSON."""
        response = await self._method.stream_unary(requests, context)
        serialize = self._method.response_serializer
        data: bytes = response if serialize is None else serialize(response)
        if len(data) < _QUICK:
            return to_json(data, self._kind)
        return await on_thread("json", to_json, data, self._kind)


def from_json(text: bytes, kind: type[Message], limit: int) -> bytes:
    """Translate JSON to a message of at most `limit` bytes.  Raises CallFault."""
    try:
        if not text.lstrip().startswith(b"{"):  # the library takes an empty list, too
            raise ValueError("expected an object")
        message = json_format.Parse(text, kind()).SerializeToString()
    except (json_format.Error, ValueError, RecursionError, OverflowError) as error:
        name = kind.DESCRIPTOR.full_name
        reason = f"the body is not JSON of {name}: {error}"
        raise CallFault(Code.INVALID_ARGUMENT, reason) from None
    if len(message) > limit:  # numbers of a digit take more bytes
        raise _too_large(len(message), limit)
    return message


def to_json(data: bytes, kind: type[Message]) -> bytes:
    """Translate a message to JSON."""
    return json_format.MessageToJson(kind.FromString(data), indent=None).encode()


def message_kinds(files: Iterable[FileDescriptor]) -> dict[bytes, Kinds]:
    """Return the classes of the messages of each method, by the path of its calls."""
    return {
        f"/{service.full_name}/{method.name}".encode(): (
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
        )
        for file in files
        for service in file.services_by_name.values()
        for method in service.methods
    }


def media_type(head: RequestHead) -> bytes:
    """Return the content type of a request without its parameters."""
    return head.fields.get(b"content-type", b"").partition(b";")[0].strip().lower()


def _too_large(size: int, limit: int) -> CallFault:
    text = f"message of {size} bytes is larger than max ({limit})"
    return CallFault(Code.RESOURCE_EXHAUSTED, text)


def _shown(value: bytes) -> str:
    return repr(value[:100].decode("latin-1"))
