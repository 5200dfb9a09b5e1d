"""Images are fetched from hosts that the operator allows, within limits."""

import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.images.fetching import FetchLimits, fetch
from tests.waiting import PATIENCE

FILE = b"animage" * 100  # 700 bytes


class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/slow/"):
            self.dribble(self.path.removeprefix("/slow/"))
            return
        if self.path == "/a.png?x=1":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(FILE)
        elif self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.end_headers()
        elif self.path == "/around":
            self.send_response(301)
            self.send_header("Location", "/around")
            self.end_headers()
        else:
            self.send_error(404)

    def dribble(self, what):
        """A byte now and then, of a head or a body that does not end."""
        head, piece = SLOW[what]
        with suppress(OSError):  # the client has left
            self.wfile.write(head)
            while not is_over.wait(0.02):
                self.wfile.write(piece)

    def log_message(self, *_):
        pass


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
SLOW = {
    "status": (b"HTTP/1.1 200 ", b"a"),
    "interim": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "header": (OK + b"A: ", b"a"),
    "headers": (OK, b"A: b\r\n"),
    "body": (OK + b"\r\n", b"a"),
    "chunk": (CHUNKED + b"5;", b"a"),
    "trailers": (CHUNKED + b"1\r\na\r\n0\r\n", b"A: b\r\n"),
    "silence": (b"", b""),
}
is_over = threading.Event()


@pytest.mark.parametrize("what", [*SLOW, "redirects"])
def test_a_fetch_that_dribbles_ends_at_its_deadline(what, site):
    url = f"http://{site}/to//slow/body" if what == "redirects" else f"http://{site}/slow/{what}"
    with pytest.raises(InvalidInputs, match="the time limit is reached"):
        fetch(url, FetchLimits(["127.0.0.1"], 1 << 20, 0.2))


def test_a_name_that_is_not_found_in_time_ends_a_fetch(monkeypatch):
    def look(*_, **__):
        is_over.wait(PATIENCE)
        raise OSError("no answer")

    monkeypatch.setattr(socket, "getaddrinfo", look)
    with pytest.raises(InvalidInputs, match="the time limit is reached"):
        fetch("http://slow.example/a.png", FetchLimits(["slow.example"], 1000, 0.05))


def test_a_handshake_that_does_not_end_ends_a_fetch():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(InvalidInputs, match="the time limit is reached"):
            fetch(f"https://127.0.0.1:{port}/a", FetchLimits(["127.0.0.1"], 1000, 0.1))


@pytest.fixture(scope="module")
def site():
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        is_over.set()
        server.shutdown()
        thread.join()


def limits(*hosts, max_bytes=1000):
    return FetchLimits(hosts, max_bytes, PATIENCE)


@pytest.mark.parametrize("path", ["a.png?x=1", "to//a.png?x=1"])
def test_a_file_of_a_named_host_is_fetched_also_behind_a_redirect(path, site):
    assert fetch(f"http://{site}/{path}", limits("127.0.0.1")) == FILE


@pytest.mark.parametrize(
    ("path", "hosts", "told"),
    [
        ("a.png?x=1", (), "is a URL, but this server fetches no files"),
        ("a.png?x=1", ("example.com",), "is on host '127.0.0.1', which is not among"),
        ("a.png?x=1", ("*",), "whose address is not public"),
        ("to/http://localhost/a.png", ("127.0.0.1",), "is on host 'localhost', which is not"),
        ("to/http://localhost/a.png", ("127.0.0.1", "*"), "whose address is not public"),
        ("to/file:///etc/passwd", ("127.0.0.1",), "is no http or https URL"),
        ("around", ("127.0.0.1",), "has more than 3 redirects"),
        ("b.png", ("127.0.0.1",), "cannot be fetched: 127.0.0.1 replied with status 404"),
    ],
)
def test_forbidden_and_missing_urls_are_refused(path, hosts, told, site):
    with pytest.raises(InvalidInputs, match=told.replace("(", r"\(")):
        fetch(f"http://{site}/{path}", limits(*hosts))


def test_a_file_that_is_too_large_is_not_read_to_its_end(site):
    with pytest.raises(InvalidInputs, match="has more than 699 bytes"):
        fetch(f"http://{site}/a.png?x=1", limits("127.0.0.1", max_bytes=699))


@pytest.mark.parametrize("url", ["http://[::1", "ftp://a/b", "nothing", "http:///a", "http://a:x/"])
def test_invalid_urls_are_refused(url):
    with pytest.raises(InvalidInputs, match=r"is no (http or https )?URL"):
        fetch(url, limits("*"))


@pytest.mark.parametrize("host", ["[::1]", "[::ffff:127.0.0.1]", "10.0.0.1", "169.254.169.254"])
def test_private_addresses_are_not_asked(host):
    with pytest.raises(InvalidInputs, match="whose address is not public"):
        fetch(f"http://{host}/a.png", limits("*"))


def test_no_time_left_is_said():
    with pytest.raises(InvalidInputs, match="the time limit is reached"):
        fetch("http://127.0.0.1:9/", FetchLimits(("127.0.0.1",), 10, 0.0))
