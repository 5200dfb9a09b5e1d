"""What child processes of a library print about why they end, while it is still written to our
standard error.
"""

import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

_ERROR = re.compile(rb"\b([A-Z]\w*(?:Error|Exception): .+)")
_KEPT = 20


class LastErrors:
    """Copies what is printed, and keeps lines that name an error."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT)
        self._reader, self.writer = os.pipe()
        self._target = os.dup(2)
        threading.Thread(target=self._copy, name="errors", daemon=True).start()

    def lines(self) -> list[str]:
        """The first that was printed is nearest to the cause."""
        return list(self._lines)

    def _copy(self) -> None:
        """Until the last process that has our end is gone."""
        rest = b""
        while data := os.read(self._reader, 1 << 16):
            os.write(self._target, data)
            *whole, rest = (rest + data)[-(1 << 18) :].split(b"\n")
            found = [match[1] for line in whole if (match := _ERROR.search(line))]
            self._lines.extend(one.decode(errors="replace")[:500] for one in found)
        os.close(self._reader)
        os.close(self._target)


@contextmanager
def last_errors() -> Iterator[LastErrors]:
    """Processes that are started inside print through a `LastErrors`, also afterwards."""
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
