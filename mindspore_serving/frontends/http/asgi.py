"""An exchange that an ASGI application answers: its scope, and its messages in both directions."""

import asyncio
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp, Message, Scope

from mindspore_serving import log
from mindspore_serving.core.service import header_of_task
from mindspore_serving.errors import Overloaded, ServingError
from mindspore_serving.frontends import access, answer_headers
from mindspore_serving.frontends.http.exchange import Exchange, ExchangeOutput, length_of
from mindspore_serving.frontends.http.head import HeadRefusal, RequestHead
from mindspore_serving.frontends.memory import NO_MEMORY
from mindspore_serving.frontends.protocols import PATHS
from mindspore_serving.frontends.request_id import NAME, id_of
from mindspore_serving.frontends.spans import route_of
from mindspore_serving.tracing.request_span import current
from mindspore_serving.wire import status

MAX_UNREAD = 64 << 10  # bytes of a body that the application has not read
_UNSAFE = re.compile(rb"[\r\n\0]")
_BODILESS = frozenset({204, 304})
_FAILED = b"Internal Server Error"
_running: set[asyncio.Task[None]] = set()  # the event loop itself does not keep tasks alive


class Application(Exchange):
    """An exchange that `app` answers, in a task of its own."""

    _remaining: int | None = None  # bytes of the answer's content-length that are not written
    _num_fed = 0  # bytes of the body
    _num_counted = 0  # bytes of the body that count in the memory quota
    _buffer: memoryview | None = None  # for all of the body, if it is large
    _error: ServingError | None = None  # why the request is refused
    _is_started = False
    _is_running = False
    _is_over = False  # the answer is complete, or the client has disconnected

    def __init__(self, app: ASGIApp, head: RequestHead, output: ExchangeOutput) -> None:
        super().__init__(output, head.keep_alive)
        self._app = app
        self._scope = _scope_of(head, output)
        self.request_id = id_of(head.fields.get(NAME))
        self.protocol = PATHS.find(self._scope["path"]).protocol.name
        self._has_body = head.method != b"HEAD"
        self._expects_continue = head.expects_continue
        self._body = bytearray()
        self._changed = asyncio.Event()
        self._added: dict[str, str] = {}  # headers of the answer

    def start(self) -> None:
        self._is_started = True
        if self._error is not None:
            self.expire(self._error)
            return
        self._is_running = True
        task = asyncio.ensure_future(self._run())
        _running.add(task)
        task.add_done_callback(_running.discard)

    def feed(self, data: bytes) -> None:
        if self._is_over:
            return
        self._num_fed += len(data)
        if self._num_fed > MAX_UNREAD and not self._take(len(data)):
            return
        self._body += data
        if len(self._body) > MAX_UNREAD:
            self.output.flow.pause_reading()
        self._changed.set()

    def body_buffer(self, size: int) -> memoryview | None:
        """Return a buffer for all of a large body, so that the application gets it in one piece.

        The application is waited for after each piece, which takes long in another process.
        """
        if self._is_over or size > self.output.memory.limit:
            return None
        with suppress(OSError):  # no memory, but the body can be smaller than its content-length
            self._buffer = self.output.pool.take(size)
        return self._buffer

    def filled(self, num_bytes: int) -> bool:
        if self._is_over or not self._take(num_bytes):
            self._buffer = None
            return False
        return True

    def _take(self, num_bytes: int) -> bool:
        """Count bytes of the body in the memory quota; return whether there is room."""
        if self._error is None and self.output.memory.take(num_bytes):
            self._num_counted += num_bytes
            return True
        self._error = Overloaded(NO_MEMORY)
        if self._is_started:
            self.expire(self._error)
        return False

    def end(self) -> None:
        self.is_complete = True
        self._changed.set()

    def route_path(self) -> str:
        return route_of(self._scope)

    def disconnect(self) -> None:
        self._is_over = True
        self._buffer = None
        if not self._is_running:  # a running application keeps the memory until it ends
            self._release()
        self._changed.set()

    def expire(self, error: ServingError) -> None:
        if self.has_responded:
            self._cut(status.of(error.code).http)
            self.output.abort()
            return
        text, seconds = str(error).encode(), status.retry_after(error)
        headers = [(b"content-type", b"text/plain; charset=utf-8"), length_of(text)]
        if seconds is not None:
            headers.append((b"retry-after", seconds.encode()))
        self._begin(status.of(error.code).http, headers)
        self._write(text, is_last=True)

    def _release(self) -> None:
        self.output.memory.give_back(self._num_counted)
        self._num_counted = 0

    async def _run(self) -> None:
        log.request_id.set(self.request_id.decode())  # in the context of this task
        current.set(self.span)
        answer_headers.current.set(self._added.update)
        header_of_task.set(partial(answer_headers.find_header, self._scope["headers"]))
        if self.entry is not None:
            access.current.set(self.entry)
        try:
            await self._app(self._scope, self._receive, self._send)
        except Exception:
            log.error("a request failed", exc_info=True)
        finally:
            self._is_running = False
            self._release()
        if self._is_over:
            return
        if self.has_responded:  # the client must notice that the answer is incomplete
            self._is_over = True
            self._cut(500)
            self.output.close()
        else:
            self.keep_alive = False
            self._begin(500, [length_of(_FAILED)])
            self._write(_FAILED, is_last=True)

    def _cut(self, status: int) -> None:
        """End the answer before it is complete, and count it with `status`."""
        self.is_cut, self.status = True, status

    async def _receive(self) -> Message:
        if self._expects_continue and not (self.is_complete or self.has_responded or self._is_over):
            self._expects_continue = False
            self.output.send_continue()
        if not self._is_over:
            self.output.resume_reading()
            await self._changed.wait()
            self._changed.clear()
        if self._is_over:
            return {"type": "http.disconnect"}
        body: bytes | memoryview
        if self._buffer is None:
            body, self._body = bytes(self._body), bytearray()
        else:
            body, self._buffer = self._buffer, None
        return {"type": "http.request", "body": body, "more_body": not self.is_complete}

    async def _send(self, message: Message) -> None:
        if self.output.flow.is_full:
            await self.output.flow.drain()
        if self._is_over:
            return
        if message["type"] == "http.response.start":
            self._begin(message["status"], message.get("headers", ()))
        else:
            self._write(message.get("body", b""), is_last=not message.get("more_body", False))

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if not self.is_complete:
            self.keep_alive = False  # answered before the body was read
        headers = self._complete(headers)
        self._has_body = self._has_body and status not in _BODILESS
        length = dict(headers).get(b"content-length")
        if length is not None and self._has_body:
            self._remaining = int(length)
        self.has_responded = True
        self.status = status
        is_chunked = length is None and self._has_body and self._scope["http_version"] == "1.1"
        self.output.begin(status, headers, keep_alive=self.keep_alive, is_chunked=is_chunked)

    def _complete(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return the headers of an answer with those of all answers.  Raises ValueError."""
        headers = [pair for pair in headers if pair[0] != b"connection"]
        headers.append((NAME, self.request_id))
        headers += ((name.encode(), value.encode()) for name, value in self._added.items())
        for name, value in headers:
            if _UNSAFE.search(name) or _UNSAFE.search(value):
                raise ValueError(f"the header {name!r}: {value!r} has a line end or a NUL")
        return headers

    def _write(self, body: bytes, *, is_last: bool) -> None:
        if body and self._has_body:
            self.num_sent += len(body)
            if self._remaining is not None:
                self._remaining -= len(body)
                if self._remaining < 0:
                    raise ValueError("the answer is longer than its content-length")
            self.output.write(body)
        if is_last:
            self._finish()

    def _finish(self) -> None:
        if self._remaining:
            raise ValueError("the answer is shorter than its content-length")
        self._is_over = True
        self._changed.set()
        self.output.finish()


def _scope_of(head: RequestHead, output: ExchangeOutput) -> Scope:
    """Return the ASGI scope of a request.  Raises HeadRefusal for a target without a path."""
    try:
        url = httptools.parse_url(head.target)
    except httptools.HttpParserInvalidURLError:
        url = None
    if url is None or not url.path or not url.path.startswith(b"/"):
        raise HeadRefusal(400, "The request target has no path.")
    describe = output.describe
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": head.version,
        "scheme": "https" if describe("sslcontext") else "http",
        "server": _host_and_port(describe("sockname")),
        "client": _host_and_port(describe("peername")),
        "method": head.method.decode("ascii"),
        "root_path": "",
        "path": unquote(url.path.decode("ascii")),
        "raw_path": url.path,
        "query_string": url.query or b"",
        "headers": head.headers,
    }


def _host_and_port(address: Any) -> tuple[str, int] | None:
    return address[:2] if isinstance(address, tuple) else None
