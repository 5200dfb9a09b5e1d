"""Front-end processes that start and end: with TLS, and with the master, after all answers."""

import http.client
import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from mindspore_serving import server
from mindspore_serving.client import Client
from mindspore_serving.client import SSLConfig as ClientTls
from mindspore_serving.errors import InvalidInputs, StartError
from tests.e2e.authority import Authority
from tests.e2e.harness import (
    Calls,
    Script,
    config,
    eventually,
    front_ends,
    is_alive,
    write_servable,
)
from tests.ports import free_port
from tests.waiting import PATIENCE

SOURCE = """
@method("y")
def double(x):
    return x * 2

@method("y")
def wait(x):
    open("waiting", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.005)
    return x
"""
SCRIPT = """
from mindspore_serving import server
server.start_servables(server.ServableStartConfig({directory!r}, "toy", num_parallel_workers=1))
server.start_grpc_server("127.0.0.1:{grpc}", front_ends=2)
server.start_restful_server("127.0.0.1:{http}", front_ends=2)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_servable(tmp_path, "toy", SOURCE)
    return tmp_path


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as found:
        yield found


@pytest.fixture
def script(place: Path, run_script: Callable[..., Script]) -> Iterator[tuple[Script, Calls]]:
    calls = Calls(f"127.0.0.1:{free_port()}", free_port())
    ports = {"grpc": calls.grpc.partition(":")[2], "http": calls.http}
    found = run_script(SCRIPT.format(directory=str(place), **ports))
    found.says("RESTful server start success")
    yield found, calls
    calls.close()


def test_requests_that_run_are_answered_when_the_server_stops(script, place, threads):
    served, calls = script
    by_rest = threads.submit(calls.post, "toy", "wait", {"x": 1})
    by_grpc = threads.submit(calls.client("toy", "wait").infer, {"x": 2})
    eventually((place / "waiting").exists)
    eventually(lambda: b"requests_in_flight 2.0" in calls.http_call("GET", "/metrics")[1])
    served.send(signal.SIGTERM)
    eventually(lambda: calls_are_refused(calls))
    (place / "go").touch()
    assert by_rest.result(PATIENCE) == {"instances": [{"y": 1}]}
    assert by_grpc.result(PATIENCE)[0]["y"] == 2
    assert served.status() == 0
    assert "Traceback" not in served.text


def calls_are_refused(calls: Calls) -> bool:
    try:
        calls.connect().close()
    except ConnectionRefusedError:
        return True
    return False


def test_front_ends_die_with_the_master(script):
    served, _ = script
    before = front_ends(served.pid)
    assert len(before) == 2
    served.send(signal.SIGKILL)
    served.status()
    eventually(lambda: not any(map(is_alive, before)))


def test_tls_is_that_of_every_front_end(stopped, place):
    ours = Authority(stopped, "ours")
    tls = server.SSLConfig(*ours.issue("server"))
    grpc, rest = free_port(), free_port()
    server.start_servables(config(place, "toy"))
    server.start_grpc_server(f"127.0.0.1:{grpc}", ssl_config=tls, front_ends=2)
    server.start_restful_server(f"127.0.0.1:{rest}", ssl_config=tls, front_ends=2)
    context = ssl.create_default_context(cafile=ours.ca)
    connection = http.client.HTTPSConnection("127.0.0.1", rest, timeout=PATIENCE, context=context)
    with closing(connection):
        for verb, path, body in (
            ("POST", "/model/toy:double", '{"instances":[{"x":2}]}'),
            ("GET", "/readyz", None),
        ):
            connection.request(verb, path, body)
            reply = connection.getresponse()
            assert (reply.status, reply.read() != b"") == (200, True)
    client_tls = ClientTls(custom_ca=ours.ca)
    with Client(f"127.0.0.1:{grpc}", "toy", "double", ssl_config=client_tls) as client:
        assert client.infer({"x": 2})[0]["y"] == 4


def test_a_unix_socket_is_served_by_front_ends(stopped, place):
    server.start_servables(config(place, "toy"))
    server.start_grpc_server(f"unix:{stopped}/socket", front_ends=2)
    with Client(f"unix:{stopped}/socket", "toy", "double") as client:
        assert client.infer({"x": 2})[0]["y"] == 4
    assert len(front_ends(os.getpid())) == 2
    server.stop()
    assert not (stopped / "socket").exists()


@pytest.mark.parametrize("start", [server.start_restful_server, server.start_grpc_server])
def test_a_port_in_use_is_an_error_and_leaves_no_process(stopped, start):
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StartError, match="start failed"):
            start(f"127.0.0.1:{taken.getsockname()[1]}", front_ends=2)
    assert front_ends(os.getpid()) == []


def test_the_number_of_front_ends_is_checked(stopped):
    with pytest.raises(InvalidInputs, match="front_ends"):
        server.start_restful_server(f"127.0.0.1:{free_port()}", front_ends=0)
    server.start_restful_server(f"127.0.0.1:{free_port()}", front_ends=2)
    with pytest.raises(InvalidInputs, match="expected the same for both"):
        server.start_grpc_server(f"127.0.0.1:{free_port()}", front_ends=3)


def test_a_front_end_of_another_version_ends_the_start(
    stopped: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an update of the package under a server that runs."""
    (stopped / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'mindspore_serving.server.processes' in sys.orig_argv:\n"
        "    from mindspore_serving.process import vocabulary\n"
        "    vocabulary.fingerprint = lambda messages: 'other'\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(stopped))
    server.start_servables(config(place, "toy"))
    with pytest.raises(StartError, match=r"the front end's .* has protocol other, the server's"):
        server.start_restful_server(f"127.0.0.1:{free_port()}", front_ends=2)
