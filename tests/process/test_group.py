"""Groups of real child processes, and of a member that is none."""

import asyncio
import os
import signal
import socket

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.process import group as group_module
from mindspore_serving.process import vocabulary
from mindspore_serving.process.channel import BlockingChannel
from mindspore_serving.process.child import Child, Program
from mindspore_serving.process.group import Group, ProcessMember
from mindspore_serving.process.supervisor import NoRestart
from tests.process.members import LOST
from tests.waiting import PATIENCE


class Runs(ProcessMember):
    """A child that runs `members`."""

    def __init__(self, name):
        self.child = Child(Program("tests.process.members", [name], channel=socket.SOCK_STREAM))
        kind = vocabulary.Hello | vocabulary.Ready | vocabulary.Failed
        channel = BlockingChannel(self.child.stream, kind)
        super().__init__(name, self.child, channel, vocabulary)

    def describe_exit(self, status):
        return "" if status == LOST else super().describe_exit(status)


@pytest.fixture
async def members():
    """Add a member to a group for each name; the group is closed after the test."""
    groups = []

    def start(*names):
        groups.append(Group())
        started = [Runs(name) for name in names]
        for member in started:
            groups[-1].add(member)
        return groups[-1], started

    yield start
    for group in groups:
        await asyncio.wait_for(group.close(), PATIENCE)


def have_ended(members):
    return all(member.child.poll() is not None for member in members)


async def test_a_group_is_ready_when_all_members_are(members):
    group, started = members("works", "works")
    await asyncio.wait_for(group.ready(), PATIENCE)
    assert all(member.is_ready for member in started)
    assert not have_ended(started)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("fails", "^fails: no such file$"),
        ("exits", "^exits: exit status 3$"),
        ("other_version", "^other_version: .* both must be of one release"),
    ],
)
async def test_a_member_that_cannot_start_ends_all_with_its_text(members, name, problem):
    group, started = members("works", name)
    with pytest.raises(StartError, match=problem):
        await asyncio.wait_for(group.ready(), PATIENCE)
    await asyncio.wait_for(group.close(), PATIENCE)
    assert have_ended(started)


@pytest.mark.parametrize("killed", [0, 1])
async def test_the_first_end_is_the_end_of_all_and_its_text_that_of_the_group(members, killed):
    group, started = members("works", "works_too")
    await asyncio.wait_for(group.ready(), PATIENCE)
    os.kill(started[killed].child.pid, signal.SIGKILL)
    text = await asyncio.wait_for(group.wait(), PATIENCE)
    assert text == f"{started[killed].title}: ended by signal SIGKILL"
    assert have_ended(started)


async def test_an_end_that_follows_another_is_not_the_cause(members, monkeypatch):
    monkeypatch.setattr(group_module, "CAUSE_SECONDS", PATIENCE)
    group, started = members("ends_later", "works")
    await asyncio.wait_for(group.ready(), PATIENCE)
    started[0].channel.send(vocabulary.Exit())  # as it would learn of the end of the second one
    await asyncio.wait_for(started[0].process.wait(), PATIENCE)
    os.kill(started[1].child.pid, signal.SIGKILL)
    text = await asyncio.wait_for(group.wait(), PATIENCE)
    assert text == "works: ended by signal SIGKILL"


async def test_a_group_that_is_closed_leaves_no_process_and_no_descriptor(members):
    before = set(os.listdir("/proc/self/fd"))
    group, started = members("works", "works")
    await asyncio.wait_for(group.ready(), PATIENCE)
    await asyncio.wait_for(group.close(), PATIENCE)
    assert have_ended(started)
    assert set(os.listdir("/proc/self/fd")) <= before


class Owner:
    """A member that is no process: it ends the group for good."""

    def __init__(self):
        self.end = asyncio.get_running_loop().create_future()

    async def ready(self):
        pass

    async def ended(self):
        await self.end
        raise NoRestart("the servable is stopped")

    def kill(self):
        if not self.end.done():
            self.end.set_result(None)

    def close(self):
        pass


async def test_a_member_may_end_a_group_for_good(members):
    group, started = members("works")
    owner = Owner()
    group.add(owner)
    await asyncio.wait_for(group.ready(), PATIENCE)
    owner.kill()
    with pytest.raises(NoRestart, match="the servable is stopped"):
        await asyncio.wait_for(group.wait(), PATIENCE)
    assert have_ended(started)
