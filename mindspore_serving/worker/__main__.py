"""Entry point of a worker process: `python -m mindspore_serving.worker --channel ADDRESS`.

When the master dies, the kernel ends this process and its children, even while a stage blocks the
interpreter (`process.entry`).  A second thread does the same where the kernel cannot.  It also
reports SIGTERM and SIGINT to the master and counts heartbeats, which stop while the interpreter is
blocked.
"""

import argparse
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from mindspore_serving.ipc import messages, status
from mindspore_serving.ipc.arena import Arena, ArenaView, NoArena
from mindspore_serving.process.channel import connect, encode
from mindspore_serving.process.entry import enter, kill_group, remove_current_directory_from_path
from mindspore_serving.process.vocabulary import hello
from mindspore_serving.worker import preparing_early
from mindspore_serving.worker.worker import Overrides, Worker


def main() -> int:
    """Connect to the master and serve; return the exit status."""
    arguments = _parse()
    stream = connect(arguments.channel)
    stream.sendall(encode(hello(messages)))
    arena: Arena | NoArena = NoArena(status.SIZE, arguments.status)
    view: ArenaView | NoArena = NoArena()
    if arguments.arenas:
        to_write, to_read = map(int, arguments.arenas.split(","))
        arena, view = Arena(to_write, status.SIZE), ArenaView(to_read, is_writable=True)
    worker = Worker(stream, arena, view, on_broken=lambda: os._exit(1))
    worker.overrides = Overrides(
        arguments.servables, arguments.device_id, arguments.address, arguments.server
    )
    is_child = arguments.channel.startswith("fd:")
    _watch(stream, worker.announce_leaving, arena, is_child=is_child)
    if arguments.model:
        preparing_early.prepare(Path(arguments.model))
    gc.set_threshold(50_000, 20, 20)  # requests make no cycles; collect for the user's code only
    try:
        return worker.serve()
    except (EOFError, ConnectionError):
        kill_group()
        return 1
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # a library's thread may wait for a rank that has ended


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mindspore_serving.worker")
    parser.add_argument("--arenas", help="descriptors of the arenas to write to and read from: W,R")
    parser.add_argument("--status", type=int, help="without arenas: descriptor of status memory")
    parser.add_argument("--servables", help="servable directory here, if not the master's path")
    parser.add_argument("--device-id", type=int, help="device id here, if not the master's")
    parser.add_argument("--address", default="", help="address of this machine, for others")
    parser.add_argument("--server", default="", help="address of the master's machine")
    parser.add_argument("--model", help="language model to prepare for, while the master starts")
    parser.add_argument("--name", help="shown in process lists only")
    return enter(parser)


def _watch(
    stream: socket.socket,
    announce_leaving: Callable[[], None],
    arena: Arena | NoArena,
    *,
    is_child: bool,
) -> None:
    """Start the thread that watches the master and the signals (see the module's docstring)."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write)
    exit_signals = {signal.SIGTERM, signal.SIGINT}
    for number in exit_signals:
        signal.signal(number, lambda *_: None)  # the byte on the wake-up descriptor is enough
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLRDHUP)  # hang-up and error are always reported
    poll.register(wake_read, select.POLLIN)
    parent = os.getppid()

    def wait() -> None:
        report = _Report(arena)
        while True:
            report.write()
            if is_child and os.getppid() != parent:
                kill_group()  # a fork of the master may keep the channel open, so no hang-up
            for descriptor, _ in poll.poll(status.BEAT_SECONDS * 1000):
                if descriptor != wake_read:
                    kill_group()
                if not exit_signals.isdisjoint(os.read(wake_read, 64)):
                    announce_leaving()  # other signals belong to the user's code

    threading.Thread(target=wait, name="watch-master", daemon=True).start()


class _Report:
    """Periodic report of this worker's status in `arena`, and trimming of that arena."""

    def __init__(self, arena: Arena | NoArena) -> None:
        self._arena = arena
        self._measured = self._trim_at = 0.0  # times of the monotonic clock

    def write(self) -> None:
        """Count a heartbeat; write the resource usage and trim the arena if they are due."""
        status.beat(self._arena.reserved)
        now = time.monotonic()
        if now - self._measured >= status.USAGE_SECONDS:
            self._measured = now
            status.set_usage(self._arena.reserved)
        if now >= self._trim_at:
            self._trim_at = now + self._arena.trim()


if __name__ == "__main__":
    remove_current_directory_from_path()
    sys.exit(main())
