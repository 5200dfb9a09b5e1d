"""Comparison of two servers by `bench`: each prompt is sent to both, one after the other.

The order alternates from prompt to prompt, so that other work on the machines affects both alike.
The two times of a prompt are a pair.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter, thread_time
from typing import Any

import numpy as np

from mindspore_serving.cli.bench_load import BenchOutcome, BenchRun, OnOutcome, Target, ask
from mindspore_serving.cli.bench_profiles import LoadProfile
from mindspore_serving.cli.bench_prompts import BenchPrompt

_RESAMPLES = 10_000
_MIN_PAIRS = 20  # the interval of fewer pairs is too narrow to be valid


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of B's times to A's: geometric mean of the pairs, and its 95 % interval."""

    load: str
    time: str
    ratio: float
    low: float
    high: float
    num_pairs: int

    @property
    def verdict(self) -> str:
        if self.num_pairs < _MIN_PAIRS:
            return "too few pairs"
        if self.low <= 1 <= self.high:
            return "no difference shown"
        return "B is slower" if self.low > 1 else "B is faster"


async def alternate(
    targets: Sequence[Target],
    prompts: Iterator[BenchPrompt],
    load: LoadProfile,
    on_outcome: OnOutcome,
) -> list[BenchRun]:
    """Send each of `load.count` prompts to both `targets`; outcomes of both runs have one order.

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
                on_outcome(pair[side])
            for side, run in enumerate(runs):
                run.outcomes.append(pair[side])

    wall, busy = perf_counter(), thread_time()
    await asyncio.gather(*(client() for _ in range(min(load.clients, load.count))))
    wall, busy = perf_counter() - wall, thread_time() - busy
    for run in runs:
        run.seconds = sum(outcome.ended - outcome.sent for outcome in run.outcomes) / load.clients
        run.busy = busy * run.seconds / wall
    return runs


def ratios(first: BenchRun, second: BenchRun, seed: int) -> list[Ratio]:
    """Return the ratios over the pairs that both servers answered; `seed` is of the intervals."""
    results = []
    for name, to_seconds in _TIMES.items():
        pairs = [
            (to_seconds(a), to_seconds(b))
            for a, b in zip(first.outcomes, second.outcomes, strict=True)
        ]
        logs = np.array([np.log(b / a) for a, b in pairs if a > 0 and b > 0])
        if len(logs):
            low, high = _interval(logs, seed)
            label, mean = first.label.removesuffix(", A"), float(np.exp(logs.mean()))
            results.append(Ratio(label, name, mean, low, high, num_pairs=len(logs)))
    return results


def lines(ratios: Sequence[Ratio]) -> list[str]:
    """Return the table of the ratios."""
    rows = [f"{'load':<12}{'time':<14}{'B / A':>7}  {'95 % interval':<16}{'pairs':>7}"]
    for ratio in ratios:
        interval = f"{ratio.low:.3f} to {ratio.high:.3f}"
        rows.append(
            f"{ratio.load:<12}{ratio.time:<14}{ratio.ratio:>7.3f}  {interval:<16}"
            f"{ratio.num_pairs:>7}  {ratio.verdict}"
        )
    return rows


def to_json(ratios: Sequence[Ratio]) -> list[dict[str, Any]]:
    """Return the ratios and their verdicts as JSON."""
    return [{**asdict(ratio), "verdict": ratio.verdict} for ratio in ratios]


def _interval(logs: "np.ndarray[Any, Any]", seed: int) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean (Efron 1979), as a ratio."""
    draw = np.random.default_rng(seed)
    means = [draw.choice(logs, len(logs)).mean() for _ in range(_RESAMPLES)]
    low, high = np.exp(np.percentile(means, (2.5, 97.5)))
    return float(low), float(high)


def _first_token(outcome: BenchOutcome) -> float:
    return (
        outcome.answer.times[0] - outcome.sent if outcome.answer and outcome.answer.times else 0.0
    )


def _per_token(outcome: BenchOutcome) -> float:
    if outcome.answer is None or outcome.answer.num_generated < 2 or not outcome.answer.times:
        return 0.0
    return (outcome.answer.times[-1] - outcome.answer.times[0]) / (outcome.answer.num_generated - 1)


def _whole(outcome: BenchOutcome) -> float:
    return outcome.ended - outcome.sent if outcome.answer else 0.0


_TIMES = {"first token": _first_token, "per token": _per_token, "whole answer": _whole}
