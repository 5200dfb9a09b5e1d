"""Writer of lines about requests, of which there may be thousands per second.

A thread writes them, so that requests wait for no file and no pipe.
"""

import atexit
import logging
import threading
from collections.abc import Mapping
from queue import SimpleQueue
from types import FrameType

MAX_QUEUED = 10_000  # lines; further lines are dropped
_FLUSH_SECONDS = 2.0  # at the end of the process


class EventWriter:
    """Writer to the handlers of `logger`, whatever its level."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._queue: SimpleQueue[logging.LogRecord | None] = SimpleQueue()
        self._num_lost = 0
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()
        atexit.register(self._flush)

    def write(self, name: str, fields: Mapping[str, object], frame: FrameType) -> None:
        """Queue a line with these fields, from the caller's `frame`; from any thread."""
        if self._queue.qsize() >= MAX_QUEUED:
            self._num_lost += 1
            return
        location = frame.f_code.co_filename, frame.f_lineno
        record = logging.LogRecord(
            f"{self._logger.name}.event", logging.INFO, *location, name, None, None
        )
        record.fields = fields
        self._queue.put(record)

    def _run(self) -> None:
        while (record := self._queue.get()) is not None:
            if self._num_lost:
                lost, self._num_lost = self._num_lost, 0
                self._logger.warning(
                    "%d log lines about requests were dropped: there are too many", lost
                )
            for handler in self._logger.handlers:
                if record.levelno >= handler.level:
                    handler.handle(record)

    def _flush(self) -> None:
        self._queue.put(None)
        self._thread.join(_FLUSH_SECONDS)
