"""Tables of the benchmarks of language models: medians over rounds, and ratios within them."""

from collections.abc import Mapping, Sequence
from statistics import median

from benchmarks.llm_contenders import Contender
from benchmarks.llm_figures import verdict

Found = dict[str, dict[str, list[float]]]  # contender -> measure -> a figure for each round


def table(
    contenders: Sequence[Contender], wanted: Mapping[str, bool], found: Found
) -> list[list[str]]:
    """A row for each contender: medians, and in brackets how many times as fast ours is.

    `wanted` are the columns, by name whether more is better.
    """
    rows = []
    for each in contenders:
        ours = found.get(f"ours {each.form}", {})
        cells = [
            _cell(found[each.name][name], ours.get(name, []), is_rate)
            for name, is_rate in wanted.items()
        ]
        rows.append([each.name, *cells])
    return rows


def _cell(values: list[float], ours: list[float], is_rate: bool) -> str:
    if not values:
        return "-"
    shown = f"{median(values):,.0f}" if median(values) >= 100 else f"{median(values):.1f}"
    if values is ours or len(values) != len(ours):
        return shown
    return f"{shown} ({ratio(ours, values, is_rate):.2f})"


def ratio(ours: list[float], theirs: list[float], is_rate: bool) -> float:
    """How many times as fast ours is, the median of the pairs."""
    return median(ratios(ours, theirs, is_rate))


def ratios(ours: list[float], theirs: list[float], is_rate: bool) -> list[float]:
    """How many times as fast ours is, pair by pair."""
    pairs = zip(ours, theirs, strict=True)
    return [a / b if is_rate else b / a for a, b in pairs]


def verdicts(
    contenders: Sequence[Contender], wanted: Mapping[str, bool], found: Found
) -> list[list[str]]:
    """A row for each other engine and measure: how many times as fast ours is, and how sure."""
    rows = []
    for each in contenders:
        ours = found.get(f"ours {each.form}", {})
        for name, is_rate in wanted.items():
            theirs = found[each.name][name]
            if each.engine != "ours" and theirs and len(theirs) == len(ours.get(name, [])):
                rows.append([each.name, name, verdict(ratios(ours[name], theirs, is_rate))])
    return rows
