"""When a worker is restarted and when it is given up, over processes that only exist here."""

import asyncio

import pytest

from mindspore_serving.core import backoff
from mindspore_serving.errors import ResourceShortage, StartError
from mindspore_serving.master.supervisor import WorkerSupervisor
from tests.waiting import PATIENCE, until


class Process:
    pid = 1

    def __init__(self, end):
        self.status = -9
        self._end = end

    def kill(self):
        self._end()

    async def wait(self):
        return self.status

    def log_tail(self):
        return "Traceback: no such key"


class Link:
    """A worker that runs until the test, or a kill, ends it."""

    def __init__(self):
        self.closed = asyncio.get_running_loop().create_future()
        self.process = Process(self.end)
        self.end_reason = ""
        self.is_asked_to_exit = False
        self.leaves = True
        self.is_silent = False

    def ask_to_exit(self):
        self.is_asked_to_exit = True
        if self.leaves:
            self.end(status=0)

    def end_unused(self):
        self.end()

    def end(self, status=None):
        if not self.closed.done():
            self.process.status = -9 if status is None else status
            self.closed.set_result(None)


class Replica:
    """A supervisor, the workers it started, and its report of the end."""

    def __init__(self, policy="limited", **options):
        self.links, self.gone, self.errors, self.num_starts = [], [], [], 0
        self.expected = []  # at each change, whether it may be waited for
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.supervisor = WorkerSupervisor(
            "servable add, device 0", self.start, self.on_change, policy, **options
        )

    def on_change(self, supervisor):
        if supervisor.state == "restarting":
            self.expected.append(supervisor.ready_in() is not None)
        if supervisor.state == "gone":
            self.gone.append(supervisor)

    async def start(self):
        self.num_starts += 1
        await self.may_start.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.links.append(Link())
        return self.links[-1]

    async def until(self, condition):
        await until(condition)


@pytest.fixture
def replica(monkeypatch):
    monkeypatch.setattr(backoff, "FIRST_DELAY", 0.001)
    return Replica


async def test_a_worker_that_dies_is_restarted(replica):
    one = replica()
    await one.supervisor.start()
    one.links[0].end(status=3)
    await one.until(lambda: len(one.links) == 2 and one.supervisor.state == "ready")
    assert one.num_starts == 2
    assert one.supervisor.link is one.links[1]
    await one.supervisor.stop(1.0)


async def test_the_reason_has_the_status_and_the_end_of_the_log(replica):
    one = replica()
    await one.supervisor.start()
    one.links[0].end(status=3)
    await one.until(lambda: len(one.links) == 2)
    assert one.supervisor.reason == "exit status 3: Traceback: no such key"
    one.links[1].end(status=-11)
    await one.until(lambda: len(one.links) == 3)
    assert one.supervisor.reason == "ended by signal SIGSEGV: Traceback: no such key"
    one.links[2].end(status=-9)
    await one.until(lambda: len(one.links) == 4)
    assert one.supervisor.reason == "ended by signal SIGKILL"
    await one.supervisor.stop(1.0)


async def test_a_worker_is_awaited_after_a_death_if_its_restart_is_awaited(replica):
    for is_awaited in (True, False):
        one = replica(is_awaited=is_awaited)
        await one.supervisor.start()
        one.links[0].end(status=3)
        await one.until(lambda: len(one.links) == 2)  # noqa: B023
        assert one.expected == [is_awaited]
        assert one.supervisor.ready_in() == 0
        await one.supervisor.stop(1.0)


async def test_five_quick_deaths_are_the_end(replica):
    one = replica()
    await one.supervisor.start()
    for number in range(1, 6):
        await one.until(lambda: len(one.links) == number)  # noqa: B023
        one.links[-1].end(status=1)
    await one.until(lambda: one.gone)
    assert one.gone == [one.supervisor]
    assert one.supervisor.state == "gone"
    assert len(one.links) == 5
    assert one.supervisor.reason.startswith("exit status 1")


async def test_a_shortage_while_restarting_is_no_death_and_is_tried_again_later(
    replica, monkeypatch
):
    monkeypatch.setattr(backoff, "MAX_DELAY", 0.002)
    one = replica()
    await one.supervisor.start()
    one.errors = [ResourceShortage("no descriptors") for _ in range(40)]
    one.links[0].end(status=1)
    await one.until(lambda: len(one.links) == 2)
    assert one.num_starts == 42
    assert one.supervisor.ready_in() == 0.0
    await one.supervisor.stop(1.0)


