"""Log files for the output of child processes, rotated and bounded.

A child writes to a pipe, and a thread of this process copies the pipe to the file.  So a full disk,
or a file that cannot be opened, makes no child fail.  Does not know the processes themselves.
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

MAX_BYTES = 10 << 20  # per file
NUM_FILES = 3  # NAME.log, and the older NAME.log.1 and NAME.log.2
_PIPE = 1 << 20  # bytes: the pipe's capacity; a child that fills it waits for the thread
_PERIOD = 0.02  # seconds between two reads, so that several prints are written together
_CHUNK = 1 << 16
_TAIL = 2000  # bytes of output kept for error messages


class ChildLog:
    """The log of one child's output.  Thread-safe."""

    def __init__(self, path: Path | None) -> None:
        """Append to `path`, or to our standard error if it is None.

        `writer` is the descriptor to pass to the child; call `close_writer` afterwards.
        """
        self._path = path
        self._tail = b""
        self._is_failing = False
        self._lock = threading.Lock()
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        with suppress(OSError):
            fcntl(self.writer, F_SETPIPE_SZ, _PIPE)
        self._write(b"")  # creates the file

    def close_writer(self) -> None:
        os.close(self.writer)

    def begin(self) -> None:
        """Start copying the output, on the thread that all logs share."""
        _thread().add(self._reader, self)

    def tail(self) -> str:
        """Return the last output, at most 2000 bytes."""
        self.pump()
        return self._tail.decode(errors="replace").strip()

    def pump(self) -> bool:
        """Copy the output in the pipe to the file; return False once the pipe has ended."""
        with self._lock:
            for _ in range(_PIPE // _CHUNK):
                try:
                    data = os.read(self._reader, _CHUNK)
                except BlockingIOError:
                    return True
                except OSError:  # the log was closed
                    return False
                if not data:
                    return False
                self._tail = (self._tail + data[-_TAIL:])[-_TAIL:]
                self._write(data)
            return True

    def close(self) -> None:
        """Stop copying the output."""
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
                log.warning("cannot write the log of a child process: %s", error)
            self._is_failing = True


class _Thread:
    """A thread that copies the output of all children, at most every `_PERIOD` seconds."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._logs: dict[int, ChildLog] = {}
        threading.Thread(target=self._run, name="child-logs", daemon=True).start()

    def add(self, descriptor: int, child_log: ChildLog) -> None:
        self._logs[descriptor] = child_log
        self._poll.register(descriptor, select.EPOLLIN)

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._poll.poll():
                child_log = self._logs[descriptor]
                try:
                    is_open = child_log.pump()
                except Exception:  # a wrong setting of our own log must not block the children
                    continue
                if not is_open:
                    self._poll.unregister(descriptor)
                    del self._logs[descriptor]
                    child_log.close()
            time.sleep(_PERIOD)


@cache
def _thread() -> _Thread:
    return _Thread()


def _append(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            if status.st_mode & 0o077:
                os.fchmod(descriptor, 0o600)  # created by an older version
            if status.st_size and status.st_size + len(data) > MAX_BYTES:
                _rotate(path)
                _append(path, data)
                return
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def _rotate(path: Path) -> None:
    """Rename `path` to `path`.1 and so on, and drop the oldest file."""
    names = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, NUM_FILES))]
    for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
        with suppress(FileNotFoundError):
            os.replace(newer, older)
