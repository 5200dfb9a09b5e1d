"""Servers whose certificates and keys are renewed while they run, and who asks them."""

import http.client
import json
import os
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families

from mindspore_serving import server
from mindspore_serving.server import file_watch
from tests.e2e.authority import Authority
from tests.e2e.harness import config, write_servable
from tests.ports import free_port
from tests.waiting import PATIENCE, eventually

SOURCE = """
@method("y")
def double(x):
    return x * 2

@method("y")
def held(path):
    while not os.path.exists(str(path)):
        time.sleep(0.005)
        yield 1
    yield 2
"""
BODY = json.dumps({"instances": {"x": 21}})
ANSWER = {"instances": [{"y": 42}]}
FILES = ("tls.crt", "tls.key", "ca.crt")


class Files:
    """Certificate, key and authority of clients, where the server reads them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def write(self, authority: Authority, name: str = "server", **options: Any) -> str:
        """Those of a new certificate, whose serial number is returned; the old ones are replaced
        one after another, as who renews them does."""
        pair = authority.issue(name, **options)
        for source, target in zip((*pair, authority.ca), FILES, strict=True):
            shutil.copy(source, self.path(f"{target}.new"))
            os.replace(self.path(f"{target}.new"), self.path(target))
        return serial_of(Path(pair[0]).read_bytes())


def serial_of(pem: bytes) -> str:
    return f"{x509.load_pem_x509_certificate(pem).serial_number:X}"


def write_keys(path: Path, text: str, mode: int = 0o600) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(mode)
    new.replace(path)


class Served:
    def __init__(self, directory: Path, tls: server.SSLConfig | None, **options: Any) -> None:
        self.grpc, self.http = free_port(), free_port()
        write_servable(directory, "toy", SOURCE)
        server.start_servables(config(directory, "toy"))
        server.start_grpc_server(f"127.0.0.1:{self.grpc}", ssl_config=tls, **options)
        server.start_restful_server(
            f"127.0.0.1:{self.http}", ssl_config=tls, use_status_codes=True, **options
        )

    def follows(self, serial: str, context: Callable[[], ssl.SSLContext]) -> None:
        """Wait until every one of several new connections to each port gets that certificate."""

        def does(port: int, protocol: str) -> bool:
            with suppress(ssl.SSLError, ConnectionError):
                return all(shown(port, context(), protocol) == serial for _ in range(6))
            return False

        eventually(lambda: does(self.http, "http/1.1"), what=f"the certificate {serial}")
        eventually(lambda: does(self.grpc, "h2"), what=f"the certificate {serial}")

    def metrics(self, verify: Any, **headers: str) -> dict[tuple[str, ...], float]:
        with httpx.Client(verify=verify, timeout=PATIENCE) as client:
            scheme = "http" if verify is False else "https"
            page = client.get(f"{scheme}://127.0.0.1:{self.http}/metrics", headers=headers).text
        return {
            (one.name, *one.labels.values()): one.value
            for family in text_string_to_metric_families(page)
            for one in family.samples
        }


def shown(port: int, context: ssl.SSLContext, protocol: str = "http/1.1") -> str:
    """The serial number of the certificate that a new connection to `port` gets."""
    context.set_alpn_protocols([protocol])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as stream,
    ):
        return serial_of(ssl.DER_cert_to_PEM_cert(stream.getpeercert(True)).encode())


def trusting(*authorities: Authority, pair: tuple[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for one in authorities:
        context.load_verify_locations(one.ca)
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


def tls_of(files: Files, *, verify_client: bool = False) -> server.SSLConfig:
    return server.SSLConfig(*map(files.path, FILES), verify_client)


@contextmanager
def https(port: int, context: ssl.SSLContext) -> Iterator[Callable[[], Any]]:
    """Asks again and again on one connection."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=PATIENCE)

    def ask() -> Any:
        connection.request("POST", "/model/toy:double", BODY)
        answer = json.loads(connection.getresponse().read())
        assert connection.sock is stream, "the connection was closed"
        return answer

    with closing(connection):
        connection.connect()
        stream = connection.sock
        yield ask


def note_lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the server will log of its files, at which it looks more often."""
    monkeypatch.setattr(file_watch, "POLL_SECONDS", 0.05)
    found: list[str] = []
    for level in ("info", "error"):

        def note(text: str, *values: Any, level: str = level) -> None:
            found.append(f"{level}: {text % values}")

        monkeypatch.setattr(file_watch.log, level, note)
    return found
