"""Progress of a start-up on the standard output: servables that load, and those that are ready."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mindspore_serving import log
from mindspore_serving.core.service import ServableReadiness

POLL_SECONDS = 0.1
PROGRESS_SECONDS = 10.0  # interval of lines about servables that are still loading


@dataclass(slots=True)
class LoadingReport:
    """A context manager that prints when each servable has loaded, and the progress of others.

    `readiness` returns the state of all servables.
    """

    readiness: Callable[[], Sequence[ServableReadiness]]
    _began: float = field(default_factory=time.monotonic)
    _shown: float = field(default_factory=time.monotonic)  # time of the last progress lines
    _loaded: set[tuple[str, int]] = field(default_factory=set)
    _done: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> "LoadingReport":
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def _watch(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._done.wait(POLL_SECONDS)  # polls once more at the end
            self.show(self.readiness())

    def show(self, servables: Sequence[ServableReadiness]) -> None:
        """Print changes since the last call."""
        for row in servables:
            if row.is_ready and (row.name, row.version) not in self._loaded:
                self._loaded.add((row.name, row.version))
                self._print(f"{row.name}  version {row.version} loaded, {self.seconds:.1f} s")
        if time.monotonic() - self._shown >= PROGRESS_SECONDS:
            self._shown = time.monotonic()
            for row in servables:
                if row.loaded is not None:
                    self._print(f"{row.name}  {row.reason}")

    def _print(self, text: str) -> None:
        print(f"  {text}", flush=True)


def announce_ready(servables: Sequence[dict[str, Any]], seconds: float) -> None:
    """Print that a start-up is complete; `servables` are rows of `Control.describe`."""
    for servable in servables:
        if "model" in servable:
            card = servable["model"]
            announce(card["summary"])
            for line in (card["memory"], servable["sampling"]):
                if line:
                    announce(f"{servable['name']}: {line}")
    names = ", ".join(f"{servable['name']} version {servable['version']}" for servable in servables)
    announce(f"Ready after {seconds:.1f} s: {names}")


def announce(text: str) -> None:
    """Print a line for the user, and log it."""
    print(f"Serving: {text}", flush=True)
    log.info("%s", text)
