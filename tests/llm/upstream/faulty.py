"""A server that answers as a test wants, byte by byte, and keeps what it was asked."""

import json
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.waiting import PATIENCE

Script = Callable[["Asked"], Iterable[bytes]]
"""What is sent, piece by piece; then the connection is closed."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    closed: threading.Event = field(default_factory=threading.Event)  # by the client


@dataclass(slots=True)
class Faulty:
    """Answers POSTs by `script`, and lists one model."""

    url: str
    script: Script
    asked: list[Asked] = field(default_factory=list)
    models: Callable[[], bytes] = lambda: whole(200, {"data": [{"id": "far", "max_model_len": 77}]})


def whole(status: int, body: object, *headers: str) -> bytes:
    """An answer with a length."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def piece(text: str, reason: str | None = None, index: int = 0) -> bytes:
    """Of a completion."""
    return event(choices=[{"index": index, "text": text, "finish_reason": reason}])


def usage(prompt: int, answer: int) -> bytes:
    return event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": answer})


@contextmanager
def faulty(script: Script, port: int = 0) -> Iterator[Faulty]:
    """A server of `script` until the end."""
    found = Faulty("", script)

    class Connection(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            first = self.rfile.readline().decode().split(" ")
            if len(first) != 3:
                return
            headers = {}
            while (line := self.rfile.readline().decode().strip()) != "":
                name, _, value = line.partition(": ")
                headers[name.lower()] = value
            size = int(headers.get("content-length", "0"))
            body = json.loads(self.rfile.read(size)) if size else {}
            if first[0] == "GET":
                self.wfile.write(found.models())
                return
            asked = Asked(first[1], headers, body)
            found.asked.append(asked)
            watch = threading.Thread(target=self._watch, args=[asked])
            watch.start()
            try:
                for data in found.script(asked):
                    self.wfile.write(data)
            except OSError:
                pass  # the client has left
            self.connection.shutdown(2)
            watch.join(PATIENCE)

        def _watch(self, asked: Asked) -> None:
            with suppress(OSError):
                self.rfile.read(1)
            asked.closed.set()

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """What a client broke off is no error here."""

    with Server(("127.0.0.1", port), Connection) as server:
        found.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join(PATIENCE)
