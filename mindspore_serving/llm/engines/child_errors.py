"""Error lines that child processes of a library print, which still reach our standard error.

They tell why the processes end.
"""

import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

_ERROR = re.compile(rb"\b([A-Z]\w*(?:Error|Exception): .+)")
_MAX_LINES = 20


class LastErrors:
    """Copies a stream to standard error, and keeps the last lines that name an error."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._reader, self.writer = os.pipe()
        self._target = os.dup(2)
        threading.Thread(target=self._copy, name="errors", daemon=True).start()

    def lines(self) -> list[str]:
        """Return the lines in order: the first is nearest to the cause."""
        return list(self._lines)

    def _copy(self) -> None:
        """Copy until the last process that writes to the pipe has ended."""
        rest = b""
        while data := os.read(self._reader, 1 << 16):
            os.write(self._target, data)
            *lines, rest = (rest + data)[-(1 << 18) :].split(b"\n")
            errors = [match[1] for line in lines if (match := _ERROR.search(line))]
            self._lines.extend(error.decode(errors="replace")[:500] for error in errors)
        os.close(self._reader)
        os.close(self._target)


@contextmanager
def last_errors() -> Iterator[LastErrors]:
    """Redirect the output of processes that are started inside, for as long as they run."""
    errors, ours = LastErrors(), [os.dup(1), os.dup(2)]
    for descriptor in (1, 2):
        os.dup2(errors.writer, descriptor)
    os.close(errors.writer)
    try:
        yield errors
    finally:
        for descriptor, copy in zip((1, 2), ours, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)
