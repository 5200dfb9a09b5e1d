"""A process that has loaded what jobs need, and forks children that have it at once.

Loading takes seconds, forking milliseconds, and the memory is shared; so a child can be killed and
replaced whenever that is useful.  The fork server has one thread, since only that one would be in
its children, and never reads what a client sent.

A module that calls `run` is started by `children.ForkServer`.
"""

import argparse
import ctypes
import gc
import os
import resource
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any, TypeAlias

from mindspore_serving import log
from mindspore_serving.isolation import messages
from mindspore_serving.isolation.messages import Fork, Forked, JobAnswer, JobRequest, ToForkServer
from mindspore_serving.process.channel import BlockingChannel, DescriptorChannel, connect
from mindspore_serving.process.entry import enter
from mindspore_serving.process.vocabulary import Failed, Ready, hello

_PR_SET_PDEATHSIG = 1
MOST_GROWTH = 64 << 20  # bytes that finished jobs may leave behind

Role: TypeAlias = Callable[[socket.socket], None]
"""What a child does: serves its end of a stream until the other end is closed."""


def run(load: Callable[[bytes], Mapping[str, Role]]) -> None:
    """Load the roles of the `RoleSetup` that comes first, and fork a child for each `Fork` that
    follows, until the channel is closed.
    """
    arguments = enter(argparse.ArgumentParser(), ignores_signals=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    channel: DescriptorChannel[Any] = DescriptorChannel(connect(arguments.channel), ToForkServer)
    channel.send(hello(messages))
    with suppress(EOFError), closing(channel):
        try:
            roles = load(channel.receive_one().content)
        except Exception as error:
            log.error("loading what jobs need", exc_info=True)
            channel.send(Failed(f"{type(error).__name__}: {error}"))
            return
        gc.collect()
        gc.freeze()  # a collection in a child would copy every page it looks at
        channel.send(Ready())
        while True:
            _fork(channel.receive_one(), channel, roles)


def _fork(asked: Fork, channel: DescriptorChannel[Any], roles: Mapping[str, Role]) -> None:
    assert len(os.listdir("/proc/self/task")) == 1, "a fork server has one thread"
    server = os.getpid()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = os.fork()
        if pid == 0:
            channel.close()
            ours.close()
            _be_child(asked, roles[asked.role], theirs, server)
        pidfd = os.pidfd_open(pid)
        try:
            channel.send(Forked(), [pidfd, ours.fileno()])
        finally:
            os.close(pidfd)


def _be_child(asked: Fork, role: Role, stream: socket.socket, server: int) -> None:
    """Does not return."""
    status = 1
    try:
        _end_with(server)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _limit(asked)
        with stream:
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
    """Send `answer` of every job, until the other end is closed.  A process that has grown leaves
    after its answer: what a job may take is counted from an empty process.
    """
    channel: BlockingChannel[JobRequest] = BlockingChannel(stream, JobRequest)
    most, is_full = memory() + MOST_GROWTH, False
    with suppress(EOFError):
        while not is_full:
            content = answer(channel.receive_one().content)
            is_full = memory() > most
            channel.send(JobAnswer(content, is_full))
