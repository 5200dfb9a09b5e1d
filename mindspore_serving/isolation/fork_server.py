"""A process that has loaded what jobs need, and forks children that have it at once.

Loading takes seconds, forking milliseconds, and the memory is shared; so a child can be killed and
replaced whenever that is useful.  The fork server has one thread, since only that one would be in
its children, and never reads what a client sent.

A module that calls `run` is started by `children.ForkServer`.
"""

import argparse
import array
import ctypes
import gc
import os
import resource
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeAlias

import msgspec

from mindspore_serving import log
from mindspore_serving.process.channel import connect
from mindspore_serving.process.entry import enter
from mindspore_serving.process.frames import receive, send

_PR_SET_PDEATHSIG = 1
MOST_SETUP = 64 << 10  # bytes; a packet has room for more
# The first byte of every answer.
STAYING, LEAVING = b"\0", b"\1"
MOST_GROWTH = 64 << 20  # bytes that finished jobs may leave behind

Role: TypeAlias = Callable[[socket.socket], None]
"""What a child does: serves its end of a stream until the other end is closed."""


class Fork(msgspec.Struct, frozen=True, array_like=True):
    """Asks for a child, with its end of a stream as the descriptor that comes along.

    Args:
        role: one of those that the fork server has loaded.
        memory: bytes that the child may have beside what was loaded.
        nice: is added to its niceness: the higher, the less it gets of a busy machine.
    """

    role: str
    memory: int
    nice: int = 0


def run(load: Callable[[bytes], Mapping[str, Role]]) -> None:
    """Load the roles of the setup that comes first, and fork a child for each `Fork` that follows,
    until the channel, a socket of packets, is closed.  The answer to a `Fork` is the
    child's pidfd.
    """
    arguments = enter(argparse.ArgumentParser(), ignores_signals=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    with connect(arguments.channel) as control:
        setup = control.recv(MOST_SETUP)
        if not setup:
            return
        roles = load(setup)
        gc.collect()
        gc.freeze()  # a collection in a child would copy every page it looks at
        while _serve_one(control, roles):
            pass


def _serve_one(control: socket.socket, roles: Mapping[str, Role]) -> bool:
    packet, descriptors, _, _ = socket.recv_fds(control, MOST_SETUP, 1)
    if not packet:
        return False
    assert len(os.listdir("/proc/self/task")) == 1, "a fork server has one thread"
    asked = msgspec.msgpack.decode(packet, type=Fork)
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        control.close()
        _be_child(asked, roles[asked.role], descriptors[0], server)
    os.close(descriptors[0])
    pidfd = os.pidfd_open(pid)
    socket.send_fds(control, [b"forked"], array.array("i", [pidfd]))
    os.close(pidfd)
    return True


def _be_child(asked: Fork, role: Role, descriptor: int, server: int) -> None:
    """Does not return."""
    status = 1
    try:
        _end_with(server)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _limit(asked)
        with socket.socket(fileno=descriptor) as stream:
            role(stream)
        status = 0
    except (MemoryError, ConnectionError):
        pass  # both are what the parent expects
    except BaseException:
        log.error("a process that works for others failed", exc_info=True)
    finally:
        os._exit(status)


def _end_with(server: int) -> None:
    """Have the kernel kill this child when the fork server, which is its parent, ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server:  # it has ended before
        os._exit(1)


def _limit(asked: Fork) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = memory() + asked.memory
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    if asked.nice:
        os.nice(asked.nice)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # where the machine runs out of memory, this process goes first


def memory() -> int:
    """Bytes of this process that RLIMIT_DATA counts."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[5]) * resource.getpagesize()


def answer_jobs(stream: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    """Send `answer` of every frame, until the other end is closed.  A process that has grown leaves
    after its answer: what a job may take is counted from an empty process.
    """
    most = memory() + MOST_GROWTH
    while (job := receive(stream)) is not None:
        found = answer(job)
        is_full = memory() > most
        send(stream, (LEAVING if is_full else STAYING) + found)
        if is_full:
            return
