"""An upstream behind TLS: whose certificates are trusted, and what is said of others."""

import json
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.upstream.options import check_options
from tests.cli.commands import SERVING, Command
from tests.e2e.authority import Authority
from tests.llm.upstream.asking import asking, prompt, text_of
from tests.llm.upstream.faulty import DONE, piece
from tests.ports import free_port
from tests.waiting import PATIENCE


@dataclass(frozen=True, slots=True)
class Upstream:
    """Its port, the authority of its certificate, and another one."""

    port: int
    ca: str
    other: str

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}/v1"


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._send(json.dumps({"data": [{"id": "far"}]}).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._send(piece("Good day", "stop") + DONE)

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def answering(context: ssl.SSLContext | None) -> Iterator[int]:
    """The port of a server with or without TLS."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        if context is not None:
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join(PATIENCE)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    directory = tmp_path_factory.mktemp("authorities")
    authority, other = Authority(directory, "authority"), Authority(directory, "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("upstream"))
    with answering(context) as port:
        yield Upstream(port, authority.ca, other.ca)


@pytest.mark.parametrize("trust", ["its authority", "anybody"])
def test_a_certificate_that_is_trusted_is_no_hindrance(upstream: Upstream, trust: str) -> None:
    trusted = {"tls_ca": upstream.ca} if trust == "its authority" else {"tls_verify": False}
    with asking(url=upstream.url, **trusted) as asked:
        assert asked.model.unready == ""
        assert text_of(asked.ask(prompt())) == "Good day"


def test_a_certificate_of_another_authority_is_refused(upstream: Upstream) -> None:
    for own in ({"tls_ca": upstream.other}, {}):  # the system's do not know it, either
        with asking(url=upstream.url, **own) as asked:
            for said in (asked.model.unready, asked.fails(prompt())):
                assert f"https://127.0.0.1:{upstream.port} cannot be reached: " in said
                assert "its certificate is refused: " in said
                assert "local issuer certificate (see tls_ca)" in said


def test_a_certificate_for_another_name_is_refused(upstream: Upstream) -> None:
    url = f"https://localhost:{upstream.port}/v1"
    with asking(url=url, tls_ca=upstream.ca) as asked:
        assert "Hostname mismatch" in asked.model.unready


def test_a_server_without_tls_is_named_in_the_error(upstream: Upstream) -> None:
    with (
        answering(None) as port,
        asking(url=f"https://127.0.0.1:{port}/v1", tls_ca=upstream.ca) as asked,
    ):
        assert "cannot be reached: TLS failed: " in asked.model.unready


def test_a_file_without_authorities_is_named_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("no certificate")
    for path in (tmp_path / "empty.pem", tmp_path / "missing.pem"):
        with pytest.raises(StartError, match=f"tls_ca is '{path}', which cannot be read"):
            check_options({"url": "https://far/v1", "tls_ca": str(path)})


@pytest.mark.e2e
def test_serve_takes_the_authority_as_an_option(upstream: Upstream, tmp_path: Path) -> None:
    port = free_port()
    words = [*SERVING, "serve", "--upstream", upstream.url, "--name", "far", "--no-grpc"]
    words += ["--http-port", str(port), "--engine-option", f"tls_ca={upstream.ca}"]
    with Command(words, tmp_path) as server:
        server.says("Ready after")
        body = json.dumps({"model": "far", "prompt": "a", "max_tokens": 2}).encode()
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body)
        asked.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(asked, timeout=PATIENCE) as reply:
            assert json.load(reply)["choices"][0]["text"] == "Good day"
