"""`mindspore-serving bench`: ask a running server under load, and tell how fast it answered."""

import asyncio
import json
import sys
import time
from collections.abc import Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mindspore_serving import __version__
from mindspore_serving.cli import bench_load, bench_setup, bench_summary
from mindspore_serving.cli.bench_load import Outcome, Run, Target
from mindspore_serving.cli.settings import BenchSettings
from mindspore_serving.errors import InvalidInputs

_LEAST = 8  # requests of a run, if not told how many
_PER_CLIENT = 4
_SECONDS = 30  # of a rate


def run(settings: BenchSettings) -> int:
    """Print a table; 1 if a request failed.  Raises ServingError if it cannot begin."""
    bench_setup.check(settings)
    target, model = bench_setup.to_target(settings)
    rows = [bench_summary.summarize(one) for one in _run(_measure(settings, target))]
    for line in bench_summary.table(rows):
        print(line)
    for row in rows:
        for note in bench_summary.notes(row):
            print(note, file=sys.stderr)
    if settings.json:
        _write(settings.json, settings, model, rows)
    return int(any(row["errors"] for row in rows))


async def _measure(settings: BenchSettings, target: Target) -> list[Run]:
    prompts = await bench_setup.to_prompts(settings, target)
    runs = []
    for load in settings.rate or settings.concurrency:
        each = _SECONDS if settings.rate else _PER_CLIENT
        count = settings.requests or max(_LEAST, round(each * load))
        bar = _Bar(count)
        if settings.rate:
            arrivals = bench_load.poisson(load, count, settings.seed)
            label = f"{load:g} req/s"
            runs.append(await bench_load.at_times(target, prompts, arrivals, label, bar.note))
        else:
            runs.append(await bench_load.by_clients(target, prompts, int(load), count, bar.note))
        bar.clear()
    target.connections.close()
    return runs


def _run(work: Coroutine[Any, Any, list[Run]]) -> list[Run]:
    if sys.platform == "win32":
        return asyncio.run(work)
    import uvloop

    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


class _Bar:
    """How far a run is, on a terminal; nothing elsewhere."""

    WIDTH = 30
    PERIOD = 0.1  # seconds between two looks of it

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = self._failed = 0
        self._began = self._shown = time.monotonic()
        self._is_seen = sys.stderr.isatty()

    def note(self, outcome: Outcome) -> None:
        self._done += 1
        self._failed += outcome.answer is None
        now = time.monotonic()
        if self._is_seen and now > self._shown + self.PERIOD:
            self._shown = now
            filled = self.WIDTH * self._done // self._total
            bar = "#" * filled + " " * (self.WIDTH - filled)
            failed = f", {self._failed} failed" if self._failed else ""
            left = (now - self._began) * (self._total - self._done) / self._done
            text = f"[{bar}] {self._done}/{self._total}{failed}, about {left:.0f} s left"
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._is_seen:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _write(path: str, settings: BenchSettings, model: str, rows: list[dict[str, Any]]) -> None:
    asked = {name: value for name, value in asdict(settings).items() if name != "api_key"}
    found = {"version": __version__, "model": model, "settings": asked, "runs": rows}
    try:
        Path(path).write_text(json.dumps(found, indent=1) + "\n")
    except OSError as error:
        raise InvalidInputs(f"cannot write {path}: {error}") from error
