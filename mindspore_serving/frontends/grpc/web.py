"""Calls over any version of HTTP, whose status is in the body or the head: gRPC-Web.

Browsers can neither read trailers nor speak HTTP/2 by themselves.
"""

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any

from mindspore_serving.core.buffers import Buffer, join
from mindspore_serving.frontends.grpc.call import GrpcCall
from mindspore_serving.frontends.grpc.messages import (
    CallFault,
    Code,
    Metadata,
    encode_metadata,
    encode_status,
)
from mindspore_serving.frontends.http.exchange import ExchangeOutput, Fields
from mindspore_serving.frontends.http.head import RequestHead

WEB_TYPES = {  # by content type of a request: whether its body is text
    b"application/grpc-web": False,
    b"application/grpc-web+proto": False,
    b"application/grpc-web-text": True,
    b"application/grpc-web-text+proto": True,
}
_ANSWER_TYPES = (b"application/grpc-web+proto", b"application/grpc-web-text+proto")
_TRAILERS = 0x80  # flag of the last frame of an answer, which has the trailers
_GROUPS = re.compile(rb"[^=]+=*")
_UNSAFE = re.compile(rb"[\r\n\0]")


class WebCall(GrpcCall):
    """A call by a request of any version of HTTP.

    `cors` are the fields of its answer that let a web page read it.
    """

    is_timed = True
    __slots__ = ("_cors", "_fault", "_is_started")
    output: ExchangeOutput  # type: ignore[assignment]

    def __init__(
        self, method: Any, head: RequestHead, output: Any, limit: int, cors: Fields = ()
    ) -> None:
        """Create a call of a method handler, with messages of at most `limit` bytes."""
        super().__init__(method, head, output, limit)
        self.keep_alive, self._cors = head.keep_alive, cors
        self._is_started = False
        self._fault: CallFault | None = None  # that ends the call when it is started

    def start(self) -> None:
        self._is_started = True
        if self._fault is None:
            super().start()
        else:
            self._end(self._fault.code, str(self._fault))

    def feed(self, data: bytes) -> None:
        if self._fault is None:
            super().feed(data)

    def _stop(self, code: Code, text: str) -> None:
        if self._is_started:
            self._end(code, text)
        else:  # an earlier request of the connection is being answered
            self._fault = CallFault(code, text)

    async def read(self) -> Any:
        """Return the next message of the client; None after the last."""
        if self._head.expects_continue and not (self.is_complete or self._is_over):
            self.output.send_continue()
        return await super().read()

    def _write_whole(self, status: int, fields: Fields, parts: Sequence[Buffer]) -> None:
        """Write a whole answer, after which the connection goes on if all of its call was read."""
        self.has_responded = True
        self.keep_alive = self.keep_alive and self.is_complete
        body, head = join(parts), (*fields, *self._cors)
        self.output.answer(status, head, body, keep_alive=self.keep_alive)


class GrpcWebCall(WebCall):
    """A call by gRPC-Web; with `is_text` both bodies are in base64."""

    __slots__ = ("_is_text", "_rest")

    def __init__(self, *arguments: Any, is_text: bool) -> None:
        super().__init__(*arguments)
        self._is_text, self._rest = is_text, b""

    def feed(self, data: bytes) -> None:
        if self._is_text and not self._is_over:
            try:
                data = self._decode(data)
            except binascii.Error:
                self._stop(Code.INVALID_ARGUMENT, "the body of a grpc-web-text call is not base64")
                return
        super().feed(data)

    def _decode(self, data: bytes) -> bytes:
        """Decode base64, which may be padded between any two frames; keep an incomplete group."""
        data = self._rest + data
        end = len(data) & ~3
        data, self._rest = data[:end], data[end:]
        groups = [base64.b64decode(group, validate=True) for group in _GROUPS.findall(data)]
        return b"".join(groups)

    def _begin_message(self) -> None:
        if self._prefix[0] & _TRAILERS:
            raise CallFault(Code.INVALID_ARGUMENT, "a request has a frame of trailers")
        super()._begin_message()

    def _answer(self, response: Any) -> None:
        parts = self._framed(response)
        if not self._is_over:
            self._is_over, self._code, self.status = True, Code.OK, Code.OK.name
            self._finish()
            self._write_frames(*parts, self._trailers(Code.OK, ""))

    def _send(self, response: Any) -> None:
        parts = self._framed(response)
        if self._is_over:
            return
        if not self.has_responded:
            self.has_responded = True
            version = self._head.version
            self.keep_alive = self.keep_alive and self.is_complete and version != "1.0"
            fields = (*self._fields(), *self._cors)
            is_chunked = version == "1.1"
            self.output.begin(200, fields, keep_alive=self.keep_alive, is_chunked=is_chunked)
        self.output.write(self._encoded(parts))

    def _write_end(self, code: Code, text: str) -> None:
        trailers = self._trailers(code, text)
        if self.has_responded:
            self.output.write(self._encoded((trailers,)))
            self.output.finish()
        else:
            self._write_frames(trailers)

    def _write_frames(self, *parts: Buffer) -> None:
        self._write_whole(200, self._fields(), (self._encoded(parts),) if self._is_text else parts)

    def _encoded(self, parts: Sequence[Buffer]) -> bytes:
        data = b"".join(parts)
        return base64.b64encode(data) if self._is_text else data

    def _fields(self) -> Fields:
        content_type = (b"content-type", _ANSWER_TYPES[self._is_text])
        return (content_type, *safe_fields(self._initial))

    def _trailers(self, code: Code, text: str) -> bytes:
        """Return the frame of trailers."""
        fields = [*encode_status(code, text), *safe_fields(self._trailing)]
        data = b"".join([b"%b: %b\r\n" % field for field in fields])
        return bytes((_TRAILERS,)) + len(data).to_bytes(4, "big") + data


def safe_fields(metadata: Metadata) -> Fields:
    """Return the fields of metadata; a line end, which would begin another field, is a space."""
    return [(name, _UNSAFE.sub(b" ", value)) for name, value in encode_metadata(metadata)]
