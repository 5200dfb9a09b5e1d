"""Servers that `tune` measures, and the runs of its load on them.

It decides nothing: which settings are measured, and for how long, is in `tune_search`.
"""

import itertools
import math
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvloop

from mindspore_serving.cli import bench_load, tune_report
from mindspore_serving.cli.bench_client import Connections
from mindspore_serving.cli.bench_load import BenchRun, Target
from mindspore_serving.cli.child_server import child_server
from mindspore_serving.cli.endpoint import to_endpoint
from mindspore_serving.cli.settings import Access
from mindspore_serving.cli.tune_load import MAX_CLIENTS, TuneLoad, refused
from mindspore_serving.errors import StartError


@contextmanager
def served(content: dict[str, Any], limit: float | None = None) -> Iterator[str]:
    """Run a server with a configuration for the block; yield its URL when it is ready.

    Raises StartError if it is not ready within `limit` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="mindspore-serving-tune-") as directory:
        path = os.path.join(directory, "server.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(tune_report.to_yaml(content))
        with child_server(["--config", path]) as server:
            timer = threading.Timer(limit or 0, server.terminate)
            timer.daemon = True  # Ctrl-C may come before `try`
            if limit is not None:
                timer.start()
            try:
                server.wait_until_ready()
            except StartError as error:
                late = limit is not None and not timer.is_alive()
                text = f"it was not ready within {limit:.0f} s" if late else str(error)
                raise StartError(text) from None
            finally:
                timer.cancel()
            yield server.url


class Measurement:
    """Runs of a load on servers, one at a time; rounds have numbers, and prompts of their own."""

    def __init__(
        self, load: TuneLoad, loads: Sequence[int], seconds: float, timeout: float
    ) -> None:
        """Take numbers of clients, the length of a run and the timeout of a request."""
        self._load, self._loads = load, loads
        self._seconds, self._timeout = seconds, timeout
        self._numbers = itertools.count(1)

    def check(self, url: str) -> None:
        """Send one request.  Raises ServingError if it fails."""
        (run,) = self._measure([url], [1], 0.0, 0)[0].values()
        if (outcome := run.outcomes[0]).answer is None:
            raise refused(self._load, outcome.failure)

    def warm_up(self, url: str) -> dict[int, BenchRun]:
        """Run the load once, with prompts that no round has."""
        return self._measure([url], self._loads, self._seconds, -next(self._numbers))[0]

    def round(self, urls: list[str]) -> list[dict[int, BenchRun]]:
        """Run each load on all servers in turn, with the same requests; which is first changes."""
        return self._measure(urls, self._loads, self._seconds, next(self._numbers))

    def _measure(
        self, urls: list[str], loads: Sequence[int], seconds: float, number: int
    ) -> list[dict[int, BenchRun]]:
        return uvloop.run(self._runs(urls, loads, seconds, number))

    async def _runs(
        self, urls: list[str], loads: Sequence[int], seconds: float, number: int
    ) -> list[dict[int, BenchRun]]:
        runs: list[dict[int, BenchRun]] = [{} for _ in urls]
        for position, clients in enumerate(loads):
            for turn in range(len(urls)):
                side = (turn + number + position) % len(urls)
                runs[side][clients] = await self._run(urls[side], clients, seconds, number)
        return runs

    async def _run(self, url: str, clients: int, seconds: float, number: int) -> BenchRun:
        connections = Connections(to_endpoint(url, Access()))
        number = MAX_CLIENTS * number + clients  # of the run
        target = Target(connections, self._load.dialect(number), self._timeout)
        prompts = self._load.prompts(number)
        try:
            return await bench_load.by_clients(
                target, prompts, clients, math.inf, lambda _: None, seconds=seconds
            )
        finally:
            connections.close()
