"""A file server over real sockets, with the faults that downloads meet."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@dataclass
class Reply:
    """Answer of a route: a body, or a status with headers."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    has_ranges: bool = True
    cuts: list[int] = field(default_factory=list)  # bytes after which an answer ends, in order
    announced: int | None = None  # Content-Length, if it is to be wrong
    hold: threading.Event | None = None  # waited for before the body's second half


@dataclass
class Request:
    """Request that the server had."""

    verb: str
    path: str  # with the query
    headers: dict[str, str]


Route = Reply | list[Reply] | Callable[[Request], Reply]


class FileServer:
    """Routes by path, exactly or with the query; a list of replies is answered in order."""

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}
        self.requests: list[Request] = []
        server = self

        class _Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        class _Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:  # clients that leave
                pass

        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def reset(self) -> None:
        """Forget routes and requests."""
        self.routes, self.requests = {}, []

    @property
    def host(self) -> str:
        """Address and port."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """Address with the scheme."""
        return f"http://{self.host}"

    def add(self, path: str, body: bytes, **more: object) -> Reply:
        """Add a file with a strong ETag."""
        etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        reply = Reply(body, headers={"ETag": etag}, **more)  # type: ignore[arg-type]
        self.routes[path] = reply
        return reply

    def asked(self, path: str, verb: str = "GET") -> list[Request]:
        """Return the requests for a path."""
        return [
            request
            for request in self.requests
            if request.verb == verb and urlsplit(request.path).path == path
        ]

    @contextmanager
    def running(self) -> Iterator["FileServer"]:
        """Hold the server."""
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        headers = {name.lower(): value for name, value in handler.headers.items()}
        request = Request(handler.command, unquote(handler.path), headers)
        self.requests.append(request)
        route = self.routes.get(request.path)
        if route is None:
            route = self.routes.get(request.path.partition("?")[0], Reply(b"no route", 404))
        if isinstance(route, list):
            route = route.pop(0) if len(route) > 1 else route[0]
        reply = route if isinstance(route, Reply) else route(request)
        _send(handler, request, reply)


def _send(handler: BaseHTTPRequestHandler, request: Request, reply: Reply) -> None:
    start, status, headers = 0, reply.status, dict(reply.headers)
    header = request.headers.get("range", "")
    condition = request.headers.get("if-range")
    matches = condition in (None, headers.get("ETag"), headers.get("Last-Modified"))
    if status == 200 and reply.has_ranges and header.startswith("bytes=") and matches:
        first, _, last = header.removeprefix("bytes=").partition("-")
        start, end = int(first), int(last or len(reply.body) - 1)
        if start >= len(reply.body):
            status, headers["Content-Range"] = 416, f"bytes */{len(reply.body)}"
        else:
            status = 206
            headers["Content-Range"] = f"bytes {start}-{end}/{len(reply.body)}"
            reply = Reply(reply.body[: end + 1], 206, cuts=reply.cuts, hold=reply.hold)
    body = b"" if status == 416 else reply.body[start:]
    handler.send_response(status)
    length = len(body) if reply.announced is None else reply.announced
    if "Transfer-Encoding" not in headers:
        headers["Content-Length"] = str(length)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    if request.verb == "HEAD":
        return
    cut = reply.cuts.pop(0) if reply.cuts else None
    if reply.hold is not None:
        handler.wfile.write(body[: len(body) // 2])
        handler.wfile.flush()
        reply.hold.wait()
        body = body[len(body) // 2 :]
    handler.wfile.write(body if cut is None else body[:cut])
    if cut is not None or reply.announced is not None:
        handler.wfile.flush()
        handler.close_connection = True
