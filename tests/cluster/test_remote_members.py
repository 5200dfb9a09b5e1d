"""Members of a group that run behind the relay between a node and the master."""

import asyncio
import os
import signal
import socket

import pytest

from mindspore_serving.cluster.base import Launched
from mindspore_serving.cluster.node_connection import NodeConnection, open_stream
from mindspore_serving.cluster.node_messages import FromWorker
from mindspore_serving.cluster.node_worker import NodeWorker
from mindspore_serving.cluster.remote import RemoteProcess
from mindspore_serving.errors import StartError
from mindspore_serving.ipc import status
from mindspore_serving.ipc.arena import NoArena
from mindspore_serving.process import vocabulary
from mindspore_serving.process.channel import BlockingChannel
from mindspore_serving.process.child import Child, Program
from mindspore_serving.process.group import Group, ProcessMember
from tests.waiting import PATIENCE

REPORTS = vocabulary.Hello | vocabulary.Ready | vocabulary.Failed


def start(name):
    return Child(Program("tests.process.members", [name], channel=socket.SOCK_STREAM))


def here(name):
    child = start(name)
    return child, ProcessMember("here", child, BlockingChannel(child.stream, REPORTS), vocabulary)


@pytest.fixture
async def far():
    """Start a member on the other side of a relay; return its process there, and the member."""
    tasks = []

    async def start_far(name):
        to_node, to_master = [
            NodeConnection(*await open_stream(end)) for end in socket.socketpair()
        ]
        child = start(name)
        launched = Launched(child, child.stream, NoArena(), NoArena(status.SIZE))
        tasks.append(asyncio.create_task(NodeWorker(launched, to_master).run()))
        started = await to_node.receive(FromWorker)
        process = RemoteProcess(to_node, "node", started.pid)
        ours, theirs = socket.socketpair()
        tasks.append(asyncio.create_task(process.relay(theirs)))
        return child, ProcessMember("far", process, BlockingChannel(ours, REPORTS), vocabulary)

    yield start_far
    await asyncio.wait_for(asyncio.wait(tasks), PATIENCE)


async def test_a_local_member_that_ends_also_ends_a_remote_member(far):
    group = Group()
    (child, ours), (far_child, theirs) = here("works"), await far("works")
    for member in (ours, theirs):
        group.add(member)
    await asyncio.wait_for(group.ready(), PATIENCE)
    os.kill(child.pid, signal.SIGKILL)
    assert await asyncio.wait_for(group.wait(), PATIENCE) == "here: ended by signal SIGKILL"
    assert await asyncio.wait_for(far_child.wait(), PATIENCE) == -signal.SIGKILL


async def test_a_remote_member_that_ends_also_ends_a_local_member(far):
    group = Group()
    (child, ours), (far_child, theirs) = here("works"), await far("works")
    for member in (ours, theirs):
        group.add(member)
    await asyncio.wait_for(group.ready(), PATIENCE)
    os.kill(far_child.pid, signal.SIGKILL)
    assert await asyncio.wait_for(group.wait(), PATIENCE) == "far: ended by signal SIGKILL"
    assert child.poll() == -signal.SIGKILL


async def test_a_failed_start_of_a_remote_member_is_the_text_of_the_group(far):
    group = Group()
    (child, ours), (_, theirs) = here("works"), await far("fails")
    for member in (ours, theirs):
        group.add(member)
    with pytest.raises(StartError, match="^far: no such file$"):
        await asyncio.wait_for(group.ready(), PATIENCE)
    await asyncio.wait_for(group.close(), PATIENCE)
    assert child.poll() == -signal.SIGKILL
