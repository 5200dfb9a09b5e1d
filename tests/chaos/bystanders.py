"""Requests beside a fault: one servable is asked again and again, and must not be held up."""

import http.client
import json
import threading
import time
from contextlib import suppress

from tests.chaos.server import Server
from tests.waiting import PATIENCE

_PAUSE = 0.05  # seconds between two requests
_REQUESTS = {
    "good": ("/model/good:double", {"instances": [{"x": 21}]}),
    "toy": ("/model/toy:double", {"instances": [{"x": 21}]}),
    "tiny": ("/v1/completions", {"prompt": "The sea is", "max_tokens": 2, "temperature": 0}),
}


class Bystander:
    """Asks from its start to `stop`, over one connection, in a thread.

    Attributes:
        longest: seconds that the longest request took, also of one that is not answered yet.
    """

    def __init__(self, server: Server, servable: str) -> None:
        self._server = server
        self.servable = servable
        self._asked_at = 0.0  # of the request under way; 0.0 between two
        self._longest = 0.0
        self._wrong: list[str] = []
        self._refused: list[str] = []
        self._lost = 0
        self._stopped = threading.Event()
        self._connection = http.client.HTTPConnection("127.0.0.1", server.http, timeout=PATIENCE)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def longest(self) -> float:
        under_way = time.monotonic() - self._asked_at if self._asked_at else 0.0
        return max(self._longest, under_way)

    def stop(self) -> None:
        """Harmless if called again."""
        if self._stopped.is_set():
            return
        self._longest = self.longest
        self._stopped.set()
        stream = self._connection.sock
        if self._asked_at and stream is not None:
            with suppress(OSError):
                stream.shutdown(2)
        self._thread.join(5)

    def problems(self, bound: float, *, may_end: bool) -> list[str]:
        """What was wrong; a server that `may_end` meanwhile may refuse, or not answer."""
        wrong = self._wrong if may_end else self._wrong + self._refused
        found = [f"{self.servable} beside it: {text}" for text in wrong[:1]]
        if self._longest > bound and not may_end:
            found.append(f"{self.servable} beside it was held up for {self._longest:.1f} s")
        if self._lost and not may_end:
            found.append(f"{self.servable} beside it was not answered {self._lost} times")
        return found

    def _run(self) -> None:
        while not self._stopped.wait(_PAUSE):
            began = self._asked_at = time.monotonic()
            try:
                self._ask()
            except (OSError, http.client.HTTPException):
                self._connection.close()
                self._lost += not self._stopped.is_set()
            self._asked_at = 0.0
            if not self._stopped.is_set():
                self._longest = max(self._longest, time.monotonic() - began)
        self._connection.close()

    def _ask(self) -> None:
        path, body = _REQUESTS[self.servable]
        self._connection.request("POST", path, json.dumps(body), self._server.headers)
        reply = self._connection.getresponse()
        text = reply.read()
        if reply.status != 200 and not self._stopped.is_set():
            found = self._refused if reply.status == 503 else self._wrong
            found.append(f"{reply.status} {text[:200]!r}")
