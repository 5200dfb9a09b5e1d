"""The output of child processes, in files that are rotated and bounded.

A child prints into a pipe, and a thread of this process writes it to the file: a disk that is full,
or a file that cannot be opened, makes no child fail.  Knows no processes.
"""

import os
import select
import stat
import threading
import time
from contextlib import suppress
from fcntl import F_SETPIPE_SZ, fcntl
from functools import cache
from pathlib import Path

from mindspore_serving import log

MAX_BYTES = 10 << 20  # of a file
NUM_FILES = 3  # NAME.log, and the older NAME.log.1 and NAME.log.2
_PIPE = 1 << 20  # bytes that a child may print before it waits for the thread
_PERIOD = 0.02  # seconds between two looks of the thread: prints are written down together
_CHUNK = 1 << 16
_TAIL = 2000  # bytes of a dead child's output that are shown


class ChildLog:
    """The output of one child.  Any thread."""

    def __init__(self, path: Path | None) -> None:
        """Appends to `path`; None is our own standard error.  `writer` is a descriptor for the
        child; `close_writer` once it has it.
        """
        self._path = path
        self._tail = b""
        self._is_failing = False
        self._lock = threading.Lock()
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        with suppress(OSError):
            fcntl(self.writer, F_SETPIPE_SZ, _PIPE)
        self._write(b"")  # the file is there from the beginning

    def close_writer(self) -> None:
        os.close(self.writer)

    def begin(self) -> None:
        """Have the thread read what comes."""
        _thread().add(self._reader, self)

    def tail(self) -> str:
        """The last that was printed."""
        self.pump()
        return self._tail.decode(errors="replace").strip()

    def pump(self) -> bool:
        """Write down what has come.  Whether more may come."""
        with self._lock:
            for _ in range(_PIPE // _CHUNK):
                try:
                    data = os.read(self._reader, _CHUNK)
                except BlockingIOError:
                    return True
                except OSError:  # it was closed
                    return False
                if not data:
                    return False
                self._tail = (self._tail + data[-_TAIL:])[-_TAIL:]
                self._write(data)
            return True

    def close(self) -> None:
        """Write down nothing more."""
        with self._lock:
            os.close(self._reader)
            self._reader = -1

    def _write(self, data: bytes) -> None:
        try:
            if self._path is None:
                os.write(2, data)
            else:
                _append(self._path, data)
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                log.warning("the output of a child process is not logged: %s", error)
            self._is_failing = True


class _Thread:
    """Pumps all logs, a few times in a second while something is printed."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._logs: dict[int, ChildLog] = {}
        threading.Thread(target=self._run, name="child-logs", daemon=True).start()

    def add(self, descriptor: int, found: ChildLog) -> None:
        self._logs[descriptor] = found
        self._poll.register(descriptor, select.EPOLLIN)

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._poll.poll():
                found = self._logs[descriptor]
                try:
                    is_open = found.pump()
                except Exception:  # a setting of the log that is wrong; children wait for us
                    continue
                if not is_open:
                    self._poll.unregister(descriptor)
                    del self._logs[descriptor]
                    found.close()
            time.sleep(_PERIOD)


@cache
def _thread() -> _Thread:
    return _Thread()


def _append(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            if found.st_mode & 0o077:
                os.fchmod(descriptor, 0o600)  # made by an older version
            if found.st_size and found.st_size + len(data) > MAX_BYTES:
                _rotate(path)
                _append(path, data)
                return
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def _rotate(path: Path) -> None:
    """Make room for a new file at `path`."""
    names = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, NUM_FILES))]
    for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
        with suppress(FileNotFoundError):
            os.replace(newer, older)
