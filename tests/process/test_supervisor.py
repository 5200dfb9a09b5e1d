"""What is kept running: real child processes that end, and starts that fail."""

import asyncio
import os
import signal

import pytest

from mindspore_serving.core import backoff
from mindspore_serving.errors import StartError
from mindspore_serving.process.child import Child, Program, exit_text
from mindspore_serving.process.supervisor import NoRestart, Supervisor
from tests.waiting import PATIENCE, until


class Role:
    """A supervisor of children that wait, those that it started, and errors of its starts."""

    def __init__(self, policy="always"):
        self.children, self.errors = [], []
        self.supervisor = Supervisor("a child", self.start, self.wait, Child.kill, policy=policy)

    async def start(self):
        if self.errors:
            raise self.errors.pop(0)
        self.children.append(Child(Program("tests.process.programs", ["waits"])))
        return self.children[-1]

    async def wait(self, child):
        status = await child.wait()
        if status == -signal.SIGTERM:
            raise NoRestart("it was asked to end")
        return exit_text(status)

    async def until_started(self, count):
        await until(lambda: len(self.children) == count and self.supervisor.state == "ready")


@pytest.fixture
async def role(monkeypatch):
    monkeypatch.setattr(backoff, "FIRST_DELAY", 0.001)
    made = []

    def make(*arguments):
        made.append(Role(*arguments))
        return made[-1]

    yield make
    for one in made:
        one.supervisor.leave()
        for child in one.children:
            child.kill()
        await asyncio.wait_for(one.supervisor.join(), PATIENCE)
        for child in one.children:
            child.close()


async def test_a_child_that_is_killed_is_followed_by_another(role):
    kept = role()
    await kept.supervisor.start()
    for count in (2, 3):
        os.kill(kept.children[-1].pid, signal.SIGKILL)
        await kept.until_started(count)
    assert kept.supervisor.reason == "ended by signal SIGKILL"
    assert kept.supervisor.num_restarts == 2
    assert kept.supervisor.current is kept.children[-1]


async def test_under_the_policy_never_the_first_end_is_the_last(role):
    kept = role("never")
    await kept.supervisor.start()
    kept.children[0].kill()
    await asyncio.wait_for(kept.supervisor.join(), PATIENCE)
    assert kept.supervisor.state == "gone"
    assert len(kept.children) == 1


async def test_a_process_that_ends_with_no_restart_is_not_restarted(role):
    kept = role()
    await kept.supervisor.start()
    kept.children[0].terminate()
    await asyncio.wait_for(kept.supervisor.join(), PATIENCE)
    assert (kept.supervisor.state, kept.supervisor.reason) == ("gone", "it was asked to end")
    assert len(kept.children) == 1


async def test_a_start_that_need_not_be_tried_again_is_the_last(role):
    kept = role()
    await kept.supervisor.start()
    kept.errors = [StartError("busy"), NoRestart("nobody is there")]
    kept.children[0].kill()
    await asyncio.wait_for(kept.supervisor.join(), PATIENCE)
    assert (kept.supervisor.state, kept.supervisor.reason) == ("gone", "nobody is there")
    assert kept.errors == []


async def test_a_supervisor_that_is_cancelled_leaves_the_child_alone(role):
    kept = role()
    await kept.supervisor.start()
    kept.supervisor.cancel()
    await asyncio.wait_for(kept.supervisor.join(), PATIENCE)
    assert kept.children[0].poll() is None


async def test_a_supervisor_that_is_cancelled_gives_up_its_first_start(role):
    kept, held = role(), asyncio.Event()

    async def start():
        await held.wait()

    kept.supervisor._start = start
    starting = asyncio.create_task(kept.supervisor.start())
    await until(lambda: kept.supervisor.state == "starting")
    kept.supervisor.cancel()
    await asyncio.wait_for(kept.supervisor.join(), PATIENCE)
    assert starting.cancelled()
