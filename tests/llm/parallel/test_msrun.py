"""Ranks that msrun has started: what they read of their environment, and how they meet."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.parallel import msrun
from mindspore_serving.llm.parallel.group import RankGroup
from mindspore_serving.llm.parallel.links import Links, create_memory
from mindspore_serving.llm.parallel.msrun import SCHEDULER, JoinedProcess, MsrunRole, RankListener
from mindspore_serving.llm.parallel.processes import connect_ranks
from tests.waiting import PATIENCE

WORKER = {
    "MS_ROLE": "MS_WORKER",
    "MS_WORKER_NUM": "4",
    "MS_NODE_ID": "2",
    "MS_SCHED_HOST": "127.0.0.1",
    "MS_SCHED_PORT": "8118",
}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch):
    """Let this process have been started with these variables."""
    return lambda **variables: monkeypatch.setattr(msrun, "VARIABLES", variables)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        (WORKER, MsrunRole(2, 4, "127.0.0.1", 8118)),
        (WORKER | {"MS_ROLE": "MS_SCHED"}, MsrunRole(SCHEDULER, 4, "127.0.0.1", 8118)),
    ],
)
def test_launch_is_read_from_the_environment(started, variables, expected):
    started(**variables)
    assert msrun.read_role() == expected


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"MS_ROLE": "MS_PSERVER"}, "expected MS_WORKER or MS_SCHED"),
        ({"MS_NODE_ID": ""}, "MS_NODE_ID is '', expected a number: start by msrun, with all ranks"),
        ({"MS_NODE_ID": "4"}, "MS_NODE_ID is 4, but MS_WORKER_NUM 4"),
    ],
)
def test_a_wrong_environment_is_refused(started, changed, problem):
    started(**WORKER | changed)
    with pytest.raises(StartError, match=problem):
        msrun.read_role()


@pytest.mark.parametrize(
    ("rank", "size", "problem"),
    [
        ("1", 4, "this is rank 1 of msrun: only `mindspore-serving serve` runs over its ranks"),
        ("0", 2, "msrun has started 4 ranks, but tensor_parallel .* is 2: make them equal"),
    ],
)
def test_a_model_over_other_ranks_than_those_of_msrun_is_refused(started, rank, size, problem):
    started(**WORKER | {"MS_NODE_ID": rank})
    with pytest.raises(StartError, match=problem):
        msrun.check_size(size)


def test_models_over_as_many_ranks_or_without_msrun_are_accepted(started):
    started(**WORKER | {"MS_NODE_ID": "0"})
    msrun.check_size(4)
    for variables in ({}, {"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "2"}):  # of agents
        started(**variables)
        msrun.check_size(1)


@pytest.fixture
def role() -> MsrunRole:
    """Rank 1 of two, of addresses that no other test has."""
    return MsrunRole(1, 2, f"test-{os.getpid()}", 1)


@pytest.fixture
def listener(role: MsrunRole) -> Iterator[RankListener]:
    with closing(RankListener(role)) as listener:
        yield listener


def test_rank_0_passes_memory_and_connections(role, listener):
    memory, sockets = create_memory(2), connect_ranks(2)
    with ThreadPoolExecutor(1) as pool, msrun.connect(role, 1), listener.accept() as server:
        with msrun.connect(role, 1) as stream, listener.accept(server) as received:
            msrun.pass_to(stream, memory, sockets[1])
            theirs, peers = listener.receive(received, 1)
            sockets[1][0].close()
        both = [Links(0, sockets[0], memory), Links(1, peers, theirs)]
        other = pool.submit(RankGroup(both[1]).minimum, 5)
        assert RankGroup(both[0]).minimum(7) == other.result(PATIENCE) == 5
    for each in both:
        each.close()
    os.close(memory)
    os.close(theirs)


def test_a_rank_stops_waiting_when_the_server_of_rank_0_ends(role, listener):
    connection = msrun.connect(role, 1)
    with listener.accept() as server:
        connection.close()
        with pytest.raises(EOFError):
            listener.accept(server)


def test_a_rank_that_waits_already_is_refused(role, listener):
    with pytest.raises(StartError, match="rank 1 of port 1 already waits.*--master_port"):
        RankListener(role)


def test_ranks_that_do_not_listen_are_named(role, monkeypatch):
    monkeypatch.setattr(msrun, "MEET_SECONDS", 0.0)
    with pytest.raises(StartError, match="the scheduler cannot be .*--local_worker_num=2"):
        msrun.connect(role, SCHEDULER)


def test_a_joined_process_is_asked_to_end():
    with subprocess.Popen(["sleep", "60"]) as child:
        process = JoinedProcess(child.pid)
        process.kill()
        assert asyncio.run(process.wait()) == 0
        process.kill()  # harmless
