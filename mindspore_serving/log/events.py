"""Lines of requests, of which there may be thousands in a second: a thread writes them, so that who
serves requests waits for no file and no pipe.
"""

import atexit
import logging
import threading
from collections.abc import Mapping
from queue import SimpleQueue
from types import FrameType

MOST = 10_000  # lines that wait to be written; further ones are left out
_FLUSH_SECONDS = 2.0  # at the end of the process


class EventWriter:
    """Writes to the handlers of `logger`, whatever its level."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._queue: SimpleQueue[logging.LogRecord | None] = SimpleQueue()
        self._num_lost = 0
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()
        atexit.register(self._flush)

    def write(self, name: str, fields: Mapping[str, object], frame: FrameType) -> None:
        """From any thread: a line with these fields, which `frame` asks for."""
        if self._queue.qsize() >= MOST:
            self._num_lost += 1
            return
        place = frame.f_code.co_filename, frame.f_lineno
        record = logging.LogRecord(
            f"{self._logger.name}.event", logging.INFO, *place, name, None, None
        )
        record.fields = fields
        self._queue.put(record)

    def _run(self) -> None:
        while (record := self._queue.get()) is not None:
            if self._num_lost:
                lost, self._num_lost = self._num_lost, 0
                self._logger.warning("%d lines of requests were left out: they came too fast", lost)
            for handler in self._logger.handlers:
                if record.levelno >= handler.level:
                    handler.handle(record)

    def _flush(self) -> None:
        self._queue.put(None)
        self._thread.join(_FLUSH_SECONDS)
