"""Results of a run of `bench` as JSON, and remarks on them.  Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mindspore_serving.cli.bench_load import BenchOutcome, BenchRun

QUANTILES = (50, 90, 99)
Numbers = dict[str, float]


def summarize(run: BenchRun) -> dict[str, Any]:
    """Return the results of a run: times in milliseconds, rates per second over the run.

    Latencies are those of answered requests:
      first_token_ms     from when a request was due to the first chunk of its answer
      between_pieces_ms  between two chunks of an answer, over all answers
      per_token_ms       of each answer: from the first chunk to the last, per token after the first
      whole_ms           from when a request was due to the end of its answer
    """
    answered = [(outcome, outcome.answer) for outcome in run.outcomes if outcome.answer is not None]
    streams = [(outcome, answer) for outcome, answer in answered if answer.times]
    generated = sum(answer.num_generated for _, answer in answered)
    prompted = sum(answer.num_prompt for _, answer in answered)
    gaps = np.concatenate([np.diff(answer.times) for _, answer in streams]) if streams else []
    longer = [answer for _, answer in streams if answer.num_generated > 1]
    return {
        "load": run.label,
        "requests": len(run.outcomes),
        "answered": len(answered),
        "errors": dict(
            Counter(outcome.failure[0] for outcome in run.outcomes if outcome.answer is None)
        ),
        "error_examples": _examples(run.outcomes),
        "seconds": run.seconds,
        "requests_per_second": len(answered) / run.seconds,
        "tokens_per_second": generated / run.seconds,
        "prompt_tokens_per_second": prompted / run.seconds,
        "generated_tokens": generated,
        "prompt_tokens": prompted,
        "cached_tokens": sum(answer.num_cached for _, answer in answered),
        "first_token_ms": _numbers([answer.times[0] - outcome.due for outcome, answer in streams]),
        "between_pieces_ms": _numbers(gaps),
        "per_token_ms": _numbers(
            [(answer.times[-1] - answer.times[0]) / (answer.num_generated - 1) for answer in longer]
        ),
        "whole_ms": _numbers([outcome.ended - outcome.due for outcome, _ in answered]),
        "late_ms": _numbers([outcome.sent - outcome.due for outcome in run.outcomes]),
        "client_busy": run.busy / run.seconds,
    }


def notes(row: dict[str, Any]) -> list[str]:
    """Return remarks on a run beyond its numbers."""
    remarks = []
    for kind, count in sorted(row["errors"].items()):
        remarks.append(f"{row['load']}: {count} x {kind}: {row['error_examples'][kind]}")
    if row["cached_tokens"] > 0.1 * row["prompt_tokens"]:
        share = row["cached_tokens"] / row["prompt_tokens"]
        remarks.append(
            f"{row['load']}: {share:.0%} of the prompts' tokens were in the server's cache "
            "(the same --seed sends the same prompts again)"
        )
    if row["client_busy"] > 0.8 and row["seconds"] > 1:  # a shorter run is mostly warm-up
        remarks.append(
            f"{row['load']}: this client was busy for {row['client_busy']:.0%} of the time; "
            "the server may be faster than it could see"
        )
    if row["late_ms"] and row["late_ms"]["p99"] > 20:
        remarks.append(
            f"{row['load']}: requests were sent late, p99 {row['late_ms']['p99']:.0f} ms; "
            "this machine is overloaded"
        )
    return remarks


def short(value: float) -> str:
    """Format a number with about three digits."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _examples(outcomes: Sequence[BenchOutcome]) -> dict[str, str]:
    """Return an example text for each kind of failure."""
    examples: dict[str, str] = {}
    for outcome in outcomes:
        if outcome.answer is None:
            kind, text = outcome.failure
            examples.setdefault(kind, " ".join(text.split())[:200])
    return examples


def _numbers(seconds: "Sequence[float] | np.ndarray[Any, Any]") -> Numbers | None:
    """Return mean, quantiles and maximum in milliseconds; None if there are no values."""
    if len(seconds) == 0:
        return None
    values = 1e3 * np.asarray(seconds, np.float64)
    quantiles = {f"p{q}": float(np.percentile(values, q)) for q in QUANTILES}
    return {"mean": float(values.mean()), **quantiles, "max": float(values.max())}
