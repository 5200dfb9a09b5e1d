"""Child processes: what they inherit, and how they end."""

import asyncio
import os
import signal
import socket
import subprocess
import sys

import pytest

from mindspore_serving.process.channel import BlockingChannel
from mindspore_serving.process.child import Child, Program, exit_text, large_pages
from mindspore_serving.process.child_log import ChildLog
from mindspore_serving.process.vocabulary import Failed
from tests.waiting import PATIENCE, eventually

MODULE = "tests.process.programs"


@pytest.fixture
def start():
    """Start a child that runs a function of `programs`; it is closed after the test."""
    children = []

    def start_child(*words, **options):
        children.append(Child(Program(MODULE, list(words), **options)))
        return children[-1]

    yield start_child
    for child in children:
        child.close()


def test_child_gets_variables_and_loses_those_that_are_none(start, monkeypatch):
    monkeypatch.setenv("SECRET_OF_PARENT", "1")
    reading, writing = os.pipe()
    variables = {"SECRET_OF_PARENT": None, "GIVEN_TO_CHILD": "two"}
    child = start("variables", variables=variables, stdout=writing)
    os.close(writing)
    with open(reading) as output:
        assert output.read().split() == ["None", "two"]
    assert child.join(PATIENCE) == 0


def test_child_inherits_the_descriptors_of_its_program_alone(start):
    reading, writing = os.pipe()
    hidden, _ = ends = os.pipe()
    os.set_inheritable(hidden, True)
    child = start("descriptors", str(writing), str(hidden), descriptors=[writing])
    os.close(writing)
    with open(reading) as output:
        assert output.read() == "False"  # whether it has the hidden one
    assert child.join(PATIENCE) == 0
    for end in ends:
        os.close(end)


def test_child_inherits_an_end_of_its_channel():
    child = Child(Program("tests.process.talks", channel=socket.SOCK_STREAM))
    try:
        channel = BlockingChannel(child.stream, Failed, timeout=PATIENCE)
        assert channel.receive_next() == Failed("the child")
        child.stream.close()
        assert child.join(PATIENCE) == 0
    finally:
        child.close()


def test_waiting_for_an_end_has_a_limit(start):
    with pytest.raises(TimeoutError, match=r"has not ended within 0.05 s"):
        start("waits").join(0.05)


def test_child_log_has_the_output_after_its_end(start, tmp_path):
    child = start("prints", log=ChildLog(tmp_path / "child.log"))
    assert child.join(PATIENCE) == 3
    child.close()
    assert child.log_tail() == "the last words"
    assert (tmp_path / "child.log").read_text() == "the last words\n"


async def test_child_that_ends_gives_its_status_to_all_who_wait(start):
    child = start("prints")
    waiting = asyncio.gather(child.wait(), child.wait())
    assert await asyncio.wait_for(waiting, PATIENCE) == [3, 3]


def test_closed_child_leaves_no_descriptor_and_no_process(start, tmp_path):
    before = set(os.listdir("/proc/self/fd"))
    child = start("waits", log=ChildLog(tmp_path / "child.log"))
    child.close()
    assert child.poll() == -signal.SIGKILL
    eventually(lambda: set(os.listdir("/proc/self/fd")) <= before)
    child.close()


def test_child_and_grandchild_end_when_the_parent_is_killed(tmp_path):
    """The kernel ends them, as the parent can no longer do so."""
    parent = subprocess.Popen(
        [sys.executable, "-m", MODULE, "parent"], stdout=subprocess.PIPE, text=True
    )
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    parent.communicate()
    eventually(lambda: not any(map(is_running, pids)))


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_exit_text_names_the_signal_or_the_status():
    assert exit_text(-signal.SIGKILL) == "ended by signal SIGKILL"
    assert exit_text(3) == "exit status 3"


def test_large_pages_are_added_to_the_operators_tunables(monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=4")
    assert large_pages() == {"GLIBC_TUNABLES": "glibc.malloc.arena_max=4:glibc.malloc.hugetlb=1"}
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    assert large_pages() == {}
