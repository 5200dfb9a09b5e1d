"""Certificates that change while a server runs: real sockets and files, no restart."""

import http.client
import os
import shutil
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from mindspore_serving import server
from mindspore_serving.client import Client
from mindspore_serving.client import SSLConfig as ClientTls
from tests.e2e.authority import Authority
from tests.e2e.harness import front_ends as front_ends_of
from tests.e2e.renewed import (
    ANSWER,
    FILES,
    Files,
    Served,
    https,
    note_lines,
    shown,
    tls_of,
    trusting,
    write_keys,
)
from tests.ports import free_port
from tests.waiting import eventually

ONE_OR_MORE = [pytest.param(1, marks=pytest.mark.long), 2]


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return note_lines(monkeypatch)


@pytest.fixture
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    first, second = (Authority(tmp_path_factory.mktemp(one), one) for one in ("first", "second"))
    return first, second


@pytest.fixture
def files(tmp_path: Path) -> Files:
    (tmp_path / "tls").mkdir()
    return Files(tmp_path / "tls")


@pytest.mark.parametrize("front_ends", [1, 2])
def test_new_connections_get_a_new_certificate_and_old_connections_stay(
    stopped: Path,
    files: Files,
    authorities: tuple[Authority, Authority],
    lines: list[str],
    front_ends: int,
) -> None:
    first, second = authorities
    old = files.write(first)
    served = Served(stopped, tls_of(files), front_ends=front_ends)
    served.follows(old, lambda: trusting(first))
    release = stopped / "release"
    address = f"127.0.0.1:{served.grpc}"
    with (
        https(served.http, trusting(first)) as ask,
        Client(address, "toy", "double", ssl_config=ClientTls(custom_ca=first.ca)) as calls,
        Client(address, "toy", "held", ssl_config=ClientTls(custom_ca=first.ca)) as streams,
    ):
        assert ask() == ANSWER
        assert calls.infer({"x": 21}) == [{"y": 42}]
        stream = streams.infer_stream({"path": str(release)})
        assert next(stream)["y"] == 1
        new = files.write(second)
        served.follows(new, lambda: trusting(second))
        assert ask() == ANSWER
        assert calls.infer({"x": 21}) == [{"y": 42}]
        release.touch()
        assert list(stream)[-1]["y"] == 2
    with pytest.raises(ssl.SSLCertVerificationError):
        shown(served.http, trusting(first))
    with Client(address, "toy", "double", ssl_config=ClientTls(custom_ca=second.ca)) as calls:
        assert calls.infer({"x": 21}) == [{"y": 42}]
    path = files.path("tls.crt")
    end = x509.load_pem_x509_certificate(Path(path).read_bytes()).not_valid_after_utc
    numbers = served.metrics(trusting(second))
    assert numbers["serving_certificate_expiry_timestamp_seconds", path] == end.timestamp()
    assert numbers["serving_file_reloads_total", path, "ok"] == 1
    assert numbers["serving_file_reloads_total", path, "failed"] == 0
    assert [one for one in lines if one.startswith("error")] == []
    assert len([one for one in lines if path in one]) == 1


@pytest.mark.parametrize("front_ends", ONE_OR_MORE)
def test_an_invalid_pair_is_reported_once_and_the_old_pair_stays(
    stopped: Path,
    files: Files,
    authorities: tuple[Authority, Authority],
    lines: list[str],
    front_ends: int,
) -> None:
    first, _ = authorities
    old, path = files.write(first), files.path("tls.crt")
    served = Served(stopped, tls_of(files), front_ends=front_ends)
    failed = "serving_file_reloads_total", path, "failed"
    for number, break_it in enumerate(
        (
            lambda: shutil.copy(first.issue("other")[1], files.path("tls.key")),
            lambda: Path(path).write_text("nonsense"),
            lambda: os.unlink(path),
        ),
        1,
    ):
        break_it()
        eventually(lambda n=number: served.metrics(trusting(first))[failed] == n)
        served.follows(old, lambda: trusting(first))
    errors = [one for one in lines if one.startswith("error")]
    assert len(errors) == 3
    assert all("stays in use" in one and files.path("tls.") in one for one in errors)
    for child in front_ends_of(os.getpid()):  # one that comes later does not read what is broken
        os.kill(child, 9)
    served.follows(old, lambda: trusting(first))
    new = files.write(first)
    served.follows(new, lambda: trusting(first))
    assert served.metrics(trusting(first))[failed] == 3


def test_a_mounted_secret_that_kubernetes_swaps_is_followed(
    stopped: Path, files: Files, authorities: tuple[Authority, Authority]
) -> None:
    first, _ = authorities
    one, two = (files.directory / name for name in ("..2026_1", "..2026_2"))
    for directory in (one, two):
        directory.mkdir()
    old, new = Files(one).write(first), Files(two).write(first)
    data = files.directory / "..data"
    data.symlink_to(one.name)
    for name in FILES:
        Path(files.path(name)).symlink_to(f"..data/{name}")
    served = Served(stopped, tls_of(files))
    served.follows(old, lambda: trusting(first))
    (files.directory / "..data_tmp").symlink_to(two.name)
    os.replace(files.directory / "..data_tmp", data)
    shutil.rmtree(one)
    served.follows(new, lambda: trusting(first))


@pytest.mark.parametrize("front_ends", ONE_OR_MORE)
def test_clients_of_an_authority_that_was_replaced_are_refused(
    stopped: Path, files: Files, authorities: tuple[Authority, Authority], front_ends: int
) -> None:
    first, second = authorities
    old = files.write(first)
    served = Served(stopped, tls_of(files, verify_client=True), front_ends=front_ends)
    pairs = first.issue("client"), second.issue("client")
    served.follows(old, lambda: trusting(first, pair=pairs[0]))
    before = trusting(first, second, pair=pairs[0])  # resumes its sessions, if it may
    for _ in range(3):
        with https(served.http, before) as ask:
            assert ask() == ANSWER
    new = files.write(second)
    served.follows(new, lambda: trusting(second, pair=pairs[1]))
    for _ in range(4):  # each front end gets one
        refused = (ssl.SSLError, ConnectionError, http.client.HTTPException)
        with pytest.raises(refused), https(served.http, before) as ask:
            ask()
        address, roots = f"127.0.0.1:{served.grpc}", ClientTls(*pairs[0], second.ca)
        with Client(address, "toy", "double", ssl_config=roots) as calls:
            assert "unavailable" in calls.infer({"x": 21})["error"]
    with https(served.http, trusting(second, pair=pairs[1])) as ask:
        assert ask() == ANSWER


def test_the_listener_for_other_machines_shows_the_new_certificate_too(
    stopped: Path, files: Files, authorities: tuple[Authority, Authority]
) -> None:
    first, _ = authorities
    port, token = free_port(), stopped / "token"
    old = files.write(first)
    write_keys(token, "a-token-of-tests-that-is-long-enough")
    server.start_node_server(f"127.0.0.1:{port}", tls_of(files), token_file=token)
    assert shown(port, trusting(first)) == old
    new = files.write(first)
    eventually(lambda: shown(port, trusting(first)) == new)
