"""How busy each servable was in the last hour, in bounded memory.

It takes what `Overview.observe` says, and knows neither workers nor clients.
"""

import asyncio
import math
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SECONDS = 5.0  # between two looks
MOST_ROWS = 720  # an hour; of a servable 80 KB
MOST_SERVABLES = 64  # further ones have no history
COLUMNS = (
    *("requests.running", "requests.waiting", "requests.total", "p50_ms", "p99_ms"),
    *("engine.num_running", "engine.num_waiting", "engine.num_blocks", "engine.num_free_blocks"),
    *("engine.num_steps", "engine.num_prompt_tokens", "engine.num_generated_tokens"),
    *("engine.num_cache_queries", "engine.num_cache_hits"),
)
"""Where each number is in a row of `observe`."""

Observe = Callable[[], Sequence[Mapping[str, Any]]]


@dataclass(slots=True)
class _Past:
    """Of one servable version: when it was looked at, and the COLUMNS of each look, one after
    another; what was not said is not a number.
    """

    times: "array[float]" = field(default_factory=lambda: array("d"))
    numbers: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, now: float, row: Mapping[str, Any]) -> None:
        self.times.append(now)
        self.numbers.extend(_find(row, column) for column in COLUMNS)
        if len(self.times) > MOST_ROWS:
            del self.times[0]
            del self.numbers[: len(COLUMNS)]

    def rows(self, now: float) -> list[list[float | None]]:
        """The age of each look in seconds, and its numbers."""
        width = len(COLUMNS)
        cut = [self.numbers[at : at + width] for at in range(0, len(self.numbers), width)]
        return [
            [round(now - when, 3), *(None if math.isnan(one) else one for one in numbers)]
            for when, numbers in zip(self.times, cut, strict=True)
        ]


class History:
    """`observe` is asked every SECONDS while `follow` runs, on the event loop."""

    def __init__(self, observe: Observe) -> None:
        self._observe = observe
        self._kept: dict[tuple[str, int], _Past] = {}

    async def follow(self) -> None:
        """Look until it is cancelled."""
        while True:
            self.look(time.monotonic())
            await asyncio.sleep(SECONDS)

    def look(self, now: float) -> None:
        """Keep what is so `now`, in seconds; forget servables that are gone."""
        rows = {(row["name"], row["version"]): row for row in self._observe()}
        self._kept = {key: past for key, past in self._kept.items() if key in rows}
        for key, row in rows.items():
            if key in self._kept or len(self._kept) < MOST_SERVABLES:
                self._kept.setdefault(key, _Past()).add(now, row)

    def copy(self) -> "History":
        """As it is now, for another thread."""
        copied = History(self._observe)
        copied._kept = {
            key: _Past(past.times[:], past.numbers[:]) for key, past in self._kept.items()
        }
        return copied

    def show(self, now: float) -> dict[str, Any]:
        """All of it, for JSON: `columns` names the numbers of a row behind its age."""
        servables = [
            {"name": name, "version": version, "rows": past.rows(now)}
            for (name, version), past in self._kept.items()
        ]
        return {"seconds": SECONDS, "columns": ["age", *COLUMNS], "servables": servables}


def _find(row: Mapping[str, Any], column: str) -> float:
    part, _, name = column.rpartition(".")
    value = (row.get(part) or {} if part else row).get(name)
    return math.nan if value is None else float(value)