async def test_a_worker_that_we_ended_died_for_our_reason(replica):
    one = replica()
    await one.supervisor.start()
    one.links[0].end_reason = "no heartbeat for 30 s"
    one.links[0].process.kill()
    await one.until(lambda: len(one.links) == 2)
    assert one.supervisor.last_exit == "no heartbeat for 30 s"
    await one.supervisor.stop(1.0)


async def test_a_worker_that_keeps_dying_is_restarted_but_not_awaited(replica, monkeypatch):
    monkeypatch.setattr(backoff, "MAX_DELAY", 0.002)
    one = replica("always")
    await one.supervisor.start()
    for number in range(1, 12):
        await one.until(lambda: len(one.links) == number)  # noqa: B023
        one.links[-1].end(status=1)
    await one.until(lambda: len(one.links) == 12)
    assert one.expected == [True] * 4 + [False] * 7
    await one.supervisor.stop(1.0)


async def test_restarts_that_fail_count_as_quick_deaths(replica):
    one = replica()
    await one.supervisor.start()
    one.errors = [StartError(f"error {number}") for number in range(1, 9)]
    one.links[0].end(status=1)
    await one.until(lambda: one.gone)
    assert one.supervisor.reason == "error 4"  # the death, and four starts: five


async def test_a_restart_may_work_after_a_failed_restart(replica):
    one = replica()
    await one.supervisor.start()
    one.errors = [StartError("busy")]
    one.links[0].end(status=1)
    await one.until(lambda: len(one.links) == 2)
    assert one.num_starts == 3
    await one.supervisor.stop(1.0)


async def test_the_first_start_is_not_tried_again(replica):
    one = replica()
    one.errors = [StartError("no such file")]
    with pytest.raises(StartError) as caught:
        await one.supervisor.start()
    assert str(caught.value) == "servable add, device 0: no such file"
    assert (one.supervisor.state, one.supervisor.reason) == ("gone", "no such file")


async def test_a_worker_that_was_told_to_leave_is_not_restarted(replica):
    one = replica()
    await one.supervisor.start()
    one.supervisor.leave()
    assert one.supervisor.state == "leaving"
    one.links[0].end(status=0)
    await one.until(lambda: one.gone)
    assert len(one.links) == 1


async def test_stop_asks_first(replica):
    one = replica()
    await one.supervisor.start()
    await one.supervisor.stop(grace=60.0)
    assert one.links[0].is_asked_to_exit
    assert one.links[0].process.status == 0
    assert one.supervisor.state == "gone"


async def test_stop_kills_a_worker_that_does_not_leave(replica):
    one = replica()
    await one.supervisor.start()
    one.links[0].leaves = False
    await one.supervisor.stop(grace=0.01)
    assert one.links[0].process.status == -9
    assert one.supervisor.state == "gone"


async def test_stop_kills_a_worker_without_a_heartbeat_at_once(replica):
    one = replica()
    await one.supervisor.start()
    one.links[0].leaves, one.links[0].is_silent = False, True
    await asyncio.wait_for(one.supervisor.stop(grace=3600.0), PATIENCE)
    assert one.links[0].process.status == -9


async def test_stop_between_two_workers_ends_the_wait(replica, monkeypatch):
    monkeypatch.setattr(backoff, "FIRST_DELAY", 60.0)
    one = replica()
    await one.supervisor.start()
    one.links[0].end(status=1)
    await one.until(lambda: len(one.links) == 2)
    one.links[1].end(status=1)
    await one.until(lambda: one.supervisor.state == "restarting")
    await asyncio.wait_for(one.supervisor.stop(grace=60.0), PATIENCE)
    assert len(one.links) == 2


async def test_stop_during_a_restart_ends_the_new_worker_too(replica):
    one = replica()
    await one.supervisor.start()
    one.may_start.clear()
    one.links[0].end(status=1)
    await one.until(lambda: one.num_starts == 2)
    stopping = asyncio.create_task(one.supervisor.stop(grace=60.0))
    await asyncio.sleep(0)
    one.may_start.set()
    await asyncio.wait_for(stopping, PATIENCE)
    assert one.links[1].process.status == -9
    assert one.links[1].closed.done()
    assert one.supervisor.state == "gone"


async def test_stop_before_start_is_harmless(replica):
    one = replica()
    await one.supervisor.stop(1.0)
    assert (one.num_starts, one.links) == (0, [])
