"""Figures from the times of a reply of runners.driving.  Plain arithmetic."""

import random
from collections.abc import Sequence
from itertools import pairwise
from statistics import mean, median
from typing import Any

Reply = dict[str, Any]
LEAST_PAIRS = 5  # for a verdict


def step_ms(reply: Reply, streams: int) -> float:
    """Milliseconds from one step to the next, median of those in which every stream got a token."""
    steps = reply["steps"]
    full = [
        end - before
        for (before, earlier), (end, tokens) in pairwise(steps)
        if tokens == earlier == streams
    ]
    if not full:
        raise RuntimeError(f"no two steps in a row had a token for each of {streams} streams")
    return 1000 * median(full)


def processor_ms(reply: Reply, streams: int) -> float:
    """Milliseconds of the processor of such steps, median."""
    pairs = zip(pairwise(reply["steps"]), pairwise(reply["spent"]), strict=True)
    return 1000 * median(
        end - before
        for ((_, earlier), (_, tokens)), (before, end) in pairs
        if tokens == earlier == streams
    )


def glue_share(reply: Reply, streams: int) -> float:
    """Of the steps in which every stream got a token, the share that was not in the model."""
    steps = reply["steps"]
    spans = [
        (end - before, inside)
        for (before, earlier), (end, tokens), inside in zip(
            steps, steps[1:], reply["computing"][1:], strict=False
        )
        if tokens == earlier == streams
    ]
    return 1 - sum(inside for _, inside in spans) / sum(span for span, _ in spans)


def prompt_rate(reply: Reply) -> float:
    """Prompt tokens per second until the last first token."""
    turns = [turn for talk in reply["turns"] for turn in talk]
    tokens: float = sum(turn[0] for turn in turns)
    return tokens / max(turn[2] for turn in turns)


def token_rate(reply: Reply) -> float:
    """Tokens of answers per second, from the first arrival to the last token."""
    end, _ = reply["steps"][-1]
    tokens: float = sum(tokens for _, tokens in reply["steps"])
    return tokens / end


def latencies(reply: Reply, answers: Sequence[int]) -> dict[str, float]:
    """Seconds: to the first token, and per token after it, of single-turn requests whose answers
    have so many tokens; `request` is the average from arrival to the last token."""
    firsts, rests, wholes = [], [], []
    for (turn,), tokens in zip(reply["turns"], answers, strict=True):
        _, begun, first, last = turn
        firsts.append(first - begun)
        wholes.append(last - begun)
        if tokens > 1:
            rests.append((last - first) / (tokens - 1))
    return {
        "first_p50": median(firsts),
        "first_p99": percentile(firsts, 99),
        "token_p50": median(rests),
        "token_p99": percentile(rests, 99),
        "request": mean(wholes),
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """95 % of the medians of samples like this one."""
    chance = random.Random(0)
    medians = sorted(median(chance.choices(ratios, k=len(ratios))) for _ in range(1000))
    return medians[25], medians[974]


def verdict(ratios: Sequence[float]) -> str:
    """What `ratios` of ours over another show; nothing, if their interval has 1 in it."""
    low, high = interval(ratios)
    said = "faster" if low > 1 else "slower" if high < 1 else "not shown"
    if len(ratios) < LEAST_PAIRS:
        said = "not shown"
    return f"{median(ratios):.2f}, {low:.2f} to {high:.2f}: {said}"
