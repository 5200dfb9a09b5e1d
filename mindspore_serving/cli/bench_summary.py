"""The numbers of a run of `bench`, as JSON and as a table.  Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mindspore_serving.cli.bench_load import BenchOutcome, BenchRun

QUANTILES = (50, 90, 99)
Numbers = dict[str, float]


def summarize(run: BenchRun) -> dict[str, Any]:
    """Times in milliseconds, rates per second over the whole run; latencies of those answered.

    first_token_ms     from when a request was due to the first piece of its answer
    between_pieces_ms  between two pieces of an answer, all of them together
    per_token_ms       of each answer: from the first piece to the last, by its other tokens
    whole_ms           from when a request was due to the end of its answer
    """
    answered = [(one, one.answer) for one in run.outcomes if one.answer is not None]
    streams = [(one, answer) for one, answer in answered if answer.times]
    generated = sum(answer.num_generated for _, answer in answered)
    prompted = sum(answer.num_prompt for _, answer in answered)
    gaps = np.concatenate([np.diff(answer.times) for _, answer in streams]) if streams else []
    longer = [answer for _, answer in streams if answer.num_generated > 1]
    return {
        "load": run.label,
        "requests": len(run.outcomes),
        "answered": len(answered),
        "errors": dict(Counter(one.failure[0] for one in run.outcomes if one.answer is None)),
        "error_examples": _examples(run.outcomes),
        "seconds": run.seconds,
        "requests_per_second": len(answered) / run.seconds,
        "tokens_per_second": generated / run.seconds,
        "prompt_tokens_per_second": prompted / run.seconds,
        "generated_tokens": generated,
        "prompt_tokens": prompted,
        "cached_tokens": sum(answer.num_cached for _, answer in answered),
        "first_token_ms": _numbers([answer.times[0] - one.due for one, answer in streams]),
        "between_pieces_ms": _numbers(gaps),
        "per_token_ms": _numbers(
            [(one.times[-1] - one.times[0]) / (one.num_generated - 1) for one in longer]
        ),
        "whole_ms": _numbers([one.ended - one.due for one, _ in answered]),
        "late_ms": _numbers([one.sent - one.due for one in run.outcomes]),
        "client_busy": run.busy / run.seconds,
    }


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines with the columns aligned; those of streams only if there are some."""
    is_stream = any(row["first_token_ms"] for row in rows)
    groups = [("first token ms", "first_token_ms"), ("between pieces ms", "between_pieces_ms")]
    groups = [*groups * is_stream, ("whole answer ms", "whole_ms")]
    has_memory = any("memory_bytes" in row for row in rows)
    heads = ["load", "done", "failed", "req/s", *["tok/s"] * is_stream, *["MiB"] * has_memory]
    cells = [[*heads, *(f"p{q}" for _ in groups for q in QUANTILES)]]
    for row in rows:
        failed = row["requests"] - row["answered"]
        line = [row["load"], str(row["answered"]), str(failed), short(row["requests_per_second"])]
        line += [short(row["tokens_per_second"])] * is_stream
        memory = row.get("memory_bytes", 0) / 2**20
        line += [short(memory) if memory else "-"] * has_memory
        for _, name in groups:
            line += [short(row[name][f"p{q}"]) if row[name] else "-" for q in QUANTILES]
        cells.append(line)
    titles = [title for title, _ in groups]
    widths = _widths(cells, titles)
    return [_heading(widths, titles), *_lines(cells, widths)]


def notes(row: dict[str, Any]) -> list[str]:
    """Remarks on a run beyond its numbers."""
    found = []
    for kind, count in sorted(row["errors"].items()):
        found.append(f"{row['load']}: {count} x {kind}: {row['error_examples'][kind]}")
    if row["cached_tokens"] > 0.1 * row["prompt_tokens"]:
        share = row["cached_tokens"] / row["prompt_tokens"]
        found.append(
            f"{row['load']}: {share:.0%} of the prompts' tokens were in the server's cache "
            "(the same --seed sends the same prompts again)"
        )
    if row["client_busy"] > 0.8 and row["seconds"] > 1:  # a shorter run is all beginning
        found.append(
            f"{row['load']}: this client was busy for {row['client_busy']:.0%} of the time; "
            "the server may be faster than it could see"
        )
    if row["late_ms"] and row["late_ms"]["p99"] > 20:
        found.append(
            f"{row['load']}: requests were sent late, p99 {row['late_ms']['p99']:.0f} ms; "
            "this machine has too much to do"
        )
    return found


def short(value: float) -> str:
    """About three digits."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _examples(outcomes: Sequence[BenchOutcome]) -> dict[str, str]:
    """A text of each kind of failure."""
    found: dict[str, str] = {}
    for one in outcomes:
        if one.answer is None:
            kind, text = one.failure
            found.setdefault(kind, " ".join(text.split())[:200])
    return found


def _numbers(seconds: "Sequence[float] | np.ndarray[Any, Any]") -> Numbers | None:
    """Mean and quantiles in milliseconds, None of nothing."""
    if len(seconds) == 0:
        return None
    values = 1e3 * np.asarray(seconds, np.float64)
    found = {f"p{q}": float(np.percentile(values, q)) for q in QUANTILES}
    return {"mean": float(values.mean()), **found, "max": float(values.max())}


def _widths(cells: Sequence[Sequence[str]], titles: Sequence[str]) -> list[int]:
    """Of each column; a title that is longer than its quantiles widens the first of them."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, title in enumerate(titles):
        at = len(widths) - len(QUANTILES) * (len(titles) - number)
        missing = len(title) - sum(widths[at : at + len(QUANTILES)]) - 2 * (len(QUANTILES) - 1)
        widths[at] += max(0, missing)
    return widths


def _heading(widths: Sequence[int], titles: Sequence[str]) -> str:
    """The line above the names of the columns: each title over the end of its quantiles."""
    first = len(widths) - len(QUANTILES) * len(titles)
    spaces = " " * (sum(widths[:first]) + 2 * (first - 1))
    for number, title in enumerate(titles):
        group = widths[first + number * len(QUANTILES) :][: len(QUANTILES)]
        spaces += "  " + title.rjust(sum(group) + 2 * (len(QUANTILES) - 1))
    return spaces


def _lines(cells: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    return [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
