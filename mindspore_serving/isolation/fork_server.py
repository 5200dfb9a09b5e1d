"""A fork server: a process that loads libraries and models once and forks children that have them.

Loading takes seconds, forking milliseconds, and the memory is shared; so a child can be killed and
replaced cheaply.  The fork server has one thread, since only the forking thread exists in a child,
and it never reads data of clients.

`children.ForkServer` starts a module that calls `run`.
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
from typing import Any, NoReturn, TypeAlias

from mindspore_serving import log
from mindspore_serving.isolation import messages
from mindspore_serving.isolation.messages import Fork, Forked, JobAnswer, JobRequest, ToForkServer
from mindspore_serving.process.channel import BlockingChannel, DescriptorChannel, connect
from mindspore_serving.process.entry import enter
from mindspore_serving.process.vocabulary import Failed, Ready, hello

_PR_SET_PDEATHSIG = 1
MAX_GROWTH = 64 << 20  # bytes of memory that a child may retain after its jobs

Role: TypeAlias = Callable[[socket.socket], None]
"""The function that a child runs: it serves a stream until the peer closes it."""


def run(load: Callable[[bytes], Mapping[str, Role]]) -> None:
    """Run a fork server until its channel is closed.

    `load` gets the content of the first message, a `RoleSetup`, and returns the roles by name.
    After that each `Fork` message forks a child.
    """
    arguments = enter(argparse.ArgumentParser(), ignores_signals=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    channel: DescriptorChannel[Any] = DescriptorChannel(connect(arguments.channel), ToForkServer)
    channel.send(hello(messages))
    with suppress(EOFError), closing(channel):
        try:
            roles = load(channel.receive_next().content)
        except Exception as error:
            log.error("a fork server cannot load", exc_info=True)
            channel.send(Failed(f"{type(error).__name__}: {error}"))
            return
        gc.collect()
        gc.freeze()  # a collection in a child would write to, and so copy, all shared pages
        channel.send(Ready())
        while True:
            _fork(channel.receive_next(), channel, roles)


def _fork(message: Fork, channel: DescriptorChannel[Any], roles: Mapping[str, Role]) -> None:
    assert len(os.listdir("/proc/self/task")) == 1, "a fork server has one thread"
    server = os.getpid()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = os.fork()
        if pid == 0:
            channel.close()
            ours.close()
            _run_child(message, roles[message.role], theirs, server)
        pidfd = os.pidfd_open(pid)
        try:
            channel.send(Forked(), [pidfd, ours.fileno()])
        finally:
            os.close(pidfd)


def _run_child(message: Fork, role: Role, stream: socket.socket, server: int) -> NoReturn:
    """Run `role` in a forked child, and exit."""
    status = 1
    try:
        _die_with_parent(server)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _set_limits(message)
        with stream:
            role(stream)
        status = 0
    except (MemoryError, ConnectionError):
        pass  # a job over its limit, and a parent that has ended: both are expected
    except BaseException:
        log.error("a forked process failed", exc_info=True)
    finally:
        os._exit(status)


def _die_with_parent(server: int) -> None:
    """Make the kernel kill this child when its parent ends, the fork server of pid `server`."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server:  # the server ended before prctl
        os._exit(1)


def _set_limits(message: Fork) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = memory() + message.memory
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    if message.nice:
        os.nice(message.nice)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # if the machine runs out of memory, the kernel kills children first


def memory() -> int:
    """Return the bytes of memory of this process that RLIMIT_DATA counts."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[5]) * resource.getpagesize()


def answer_jobs(stream: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    """Reply to each job with `answer` of its content, until the peer closes the stream.

    Return early, after a reply marked as the last, once memory has grown by MAX_GROWTH: the memory
    limit of a job assumes a process that starts empty.
    """
    channel: BlockingChannel[JobRequest] = BlockingChannel(stream, JobRequest)
    limit, is_full = memory() + MAX_GROWTH, False
    with suppress(EOFError):
        while not is_full:
            content = answer(channel.receive_next().content)
            is_full = memory() > limit
            channel.send(JobAnswer(content, is_full))
