"""One classic RESTful call on the short way: from the parser to the dispatcher and back.

Parsing and the connection are `http_protocol`'s.
"""

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from mindspore_serving import log
from mindspore_serving.core.service import Call, Reply
from mindspore_serving.errors import ServingError
from mindspore_serving.frontends import rest_ms

if TYPE_CHECKING:
    from mindspore_serving.frontends.http_protocol import ServingProtocol

_OK = STATUS_LINE[200] + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_OTHER = b"%bcontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"


class _NoEvent:
    """In place of the event by which uvicorn wakes an application."""

    def set(self) -> None:
        """Nobody waits for it."""


class DirectCycle:
    """One request on the short way, in the shape uvicorn's protocol expects of a cycle."""

    __slots__ = (
        "_is_called",
        "body",
        "call",
        "error",
        "is_accepted",
        "keep_alive",
        "message_event",
        "more_body",
        "protocol",
        "response_complete",
        "route",
        "timeout",
    )
    _EVENT = _NoEvent()

    def __init__(self, protocol: "ServingProtocol", *, keep_alive: bool) -> None:
        self.protocol = protocol
        self.keep_alive = keep_alive
        self.body: bytes | bytearray = b""
        self.more_body = True
        self.response_complete = False
        self.message_event = self._EVENT
        self.is_accepted = False  # its turn on the connection has come
        self.error: ServingError | None = None
        self.route: Any = None
        self.timeout: float | None = None
        self.call: Call | None = None
        self._is_called = False

    @property
    def disconnected(self) -> bool:
        return self.response_complete

    @disconnected.setter
    def disconnected(self, value: bool) -> None:
        self.response_complete = True
        if self.call is not None:
            self.call.cancel()

    def proceed(self) -> None:
        """Submit when the body is there and earlier answers are out."""
        if self._is_called or not self.is_accepted or (self.more_body and self.error is None):
            return
        if self.protocol.flow.write_paused:
            return  # the client does not read the answers it has; `resume_writing` comes back here
        self._is_called = True
        if self.error is None:
            try:
                request = rest_ms.to_request(self.route, self.body, self.timeout)
                self.body = b""
                self.call = self.protocol.inference.submit(request, self._on_reply)
                return
            except ServingError as error:
                self.error = error
            except Exception:
                log.error("submitting a request", exc_info=True)
                self.error = ServingError("Predict failed")
        self._write(*rest_ms.to_error(self.error))

    def _on_reply(self, reply: Reply) -> None:
        try:
            status, body = rest_ms.to_body(reply)
        except Exception:
            log.error("answering a request", exc_info=True)
            status, body = rest_ms.to_error(ServingError("Failed to construct the response"))
        self._write(status, body)

    def _write(self, status: int, body: bytes) -> None:
        protocol = self.protocol
        if self.response_complete or protocol.transport.is_closing():
            return
        self.response_complete = True
        if self.more_body:
            self.keep_alive = False  # refused before it was read
        if not protocol.use_status_codes and status != 401:
            status = 200
        if status == 200 and self.keep_alive:
            protocol.transport.write(_OK % (len(body), body))
        else:
            close = b"" if self.keep_alive else b"connection: close\r\n"
            protocol.transport.write(_OTHER % (STATUS_LINE[status], close, len(body), body))
        if self.more_body:
            protocol.linger()
        elif not self.keep_alive:
            protocol.transport.close()
        if protocol.pipeline:  # not by recursion: there may be many
            protocol.loop.call_soon(protocol.on_response_complete)
        else:
            protocol.on_response_complete()
