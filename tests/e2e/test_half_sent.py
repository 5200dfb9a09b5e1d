"""Requests of which the server has only the beginning when it is told to end."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import Calls, Script, eventually, write_servable
from tests.ports import free_port

SOURCE = """
@method("y")
def double(x):
    return x * 2
"""
SCRIPT = """
from mindspore_serving import server
server.start_servables(server.ServableStartConfig({directory!r}, "toy"))
server.start_restful_server("127.0.0.1:{http}")
from mindspore_serving.frontends.http import server
server.HALF_SENT = {patience}
"""
BODY = b'{"instances": {"x": 4}}'
HEAD = b"POST /model/toy:double HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(BODY)
Start = Callable[[float], tuple[Script, Calls]]


@pytest.fixture
def start(tmp_path: Path, run_script: Callable[..., Script]) -> Iterator[Start]:
    """start(patience): a server that refuses what is not complete after so many seconds."""
    write_servable(tmp_path, "toy", SOURCE)
    calls = Calls("", free_port())

    def run(patience: float) -> tuple[Script, Calls]:
        values = {"directory": str(tmp_path), "http": calls.http, "patience": patience}
        script = run_script(SCRIPT.format(**values))
        script.says("RESTful server start success")
        return script, calls

    yield run
    calls.close()


def test_a_half_sent_request_does_not_hold_up_the_end(start: Start) -> None:
    script, calls = start(0.5)
    calls.connect().sendall(HEAD + BODY[:5])
    assert calls.http_call("GET", "/health")[0] == 200
    script.send(signal.SIGTERM)
    assert script.status() == 0


def test_a_request_that_comes_to_its_end_in_time_is_answered(start: Start) -> None:
    """Nothing is in flight meanwhile, and the workers are there nevertheless."""
    script, calls = start(60)
    stream = calls.connect()
    stream.sendall(HEAD + BODY[:5])
    assert calls.http_call("GET", "/health")[0] == 200
    script.send(signal.SIGTERM)
    eventually(lambda: is_refused(calls))
    for _ in range(3):  # calls, each of which takes the server some turns of its loop
        assert is_refused(calls)
    stream.sendall(BODY[5:])
    assert b'{"instances":[{"y":8}]}' in stream.recv(4096)
    assert script.status() == 0


def is_refused(calls: Calls) -> bool:
    try:
        calls.connect().close()
    except ConnectionRefusedError:
        return True
    return False
