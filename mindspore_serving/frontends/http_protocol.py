"""uvicorn's HTTP protocol with a short way for `POST /model/...`.

An ASGI application costs a task, two queues and a dozen dictionaries per request.  The classic
RESTful calls need none of that: their body goes to the dispatcher when it is complete, and the
answer is written when it comes.  Everything else takes uvicorn's ordinary way.  Parsing,
pipelining and keep-alive are uvicorn's and httptools'.
"""

import asyncio
import math
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mindspore_serving.core.service import Inference
from mindspore_serving.errors import ServingError, Unauthorized
from mindspore_serving.frontends import rest_ms
from mindspore_serving.frontends.http_direct import DirectCycle
from mindspore_serving.frontends.keys import TEXT, Keys

IDLE_TIMEOUT = 100.0  # seconds without a byte before a connection is closed
MOST_HEAD = 64 * 1024  # bytes of request line and headers
LINGER = 5.0  # seconds to read on after a refusal in the middle of a body
_PREFIX = b"/model/"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ServingProtocol(HttpToolsProtocol):
    """One connection."""

    inference: Inference
    use_status_codes = False
    max_body = 100 << 20
    keys = Keys()
    active: Any = None  # the cycle whose answer is next
    _num_head = -math.inf  # bytes of a head whose end has not come; -inf outside of one
    _again = b""  # the head of a request that offered another protocol, to be read once more
    _is_lingering = False
    _heard_at = 0.0  # loop time of the last data or answer
    _unread = (0, 0.0)  # bytes that the client did not take, and the loop time they were so many

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._heard_at = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if type(self.active) is DirectCycle and not self.active.response_complete:
            self.active.disconnected = True

    def data_received(self, data: bytes) -> None:
        if self._is_lingering:
            return
        self._num_head += len(data)
        self._parse(data)
        if self._num_head > MOST_HEAD and not self.transport.is_closing():
            self.send_400_response(f"The headers are bigger than {MOST_HEAD} bytes.")
        self._heard_at = self.loop.time()

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stop:
                data, self._again = self._again and self._again + data[stop.args[0] :], b""
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return
            else:
                return

    def on_response_complete(self) -> None:
        """As uvicorn's, but without a timer per request: `close_if_idle` is called instead."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._heard_at = self.loop.time()
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def close_if_idle(self, now: float) -> None:
        """Close the connection if it has waited long for data that did not come, or for its client
        to read an answer."""
        size = self.transport.get_write_buffer_size()
        if size:
            if size != self._unread[0]:
                self._unread = (size, now)
            elif now - self._unread[1] > IDLE_TIMEOUT:
                self.transport.abort()  # closing would wait until all is read
            return
        cycle = self.active  # not a later one: its answer is due first
        awaits_data = cycle is None or cycle.response_complete or cycle.more_body
        if awaits_data and now - self._heard_at > IDLE_TIMEOUT:
            self.transport.close()

    def linger(self) -> None:
        """Drop what still comes and close later: a reset would take our last answer away."""
        self._is_lingering = True
        self.loop.call_later(LINGER, self.transport.close)

    def resume_writing(self) -> None:
        super().resume_writing()
        if type(self.active) is DirectCycle:
            self.active.proceed()

    def on_message_begin(self) -> None:
        self._num_head = 0
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        self._num_head = -math.inf
        if self._is_lingering or self.transport.is_closing():
            return  # "connection: close" was the last word
        method = self.parser.get_method()
        if self.parser.should_upgrade() and method != b"CONNECT":
            self._again = self._without_offer(method)
            return
        if not self.url.startswith(_PREFIX) or method != b"POST" or _may_stream(self.url):
            self._take_long_way()
            return
        earlier = self.cycle
        is_1_1 = self.parser.get_http_version() != "1.0"
        cycle = DirectCycle(self, keep_alive=is_1_1 and self.parser.should_keep_alive())
        self.cycle = cycle  # type: ignore[assignment]
        try:
            self._read_headers(cycle)
        except ServingError as error:
            cycle.error = error
        if earlier is None or earlier.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))  # type: ignore[arg-type]

    def _without_offer(self, method: bytes) -> bytes:
        """The head again, without its offer of another protocol, or its body would not be read."""
        version = self.parser.get_http_version().encode()
        headers = [b"%b: %b\r\n" % pair for pair in self.headers if pair[0] != b"upgrade"]
        return b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version, b"".join(headers))

    def _read_headers(self, cycle: DirectCycle) -> None:
        if self.keys and not self.keys.accept(dict(self.headers).get(b"authorization")):
            raise Unauthorized(TEXT)
        cycle.route = rest_ms.find_route(self.url)
        for name, value in self.headers:
            if name == b"content-length" and int(value) > self.max_body:
                raise rest_ms.too_big(self.max_body)
            if name == b"x-request-timeout":
                cycle.timeout = rest_ms.to_timeout(value)
        if self.expect_100_continue:
            self.transport.write(_CONTINUE)

    def _take_long_way(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.active = cycle
        if type(cycle) is DirectCycle:
            cycle.is_accepted = True
            cycle.proceed()
        else:
            super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        cycle: Any = self.cycle
        if type(cycle) is not DirectCycle:
            super().on_body(body)
        elif cycle.error is None and not cycle.response_complete:
            if len(cycle.body) + len(body) > self.max_body:
                cycle.error = rest_ms.too_big(self.max_body)
                cycle.body = b""
                cycle.proceed()
            elif cycle.body:
                if isinstance(cycle.body, bytes):
                    cycle.body = bytearray(cycle.body)
                cycle.body += body
            else:
                cycle.body = body

    def on_message_complete(self) -> None:
        if self._again:
            return
        cycle: Any = self.cycle
        if type(cycle) is not DirectCycle:
            super().on_message_complete()
        elif not cycle.response_complete:
            cycle.more_body = False
            cycle.proceed()


def _may_stream(target: bytes) -> bool:
    """Whether the method's name ends as that of a stream: the application knows if it is one."""
    return target.partition(b"?")[0].endswith(b"_stream")
