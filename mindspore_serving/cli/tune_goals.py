"""Goals of `tune`: limits of latencies and rates, and the number by which settings compare.  Pure.

Numbers are those of `bench_summary.summarize`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mindspore_serving.cli.bench_summary import QUANTILES, short
from mindspore_serving.errors import InvalidInputs, did_you_mean

Row: TypeAlias = Mapping[str, Any]

_LATENCIES = {"": "whole_ms", "first_": "first_token_ms", "token_": "per_token_ms"}
_RATES = {"rate": "requests_per_second", "tokens": "tokens_per_second"}
_TIMES = {
    f"{prefix}{name}": (field, name)
    for prefix, field in _LATENCIES.items()
    for name in (*(f"p{quantile}" for quantile in QUANTILES), "mean")
}
NAMES = (*_TIMES, *_RATES)
_UNITS = {"ms": 1.0, "s": 1000.0}
_LIMIT = re.compile(r"\s*([a-z_0-9]+)\s*(<=?|>=?)\s*([0-9.eE+-]+)\s*(ms|s)?\s*")
FORMS = "p99<50ms, rate>200 or first_p90<0.3s,tokens>100"


@dataclass(frozen=True, slots=True)
class Limit:
    """Highest latency in milliseconds, or lowest rate per second, of the measure `name`."""

    name: str
    value: float

    @property
    def is_latency(self) -> bool:
        return self.name in _TIMES

    def __str__(self) -> str:
        return f"{self.name}<{self.value:g}ms" if self.is_latency else f"{self.name}>{self.value:g}"

    def excess(self, row: Row) -> float:
        """Return by what factor a run misses the limit: at most 1 if it keeps it."""
        value = measure(self.name, row)
        if value is None or not self.is_latency and not value:
            return math.inf
        return value / self.value if self.is_latency else self.value / value


@dataclass(frozen=True, slots=True)
class Goal:
    """Limits that settings have to keep, and the measure `objective` that they should improve."""

    limits: tuple[Limit, ...]
    objective: str

    @property
    def is_latency(self) -> bool:
        """True if a smaller value of the objective is better."""
        return self.objective in _TIMES

    def __str__(self) -> str:
        aim = f"{'lowest' if self.is_latency else 'highest'} {self.objective}"
        return f"{aim} with {', '.join(map(str, self.limits))}" if self.limits else aim

    def excess(self, row: Row) -> float:
        """Return by what factor a run misses its worst limit: at most 1 if it keeps all.

        A run in which a request failed keeps none.
        """
        if row["errors"] or not row["answered"]:
            return math.inf
        return max((limit.excess(row) for limit in self.limits), default=0.0)

    def value(self, row: Row) -> float:
        """Return the value of the objective of a run, of which a larger one is better."""
        value = measure(self.objective, row)
        if not value:
            return 0.0
        return 1 / value if self.is_latency else value


def parse(text: str) -> tuple[Limit, ...]:
    """Parse limits that are separated by commas.  Raises InvalidInputs with the accepted forms."""
    return tuple(_limit(part, text) for part in text.split(",")) if text.strip() else ()


def to_goal(limits: Sequence[Limit], *, is_language: bool) -> Goal:
    """Return the goal: the highest rate within limits of latency, or the lowest p99 at a rate.

    Raises InvalidInputs for a measure of language models if the model is none.
    """
    for limit in limits:
        if not is_language and (limit.name == "tokens" or limit.name.startswith(("first", "tok"))):
            raise InvalidInputs(
                f"--goal has {limit.name!r}, which language models alone have; here are "
                f"{', '.join(name for name in NAMES if '_' not in name and name != 'tokens')}"
            )
    if limits and not any(limit.is_latency for limit in limits):
        return Goal(tuple(limits), "p99")
    return Goal(tuple(limits), "tokens" if is_language else "rate")


def measure(name: str, row: Row) -> float | None:
    """Return the measure `name` of a run: milliseconds, or a rate; None if the run has none."""
    if name in _RATES:
        return float(row[_RATES[name]])
    field, part = _TIMES[name]
    return float(row[field][part]) if row[field] else None


def show(name: str, value: float) -> str:
    """Format a value of the measure `name` with its unit."""
    return f"{short(value)} ms" if name in _TIMES else f"{short(value)}/s"


def _limit(part: str, text: str) -> Limit:
    match = _LIMIT.fullmatch(part)
    if match is None:
        raise InvalidInputs(f"--goal is {text!r}, expected limits as {FORMS}")
    name, sign, number, unit = match.groups()
    if name not in NAMES:
        near = did_you_mean(name, NAMES) or f"; measures are {', '.join(NAMES)}"
        raise InvalidInputs(f"--goal has {name!r}, which is not measured{near}")
    if (sign[0] == "<") != (name in _TIMES):
        word, right = ("latency", "<") if name in _TIMES else ("rate", ">")
        raise InvalidInputs(f"--goal has {part.strip()!r}: the limit of a {word} is {name}{right}")
    if (unit is not None) != (name in _TIMES):
        needed = f"needs ms or s, as {name}<50ms" if unit is None else f"has no {unit}: {name}>200"
        raise InvalidInputs(f"--goal has {part.strip()!r}: a limit of {name} {needed}")
    try:
        value = float(number) * _UNITS.get(unit or "", 1.0)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise InvalidInputs(f"--goal has {part.strip()!r}: {number} is no number over 0")
    return Limit(name, value)
