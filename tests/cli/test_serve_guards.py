"""Guards of `mindspore-serving serve` as a process: keys, TLS, host names, limits."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mindspore_serving.client import Client, SSLConfig
from tests.cli.commands import SERVING, Command, call, run
from tests.cli.conftest import write_words
from tests.e2e.test_tls import Authority
from tests.ports import free_port

pytestmark = pytest.mark.e2e
READY = "Ctrl-C stops"
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def serve(directory: Path, *words: str) -> Command:
    return Command([*SERVING, "serve", *words], directory)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the servable "words" on loopback, with statuses of HTTP and one more host."""
    directory, port = write_words(tmp_path_factory.mktemp("guarded")), str(free_port())
    options = ["--http-port", port, "--no-grpc", "--allowed-host", "serving.example"]
    with serve(directory, "words", *options, "--http-status-codes") as command:
        command.says(READY)
        yield f"http://127.0.0.1:{port}/model/words"


def status(directory: Path, *words: str) -> str:
    """Return the HTTP status that `curl WORDS` gets."""
    return run(["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", *words], directory).stdout


@needs_curl
def test_the_status_tells_of_errors_if_asked_to(guarded: str, tmp_path: Path) -> None:
    assert status(tmp_path, f"{guarded}:no_such_method", "-d", "{}") == "404"


@needs_curl
@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("X: y", "200"),
        ("Host: serving.example", "200"),
        ("Host: other.example", "403"),
        ("Origin: https://other.example", "403"),
    ],
)
def test_a_loopback_server_refuses_unknown_host_names_and_origins(
    guarded: str, tmp_path: Path, header: str, expected: str
) -> None:
    body = '{"instances":[{"x":1}]}'
    assert status(tmp_path, f"{guarded}:double", "-d", body, "-H", header) == expected


def test_listening_to_every_network_without_tls_is_warned_of(tmp_path: Path) -> None:
    write_words(tmp_path)
    options = ["--host", "0.0.0.0", "--http-port", str(free_port()), "--no-grpc"]
    with serve(tmp_path, "words", *options) as command:
        command.says(READY)
        assert "WARNING: listening on 0.0.0.0 without TLS" in command.text


@needs_curl
def test_limits_are_those_that_were_given(tmp_path: Path) -> None:
    write_words(tmp_path)
    port = str(free_port())
    options = ["--http-port", port, "--no-grpc", "--limit", "max_headers=1"]
    with serve(tmp_path, "words", *options) as one:
        one.says(READY)
        done = run(["curl", "-s", f"http://127.0.0.1:{port}/health"], tmp_path)
        assert done.stdout == (
            "The number of headers is over 1; --limit max_headers=NUMBER of the server sets it."
        )


@needs_curl
@pytest.mark.parametrize("place", ["a file", "the environment", "the command line"])
def test_keys_come_from_a_file_the_environment_or_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    write_words(tmp_path)
    key, port = "a-key-that-is-long-enough", str(free_port())
    options = ["--http-port", port, "--no-grpc"]
    if place == "a file":
        (tmp_path / "keys").write_text(f"{key} Anna\n")
        (tmp_path / "keys").chmod(0o600)
        options += ["--api-key-file", "keys"]
    elif place == "the environment":
        monkeypatch.setenv("MINDSPORE_SERVING_API_KEYS", f"another-long-key {key}")
    else:
        options += ["--api-key", key]
    with serve(tmp_path, "words", *options) as one:
        one.says(READY)
        url = f"http://127.0.0.1:{port}/servables"
        assert status(tmp_path, url) == "401"
        assert status(tmp_path, url, "-H", f"Authorization: Bearer {key}") == "200"


def test_with_tls_both_protocols_want_certificates_and_predict_has_them(tmp_path: Path) -> None:
    write_words(tmp_path)
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server")
    client_certificate, client_key = authority.issue("client")
    http, grpc = str(free_port()), str(free_port())
    options = ["--tls-cert", certificate, "--tls-key", key, "--tls-ca", authority.ca]
    ports = ["--http-port", http, "--grpc-port", grpc]
    with serve(tmp_path, "words", *ports, *options) as command:
        command.says(READY)
        assert f"REST  https://127.0.0.1:{http}" in command.text
        words = ["words", "double", '{"x": 4}', "--tls-ca", authority.ca]
        with_certificate = [*words, "--tls-cert", client_certificate, "--tls-key", client_key]
        for where in (f"https://127.0.0.1:{http}", f"127.0.0.1:{grpc}"):
            good = call(["predict", where, *with_certificate], tmp_path)
            assert json.loads(good.stdout) == {"instances": [{"y": 8}]}, good.stderr
            assert call(["predict", where, *words], tmp_path).returncode == 1
        tls = SSLConfig(client_certificate, client_key, authority.ca)
        with Client(f"127.0.0.1:{grpc}", "words", "double", ssl_config=tls) as client:
            assert client.infer({"x": np.array(3)})[0]["y"] == 6
