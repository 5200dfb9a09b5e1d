"""A hub that speaks Hugging Face's protocol over real sockets, and the CDN that it redirects to.

Faults are queues that requests take from: how many bytes of a body are sent before the connection
is cut, and statuses that are answered instead.
"""

import hashlib
import json
import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".gguf", ".onnx", ".bin")  # files that the CDN has
_MODEL = re.compile(r"/api/models/([\w.-]+/[\w.-]+)(?:/revision/(.+))?")
_FILE = re.compile(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repository:
    """Files of a model at `COMMIT`, and its branches."""

    files: dict[str, bytes]
    licence: str = "apache-2.0"
    is_gated: bool = False
    branches: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})

    def sibling(self, path: str) -> dict[str, Any]:
        content = self.files[path]
        entry = {"rfilename": path, "size": len(content), "blobId": _git_hash(content)}
        if path.endswith(LARGE):
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"size": len(content), "sha256": digest, "pointerSize": 130}
        return entry


@dataclass
class Hub:
    """State of the servers: repositories, faults, and the requests so far."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    url: str = ""
    cdn: str = ""
    token: str = ""  # the only one that gated repositories accept
    cuts: deque[int] = field(default_factory=deque)  # bytes of the CDN's next bodies
    statuses: deque[int] = field(default_factory=deque)  # instead of the hub's next answers
    wrong: set[str] = field(default_factory=set)  # digests of contents that the CDN changes
    stalls: threading.Event | None = None  # what answers wait for
    stalled: str = "hub"  # the server that does; "cdn" is the other
    log: list[str] = field(default_factory=list)  # "GET /path", with the range behind it
    tokens: list[tuple[str, str]] = field(default_factory=list)  # server and authorization

    def gets(self, ending: str) -> list[str]:
        """The requests for bodies of paths that end so."""
        return [line for line in self.log if line.startswith("GET ") and ending in line]


def _git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.server.hub
        span = self.headers.get("Range", "")
        hub.log.append(f"{self.command} {self.path} {span}".strip())
        hub.tokens.append((self.server.role, self.headers.get("Authorization", "")))
        if hub.stalls is not None and hub.stalled == self.server.role:
            hub.stalls.wait(60)
        if self.server.role == "cdn":
            self.send_blob(hub)
        elif hub.statuses:
            message = "Invalid credentials in Authorization header"
            headers = {"Retry-After": "7", "X-Error-Message": message}
            self.answer(hub.statuses.popleft(), headers)
        else:
            self.route(hub)

    def route(self, hub: Hub) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == "/api/models":
            self.search(hub)
        elif path.endswith("/refs"):
            names = hub.repositories[path.split("/models/")[1].removesuffix("/refs")].branches
            self.send_json({"branches": [{"name": name} for name in names], "tags": []})
        elif match := _MODEL.fullmatch(path):
            self.model(hub, match[1], match[2] or "main")
        elif match := _FILE.fullmatch(path):
            self.file(hub, *match.groups())
        else:
            self.answer(404)

    def search(self, hub: Hub) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        names = [
            name
            for name in hub.repositories
            if name.startswith(query.get("author", "")) and query.get("search", "") in name
        ]
        self.send_json([{"id": name} for name in names])

    def find(self, hub: Hub, name: str, revision: str) -> Repository | None:
        """The repository, if it is there and the client may have it; else the error is sent."""
        repository = hub.repositories.get(name)
        if repository is None:
            self.answer(401, {"X-Error-Code": "RepoNotFound"})
        elif revision not in (*repository.branches, *repository.branches.values()):
            self.answer(404, {"X-Error-Code": "RevisionNotFound"})
        else:
            return repository
        return None

    def model(self, hub: Hub, name: str, revision: str) -> None:
        repository = self.find(hub, name, revision)
        if repository is not None:
            self.send_json(
                {
                    "id": name,
                    "sha": repository.branches.get(revision, revision),
                    "siblings": [repository.sibling(path) for path in repository.files],
                    "cardData": {"license": repository.licence},
                }
            )

    def file(self, hub: Hub, name: str, revision: str, path: str) -> None:
        repository = self.find(hub, name, revision)
        if repository is None:
            return
        is_allowed = self.headers.get("Authorization") == f"Bearer {hub.token}"
        if repository.is_gated and not is_allowed:
            self.answer(403, {"X-Error-Code": "GatedRepo"})
            return
        if path not in repository.files:
            self.answer(404, {"X-Error-Code": "EntryNotFound"})
            return
        content = repository.files[path]
        commit = repository.branches.get(revision, revision)
        if not path.endswith(LARGE):
            headers = {"ETag": f'"{_git_hash(content)}"', "X-Repo-Commit": commit}
            self.answer(200, headers, content)
            return
        digest = hashlib.sha256(content).hexdigest()
        headers = {"X-Repo-Commit": commit, "X-Linked-Etag": f'"{digest}"'}
        headers |= {"X-Linked-Size": str(len(content)), "Location": f"{hub.cdn}/{digest}"}
        self.answer(302, headers)

    def send_blob(self, hub: Hub) -> None:
        digest = self.path.strip("/")
        blobs = {
            hashlib.sha256(content).hexdigest(): content
            for repository in hub.repositories.values()
            for content in repository.files.values()
        }
        content = blobs[digest]
        if digest in hub.wrong:
            content = content[:-1] + b"?"
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        cut = hub.cuts.popleft() if hub.cuts and self.command == "GET" else None
        self.answer(206 if match else 200, headers if match else {}, content[start:], cut)

    def send_json(self, value: object) -> None:
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def answer(
        self,
        status: int,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: Hub, role: str, host: str) -> None:
        super().__init__((host, 0), _Handler)
        self.hub, self.role = hub, role
        self.url = f"http://{host}:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Say nothing of a client that has left."""


@contextmanager
def hugging_face() -> Iterator[Hub]:
    """Run a hub and its CDN on two addresses of this machine."""
    hub = Hub()
    servers = [_Server(hub, "hub", "127.0.0.1"), _Server(hub, "cdn", "127.0.0.2")]
    hub.url, hub.cdn = (server.url for server in servers)
    threads = [threading.Thread(target=server.serve_forever, args=(0.02,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
