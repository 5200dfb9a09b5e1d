"""Two servers compared by `bench`: each prompt goes to both, one after the other.

Which is first changes from prompt to prompt, so whatever else the machines do meets both alike, and
the two times of a prompt are a pair.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter, thread_time
from typing import Any

import numpy as np

from mindspore_serving.cli.bench_load import BenchOutcome, BenchRun, Seen, Target, ask
from mindspore_serving.cli.bench_profiles import LoadProfile
from mindspore_serving.cli.bench_prompts import BenchPrompt

_RESAMPLES = 10_000
_FEW = 20  # pairs; the interval of fewer is too narrow to say anything


@dataclass(frozen=True, slots=True)
class Ratio:
    """How long B took of a time of A's: geometric mean of the pairs, and its 95 % interval."""

    load: str
    time: str
    ratio: float
    low: float
    high: float
    num_pairs: int

    @property
    def verdict(self) -> str:
        if self.num_pairs < _FEW:
            return "too few pairs"
        if self.low <= 1 <= self.high:
            return "no difference shown"
        return "B is slower" if self.low > 1 else "B is faster"


async def in_turns(
    targets: Sequence[Target], prompts: Iterator[BenchPrompt], load: LoadProfile, seen: Seen
) -> list[BenchRun]:
    """Each of `load.count` prompts sent to both `targets`; their runs have outcomes in one order.

    The seconds of a run are those in which clients waited for that server.
    """
    runs = [BenchRun(f"{load.label}, {name}") for name in "AB"]
    numbers = iter(range(load.count))

    async def client() -> None:
        for number in numbers:
            prompt = next(prompts)
            pair: dict[int, BenchOutcome] = {}
            for side in (number % 2, 1 - number % 2):
                pair[side] = await ask(targets[side], prompt)
                seen(pair[side])
            for side, run in enumerate(runs):
                run.outcomes.append(pair[side])

    wall, busy = perf_counter(), thread_time()
    await asyncio.gather(*(client() for _ in range(min(load.clients, load.count))))
    wall, busy = perf_counter() - wall, thread_time() - busy
    for run in runs:
        run.seconds = sum(one.ended - one.sent for one in run.outcomes) / load.clients
        run.busy = busy * run.seconds / wall
    return runs


def ratios(first: BenchRun, second: BenchRun, seed: int) -> list[Ratio]:
    """Of the pairs in which both answered; the same `seed` gives the same intervals."""
    found = []
    for name, to_seconds in _TIMES.items():
        pairs = [
            (to_seconds(a), to_seconds(b))
            for a, b in zip(first.outcomes, second.outcomes, strict=True)
        ]
        logs = np.array([np.log(b / a) for a, b in pairs if a > 0 and b > 0])
        if len(logs):
            low, high = _interval(logs, seed)
            label, mean = first.label.removesuffix(", A"), float(np.exp(logs.mean()))
            found.append(Ratio(label, name, mean, low, high, num_pairs=len(logs)))
    return found


def lines(found: Sequence[Ratio]) -> list[str]:
    """A table."""
    rows = [f"{'load':<12}{'time':<14}{'B / A':>7}  {'95 % interval':<16}{'pairs':>7}"]
    for one in found:
        interval = f"{one.low:.3f} to {one.high:.3f}"
        rows.append(
            f"{one.load:<12}{one.time:<14}{one.ratio:>7.3f}  {interval:<16}{one.num_pairs:>7}  "
            f"{one.verdict}"
        )
    return rows


def to_json(found: Sequence[Ratio]) -> list[dict[str, Any]]:
    return [{**asdict(one), "verdict": one.verdict} for one in found]


def _interval(logs: "np.ndarray[Any, Any]", seed: int) -> tuple[float, float]:
    """A percentile bootstrap of the mean."""
    draw = np.random.default_rng(seed)
    means = [draw.choice(logs, len(logs)).mean() for _ in range(_RESAMPLES)]
    low, high = np.exp(np.percentile(means, (2.5, 97.5)))
    return float(low), float(high)


def _first_token(one: BenchOutcome) -> float:
    return one.answer.times[0] - one.sent if one.answer and one.answer.times else 0.0


def _per_token(one: BenchOutcome) -> float:
    if one.answer is None or one.answer.num_generated < 2 or not one.answer.times:
        return 0.0
    return (one.answer.times[-1] - one.answer.times[0]) / (one.answer.num_generated - 1)


def _whole(one: BenchOutcome) -> float:
    return one.ended - one.sent if one.answer else 0.0


_TIMES = {"first token": _first_token, "per token": _per_token, "whole answer": _whole}
