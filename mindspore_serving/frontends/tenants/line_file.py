"""File of lines that is written beside the event loop, bounded in memory and on disk."""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from mindspore_serving import log
from mindspore_serving.aio import on_thread

MAX_QUEUED = 8 << 20  # bytes of lines that are not written yet
MAX_FILE = 64 << 20  # bytes, at which a file becomes FILE.1
NUM_OLD = 3  # files that are kept beside it

Write = Callable[[Sequence[bytes]], None]


class LineQueue:
    """Queue of lines that `write` gets on a thread; those that find no room are dropped."""

    def __init__(self, name: str, write: Write, max_queued: int = MAX_QUEUED) -> None:
        self._name = name
        self._write = write
        self._max_queued = max_queued
        self._lines: list[bytes] = []
        self._size = 0
        self._task: asyncio.Task[None] | None = None
        self.num_dropped = 0

    def put(self, line: bytes) -> None:
        """Queue a line; it never waits."""
        if self._size + len(line) > self._max_queued:
            self.num_dropped += 1
            return
        self._lines.append(line)
        self._size += len(line)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        is_failing = False
        while self._lines:
            lines, self._lines = self._lines, []
            try:
                await on_thread(self._name, self._write, lines)
                is_failing = False
            except Exception as error:  # of the disk or the network; requests go on
                self.num_dropped += len(lines)
                if not is_failing:
                    log.error("the %s log cannot be written: %s", self._name, error)
                is_failing = True
            self._size -= sum(map(len, lines))
        self._task = None

    async def close(self, seconds: float) -> None:
        """Wait until all lines are written, or `seconds` have passed."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=seconds)


class RotatedFile:
    """File to which lines are appended; only its owner may read it."""

    def __init__(self, path: str, max_size: int = MAX_FILE) -> None:
        """Open the file.  Raises OSError."""
        self._path = Path(path)
        self._max_size = max_size
        self.write(())

    def write(self, lines: Sequence[bytes]) -> None:
        """Append `lines`.  Raises OSError."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "ab") as file:
            file.write(b"".join(lines))
            is_full = file.tell() >= self._max_size
        if is_full:
            for number in range(NUM_OLD - 1, -1, -1):
                name = f"{self._path}.{number}" if number else str(self._path)
                if os.path.exists(name):
                    os.replace(name, f"{self._path}.{number + 1}")
