"""Load of each servable during the last hour, in bounded memory.

It records the rows of `Overview.observe`, and knows neither workers nor clients.
"""

import asyncio
import math
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SECONDS = 5.0  # between two samples
MAX_ROWS = 720  # an hour, which takes 90 KB per servable
MAX_SERVABLES = 64  # further servables have no history
COLUMNS = (
    *("requests.running", "requests.waiting", "requests.total", "p50_ms", "p99_ms"),
    *("engine.num_running", "engine.num_waiting", "engine.num_blocks", "engine.num_free_blocks"),
    *("engine.num_steps", "engine.num_prompt_tokens", "engine.num_generated_tokens"),
    *("engine.num_cache_queries", "engine.num_cache_hits"),
    *("engine.num_cache_bytes", "engine.num_cache_bytes_limit"),
)
"""Paths of the recorded numbers in a row of `observe`."""

Observe = Callable[[], Sequence[Mapping[str, Any]]]


@dataclass(slots=True)
class _Samples:
    """Samples of one servable version: times, and flat rows of COLUMNS.

    Missing values are NaN.
    """

    times: "array[float]" = field(default_factory=lambda: array("d"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, now: float, row: Mapping[str, Any]) -> None:
        self.times.append(now)
        self.values.extend(_find(row, column) for column in COLUMNS)
        if len(self.times) > MAX_ROWS:
            del self.times[0]
            del self.values[: len(COLUMNS)]

    def rows(self, now: float) -> list[list[float | None]]:
        """Return the samples: the age of each in seconds, and its values."""
        width = len(COLUMNS)
        rows = [self.values[at : at + width] for at in range(0, len(self.values), width)]
        return [
            [round(now - time, 3), *(None if math.isnan(value) else value for value in values)]
            for time, values in zip(self.times, rows, strict=True)
        ]


class History:
    """History that calls `observe` every SECONDS while `follow` runs, on the event loop."""

    def __init__(self, observe: Observe) -> None:
        self._observe = observe
        self._samples: dict[tuple[str, int], _Samples] = {}

    async def follow(self) -> None:
        """Record samples until cancelled."""
        while True:
            self.sample(time.monotonic())
            await asyncio.sleep(SECONDS)

    def sample(self, now: float) -> None:
        """Record a sample at the time `now`, in seconds.

        Servables that are no longer served are dropped.
        """
        rows = {(row["name"], row["version"]): row for row in self._observe()}
        self._samples = {key: past for key, past in self._samples.items() if key in rows}
        for key, row in rows.items():
            if key in self._samples or len(self._samples) < MAX_SERVABLES:
                self._samples.setdefault(key, _Samples()).add(now, row)

    def copy(self) -> "History":
        """Return a copy for another thread."""
        copied = History(self._observe)
        copied._samples = {
            key: _Samples(samples.times[:], samples.values[:])
            for key, samples in self._samples.items()
        }
        return copied

    def show(self, now: float) -> dict[str, Any]:
        """Return the history for JSON; `columns` names the values of a row."""
        servables = [
            {"name": name, "version": version, "rows": samples.rows(now)}
            for (name, version), samples in self._samples.items()
        ]
        return {"seconds": SECONDS, "columns": ["age", *COLUMNS], "servables": servables}


def _find(row: Mapping[str, Any], column: str) -> float:
    part, _, name = column.rpartition(".")
    value = (row.get(part) or {} if part else row).get(name)
    return math.nan if value is None else float(value)
