"""Ranks that exchange arrays: in order, with the same bits, and never hanging on one another."""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mindspore_serving.llm.parallel.group import RankGroup
from mindspore_serving.llm.parallel.links import Links, create_memory
from mindspore_serving.llm.parallel.processes import connect_ranks
from mindspore_serving.llm.parallel.watching import WatchedThread
from mindspore_serving.llm.step import RunnerLost
from tests.llm.rank_threads import links
from tests.waiting import PATIENCE


@pytest.mark.parametrize("size", [2, 3])
def test_every_rank_reads_the_parts_of_all_ranks_in_each_exchange(size):
    """Many times over, so that a rank that is faster would overwrite what another still reads."""

    def work(group: RankGroup) -> list[list[int]]:
        found = []
        for number in range(300):
            half = group.half
            group.parts[half, group.rank, :2] = number % 100, group.rank
            group.barrier(2)
            found.append(group.parts[half, :, :2].flatten().tolist())
        return found

    with links(size) as own, ThreadPoolExecutor(size) as pool:
        for found in pool.map(work, map(RankGroup, own), timeout=PATIENCE):
            assert found == [
                [x for rank in range(size) for x in (number % 100, rank)] for number in range(300)
            ]


def test_the_least_number_of_all_ranks():
    with links(3) as own, ThreadPoolExecutor(3) as pool:
        found = pool.map(lambda one: RankGroup(one).minimum(7 - one.rank), own, timeout=PATIENCE)
        assert list(found) == [5, 5, 5]


def test_ranks_that_compute_different_things_are_found():
    with links(2) as own, ThreadPoolExecutor(2) as pool:
        own[0].begin(5)
        own[1].begin(6)
        one, other = (pool.submit(RankGroup(one).barrier, 8) for one in own)
        problem = r"rank 1 of 2 is at \(step, region, exchange, bytes\) \(6, 0, 0, 8\)"
        with pytest.raises(RunnerLost, match=problem):
            one.result(PATIENCE)
        with pytest.raises(RunnerLost, match="rank 0 of 2 is at"):
            other.result(PATIENCE)


def test_a_rank_that_has_ended_is_found_by_those_that_wait():
    with links(2) as own, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(RankGroup(own[0]).barrier, 8)
        own[1].close()
        with pytest.raises(RunnerLost, match="rank 1 of 2 has ended"):
            waiting.result(PATIENCE)


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_call_that_never_returns_is_abandoned_when_a_rank_is_lost(alone, has_ended):
    """As a collective of a library does; without an end, by missing heartbeats."""
    group, theirs, _ = alone
    forever = threading.Event()
    thread = WatchedThread(group.links)
    assert thread.call(lambda: 7) == 7
    if has_ended:
        theirs.close()
    with pytest.raises(RunnerLost, match=f"rank 1 of 2 {'has ended' if has_ended else 'sent no'}"):
        thread.call(forever.wait)
    forever.set()


def test_a_watched_call_raises_its_own_error(alone):
    thread = WatchedThread(alone[0].links)
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 / 0)
    assert thread.call(lambda: thread.call(lambda: 3)) == 3  # a call within a call
    thread.close()


@pytest.fixture
def alone():
    """Rank 0 of two, the socket of rank 1, which nobody serves, and the memory of both."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    memory = create_memory(2)
    links = Links(0, {1: ours}, memory, patience=2.0)
    yield RankGroup(links), theirs, memory
    links.close()
    theirs.close()
    os.close(memory)


def test_a_rank_without_heartbeats_is_lost(alone):
    with pytest.raises(RunnerLost, match="rank 1 of 2 sent no heartbeat for 2 s"):
        alone[0].barrier(8)


def test_a_rank_without_heartbeats_is_detected_through_another_rank():
    """The other one waits for it: as in a ring, and in a stage of several ranks."""
    memory, sockets = create_memory(3), connect_ranks(3)
    first = Links(0, sockets[0], memory, patience=2.0)
    last = Links(2, sockets[2], memory)
    with pytest.raises(RunnerLost, match="rank 1 of 3 sent no heartbeat for 2 s"):
        RankGroup(first, range(0, 3, 2)).barrier(8)
    first.close()
    last.close()
    os.close(memory)
    for one in sockets[1].values():
        one.close()


def test_a_rank_that_is_slow_and_has_heartbeats_is_waited_for(alone):
    group, theirs, memory = alone
    slow = RankGroup(Links(1, {0: theirs}, memory))
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(group.minimum, 3)
        until = int(slow.links._beats[1]) + 12  # four looks, twice the patience
        while slow.links._beats[1] < until:
            assert not waiting.done()
        assert slow.minimum(4) == 3
        assert waiting.result(PATIENCE) == 3


def test_parts_are_memory_that_both_see(alone):
    group, theirs, memory = alone
    other = RankGroup(Links(1, {0: theirs}, memory))
    other.parts[1, 1, :3] = 1, 2, 3
    assert np.array_equal(group.parts[1, 1, :3], [1, 2, 3])
