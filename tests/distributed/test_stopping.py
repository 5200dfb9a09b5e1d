"""How a gang ends: what scripts and agents read of the worker's last messages."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mindspore_serving.distributed import agent
from mindspore_serving.distributed.leader import Leader
from mindspore_serving.process.vocabulary import Beat, Exit
from tests.waiting import PATIENCE, eventually

X = np.ones((2, 3), np.float32)


class HeldModel:
    """A model whose `run` waits for `go`."""

    def __init__(self) -> None:
        self.runs, self.go, self.is_closed = threading.Event(), threading.Event(), False

    def run(self, inputs: list[Any]) -> list[Any]:
        self.runs.set()
        assert self.go.wait(PATIENCE)
        return inputs

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def kills(monkeypatch) -> list[str]:
    """The names of threads that would have killed this process."""
    found: list[str] = []
    monkeypatch.setattr(agent, "kill_group", lambda: found.append(threading.current_thread().name))
    return found


@pytest.fixture
def running(opening, pool) -> Callable[[], tuple[Any, ...]]:
    """A gang of one rank whose model runs in this process, its model, and the agent's end."""
    gang, model = opening(1), HeldModel()
    gang.script()
    served = pool.submit(agent.serve, gang.agent(0), [model])
    pool.submit(gang.model.run, [X])
    assert model.runs.wait(PATIENCE)
    return gang, model, served


def heartbeats_have_ended() -> bool:
    return all(thread.name != "beats" for thread in threading.enumerate())


def test_an_agent_that_is_busy_while_the_servable_stops_exits_by_itself(running, kills, pool):
    """The thread of the heartbeats sees the end of the connection before the message `Exit`."""
    gang, model, served = running
    closing = pool.submit(gang.model.close)
    eventually(heartbeats_have_ended)
    model.go.set()
    served.result(PATIENCE)
    for connection in gang.connections:
        connection.close()
    closing.result(PATIENCE)
    assert (kills, model.is_closed) == ([], True)


def test_an_agent_that_is_busy_while_the_worker_is_lost_is_killed(running, kills):
    gang, model, served = running
    gang.connections[0].close()  # the script's, so that the gang breaks
    eventually(lambda: kills == ["beats"])
    model.go.set()
    served.result(PATIENCE)
    assert kills[0] == "beats"  # in a real process nothing follows


def test_an_unread_message_does_not_reset_the_connection_to_a_script(opening, pool, monkeypatch):
    """A reset may overtake `Exit` on its way, so that the script looks for another worker."""
    gang, stop = opening(1), Leader.stop
    script, rank = gang.script(), gang.agent(0)

    async def stop_with_unread_messages(leader: Leader) -> None:
        for connection in (script, rank):  # on the loop's thread, which reads nothing meanwhile
            connection.send(Beat())
        await stop(leader)

    monkeypatch.setattr(Leader, "stop", stop_with_unread_messages)
    closing = pool.submit(gang.model.close)
    for connection in (script, rank):
        assert connection.receive(wait=True) == [Exit()]
        with pytest.raises(EOFError, match="the peer has closed the channel"):
            connection.receive(wait=True)
        connection.close()
    closing.result(PATIENCE)


def test_scripts_and_agents_that_wait_for_other_ranks_read_exit(opening):
    gang = opening(2)
    script, rank = gang.script(), gang.agent(0)
    gang.stop_requested.set()
    for connection in (script, rank):
        assert connection.receive(wait=True) == [Exit()]
        connection.close()
    assert gang.error == "the servable is stopped"
