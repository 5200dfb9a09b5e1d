"""What a start-up shows on the standard output while servables load, and when they are ready."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mindspore_serving import log
from mindspore_serving.core.service import ServableReadiness

LOOK_SECONDS = 0.1  # between two looks
SHARE_SECONDS = 10.0  # between two lines about what still loads


@dataclass(slots=True)
class Loading:
    """While it is entered, says when each servable has loaded, and from time to time how far the
    others are.  `look` gives all of them.
    """

    look: Callable[[], Sequence[ServableReadiness]]
    _began: float = field(default_factory=time.monotonic)
    _shown: float = field(default_factory=time.monotonic)  # when shares were
    _loaded: set[tuple[str, int]] = field(default_factory=set)
    _done: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> "Loading":
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began

    def _watch(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._done.wait(LOOK_SECONDS)  # one more look at the end
            self.show(self.look())

    def show(self, found: Sequence[ServableReadiness]) -> None:
        """Say what is new in `found`."""
        for one in found:
            if one.is_ready and (one.name, one.version) not in self._loaded:
                self._loaded.add((one.name, one.version))
                self._say(f"{one.name}  version {one.version} loaded, {self.seconds:.1f} s")
        if time.monotonic() - self._shown >= SHARE_SECONDS:
            self._shown = time.monotonic()
            for one in found:
                if one.loaded is not None:
                    self._say(f"{one.name}  {one.reason}")

    def _say(self, text: str) -> None:
        print(f"  {text}", flush=True)


def say_ready(servables: Sequence[dict[str, Any]], seconds: float) -> None:
    """`servables` as `core.service.Control.describe`."""
    for servable in servables:
        if "summary" in servable:
            say(servable["summary"])
    names = ", ".join(f"{one['name']} version {one['version']}" for one in servables)
    say(f"Ready after {seconds:.1f} s: {names}")


def say(text: str) -> None:
    """A line for people, at once."""
    print(f"Serving: {text}", flush=True)
    log.info("%s", text)
