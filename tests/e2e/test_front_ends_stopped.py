"""A front-end process that stands still: others answer meanwhile, and it is ended and replaced."""

import http.client
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.server.processes import session
from mindspore_serving.server.processes.child import Child
from tests.e2e.harness import (
    Calls,
    config,
    eventually,
    front_ends,
    is_alive,
    serving,
    write_servable,
)
from tests.waiting import PATIENCE

SOURCE = """
@method("y")
def double(x):
    return x * 2
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    place: Path = tmp_path_factory.mktemp("stopped")
    write_servable(place, "toy", SOURCE)
    options: dict[str, Any] = {"use_status_codes": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "HEARTBEAT_SECONDS", 1.0)
        with serving(place, config(place, "toy"), front_ends=2, **options) as found:
            yield found


@pytest.fixture
def calls(served: Calls) -> Calls:
    """With both front ends: connections go to each in turn."""
    eventually(lambda: len({answering(served), answering(served)}) == 2)
    return served


def answering(calls: Calls) -> str:
    """The front end that answers a new connection: what the ids of all its requests begin with."""
    connection = http.client.HTTPConnection("127.0.0.1", calls.http, timeout=PATIENCE)
    with closing(connection):
        connection.request("GET", "/livez")
        reply = connection.getresponse()
        reply.read()
        return (reply.getheader("x-request-id") or "")[:-8]


def has_answer(calls: Calls) -> bool:
    """Whether a new connection is answered; one that a process got which then ended is not."""
    try:
        return bool(calls.post("toy", "double", {"x": 4}) == {"instances": [{"y": 8}]})
    except ConnectionError:
        return False


def test_a_front_end_that_is_stopped_is_ended_and_another_serves(calls: Calls) -> None:
    before = front_ends(os.getpid())
    os.kill(before[0], signal.SIGSTOP)
    eventually(lambda: not is_alive(before[0]))
    eventually(lambda: len(front_ends(os.getpid())) == 2)
    assert before[1] in front_ends(os.getpid())  # nothing was wrong with it
    eventually(lambda: all(has_answer(calls) for _ in range(4)))


def test_new_connections_go_past_a_front_end_that_does_not_answer(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Child] = []
    monkeypatch.setattr(Child, "kill", lambda child: ends.append(child))
    stopped = front_ends(os.getpid())[0]
    os.kill(stopped, signal.SIGSTOP)
    eventually(lambda: ends)  # it would be ended now
    try:
        assert all(has_answer(calls) for _ in range(6))
        assert calls.http_call("GET", "/metrics")[0] == 200  # which the master answers
    finally:
        monkeypatch.undo()
        os.kill(stopped, signal.SIGCONT)
