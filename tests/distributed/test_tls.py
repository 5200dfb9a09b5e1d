"""Gangs whose connections are encrypted: who joins, and what the others read."""

import ssl
from collections.abc import Iterator

import numpy as np
import pytest

from mindspore_serving.distributed import leader, security, tunnel
from mindspore_serving.distributed.connecting import JoinRefusal, connect
from mindspore_serving.distributed.security import AUTHORITY, CERTIFICATE, KEY
from mindspore_serving.errors import StartError
from mindspore_serving.process.vocabulary import Exit
from mindspore_serving.wire import native
from tests.distributed.opening import all_of, complete, dial
from tests.e2e.authority import Authority
from tests.waiting import PATIENCE

VARIABLES = (CERTIFICATE, KEY, AUTHORITY)


@pytest.fixture
def ours(tmp_path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def use(monkeypatch) -> Iterator:
    """Sets the certificate, key and authority of workers and agents from now on."""

    def choose(certificate: str = "", key: str = "", authority: str = "") -> None:
        for name, path in zip(VARIABLES, (certificate, key, authority), strict=True):
            monkeypatch.setenv(name, path)

    yield choose
    tunnel.LOOP.close()


@pytest.fixture
def mutual(use, ours, opening):
    """A gang with TLS that demands certificates; this process has one."""
    use(*ours.issue("worker"), ours.ca)
    gang = opening(timeout=0.4)
    gang.script()
    return gang


def test_with_certificates_of_both_large_tensors_pass(use, ours, opening, pool):
    use(*ours.issue("worker"), ours.ca)
    gang = opening()
    agents = complete(gang, "x", "x")
    x = np.arange(3_000_000, dtype=np.float32)
    done = pool.submit(gang.model.run, [x])
    for agent in agents:
        run = agent.next()
        np.testing.assert_array_equal(native.decode_values(run.inputs)[0], x)
        agent.answer(2 * x if run.returns else None, run)
    np.testing.assert_array_equal(done.result(PATIENCE)[0], 2 * x)
    gang.model.close()
    assert agents[0].connection.receive(wait=True) == [Exit()]
    with pytest.raises(EOFError):
        agents[0].connection.receive(wait=True)


def test_without_an_authority_the_worker_demands_no_certificate(use, ours, opening):
    certificate, key = ours.issue("worker")
    use(certificate, key)
    gang = opening()
    with pytest.raises(StartError, match="not trusted: unable to get local issuer"):
        gang.connect()  # the system does not know our authority
    use(authority=ours.ca)
    gang.script()


def test_a_worker_of_another_authority_is_not_trusted(mutual, use, ours, tmp_path):
    (tmp_path / "theirs").mkdir()
    use(*ours.issue("agent"), Authority(tmp_path / "theirs", "theirs").ca)
    with pytest.raises(StartError, match=f"the worker at {mutual.address} is not trusted"):
        connect(mutual.address)


def test_a_certificate_that_has_expired_is_not_trusted(use, ours, opening, monkeypatch):
    use(*ours.issue("worker", days=-1))
    gang = opening()
    use(authority=ours.ca)
    with pytest.raises(StartError, match="is not trusted: certificate has expired"):
        gang.connect()
    careless = ssl._create_unverified_context()
    monkeypatch.setattr(security, "of_agent", lambda environment: careless)
    gang.script()


def test_an_agent_without_the_certificate_that_is_demanded_does_not_join(mutual, use, ours):
    use(authority=ours.ca)
    with pytest.raises(StartError, match="refuses our certificate"):
        connect(mutual.address)


def test_an_agent_whose_certificate_has_expired_does_not_join(mutual, use, ours):
    use(*ours.issue("agent", days=-1), ours.ca)
    with pytest.raises(StartError, match="refuses our certificate"):
        connect(mutual.address)


def test_an_agent_without_tls_is_told_to_use_tls(mutual, use, monkeypatch):
    monkeypatch.setattr(leader, "GREETING_SECONDS", 0.1)
    use()
    with pytest.raises(JoinRefusal, match=f"the worker requires TLS: set {AUTHORITY}"):
        connect(mutual.address)


def test_an_agent_with_tls_is_told_that_the_worker_has_none(use, ours, opening):
    gang = opening()
    gang.script()
    use(authority=ours.ca)
    with pytest.raises(StartError, match=f"the worker at {gang.address} does not speak our TLS"):
        connect(gang.address)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\0\1"])
def test_a_client_that_never_finishes_the_handshake_is_closed(mutual, monkeypatch, sent):
    stream = dial(mutual)
    stream.sendall(sent)
    with monkeypatch.context() as patch:
        patch.setattr(leader, "GREETING_SECONDS", 0.1)
        all_of(stream)
    mutual.agent(0)


def test_who_has_not_finished_the_handshake_counts_as_unknown(mutual):
    waiting = [dial(mutual) for _ in range(leader.MAX_PENDING + 1)]
    assert all_of(waiting[0]) == b""
    mutual.agent(0)
    for stream in waiting:
        stream.close()


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({CERTIFICATE: "none.crt"}, f"{KEY} is missing"),
        ({KEY: "none.key"}, f"{CERTIFICATE} is missing"),
        ({AUTHORITY: "none.pem"}, f"{AUTHORITY} alone is for agents"),
        ({CERTIFICATE: "none.crt", KEY: "none.key"}, "certificate_chain from none.crt failed"),
    ],
)
def test_files_that_a_worker_cannot_use_are_an_error(variables, problem):
    with pytest.raises(StartError, match=problem):
        security.of_worker(variables)


def test_files_that_an_agent_cannot_use_are_an_error():
    with pytest.raises(StartError, match=r"cannot use none\.pem for TLS: "):
        security.of_agent({AUTHORITY: "none.pem"})
