"""Results of `bench` as an HTML page: SVG charts, and the table.  Pure.

The page is one file without scripts, fonts or links, so it can be mailed and kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, log10
from typing import Any, TypeAlias

from mindspore_serving.cli.bench_summary import QUANTILES, short

Rows: TypeAlias = Sequence[dict[str, Any]]
Series: TypeAlias = dict[str, list[float | None]]  # values by load, for each line of a chart

_WIDTH, _HEIGHT = 420, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 404, 12, 200  # where the axes end
_TICKS = 5  # max number above 0
_COLOURS = ("#0072b2", "#d55e00", "#009e73")
_DASHES = ' stroke-dasharray="5 4"'

_LATENCIES = {
    "Time to the first token, ms": "first_token_ms",
    "Time between pieces, ms": "between_pieces_ms",
    "Time of a whole answer, ms": "whole_ms",
}
_RATES = {
    "Generated tokens per second": "tokens_per_second",
    "Answers per second": "requests_per_second",
}
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 14px system-ui, sans-serif; margin: 1.5rem; }}
main {{ display: flex; flex-wrap: wrap; gap: 1.5rem; }}
figure {{ margin: 0; width: min(28rem, 100%); }}
figcaption {{ font-weight: 600; }}
svg {{ width: 100%; font-size: 11px; fill: currentColor; }}
ul {{ list-style: none; display: flex; flex-wrap: wrap; gap: 1rem; margin: 0; padding: 0; }}
pre {{ overflow-x: auto; }}
line {{ stroke: currentColor; opacity: 0.2; }}
g {{ fill: none; stroke-width: 2; }}
circle {{ stroke-dasharray: none; pointer-events: all; }}
</style>
<h1>{title}</h1>
<main>
{figures}
</main>
<pre>{report}</pre>
</html>
"""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over the same loads.

    When two servers are compared, names of lines of server B begin with "B".
    """

    title: str
    loads: Sequence[str]
    series: Series

    @property
    def highest(self) -> float:
        return max((value or 0.0 for values in self.series.values() for value in values), default=0)


def charts(rows: Rows) -> list[Chart]:
    """Return the charts of the `rows` of runs that have a value over 0.

    When two servers are compared, rows are of A and of B in turn.
    """
    is_comparison = any(row["load"].endswith(", B") for row in rows)
    servers = {"A ": rows[::2], "B ": rows[1::2]} if is_comparison else {"": rows}
    loads = [row["load"].removesuffix(", A") for row in rows if not row["load"].endswith(", B")]
    all_charts = [
        *(Chart(title, loads, _quantiles(servers, name)) for title, name in _LATENCIES.items()),
        *(Chart(title, loads, _values(servers, name)) for title, name in _RATES.items()),
    ]
    return [chart for chart in all_charts if chart.highest]


def page(rows: Rows, report: Sequence[str]) -> str:
    """Return the HTML page with `charts` of the `rows`, and the lines that `bench` prints."""
    figures = "\n".join(map(_figure, charts(rows)))
    return document("mindspore-serving bench", figures, report)


def document(title: str, figures: str, report: Sequence[str]) -> str:
    """Return an HTML page of figures, and of lines of text below them."""
    return _PAGE.format(title=title, figures=figures, report=escape("\n".join(report)))


def figure(title: str, marks: Sequence[str], legend: str = "") -> str:
    """Return a figure with a caption, SVG elements, and a list of signs below."""
    return "\n".join(
        [
            f"<figure><figcaption>{escape(title)}</figcaption>",
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
            *marks,
            f"</svg><ul>{legend}</ul></figure>",
        ]
    )


def axes(width: float, height: float) -> list[str]:
    """Return a grid for values up to `height`, and the numbers of an axis up to `width`."""
    marks = []
    step = _step(height)
    for number in range(int(height / step) + 1):
        marks += _tick(number * step, height)
    step = _step(width)
    for number in range(int(width / step) + 1):
        x, _ = position(number * step / width, 0)
        marks.append(
            f'<text x="{x:.1f}" y="{_BOTTOM + 16}" text-anchor="middle">{number * step:g}</text>'
        )
    return marks


def position(x: float, y: float) -> tuple[float, float]:
    """Return the position of a point whose coordinates are shares of the axes."""
    return _LEFT + (_RIGHT - _LEFT) * x, _y(y, 1.0)


def style_of(series: Series, number: int) -> tuple[str, bool]:
    """Return the colour of a line, the same for A and B, and whether it is dashed, as for B."""
    names = list(series)
    num_of_a = sum(not _is_of_b(name) for name in names)
    return _COLOURS[number % num_of_a], _is_of_b(names[number])


def _quantiles(servers: dict[str, Rows], name: str) -> Series:
    return {
        f"{server}p{quantile}": [row[name][f"p{quantile}"] if row[name] else None for row in rows]
        for server, rows in servers.items()
        for quantile in QUANTILES
    }


def _values(servers: dict[str, Rows], name: str) -> Series:
    return {server.strip(): [row[name] for row in rows] for server, rows in servers.items()}


def _figure(chart: Chart) -> str:
    """Return a chart, whose axis has a position for each load."""
    title, loads, series = chart.title, chart.loads, chart.series
    step = _step(chart.highest)
    top = step * ceil(chart.highest / step)
    marks = [*_grid(step, top), *_names(loads)]
    legend = ""
    for number, (name, values) in enumerate(series.items()):
        colour, is_dashed = style_of(series, number)
        texts = [_text(name, load, value) for load, value in zip(loads, values, strict=True)]
        marks += _line(values, texts, top, f'stroke="{colour}"' + _DASHES * is_dashed)
        if name:
            sign = "&#9633;" if is_dashed else "&#9632;"
            legend += f'<li><span style="color: {colour}">{sign}</span> {escape(name)}</li>'
    return figure(title, marks, legend)


def _is_of_b(name: str) -> bool:
    return name.startswith("B")


def _text(name: str, load: str, value: float | None) -> str:
    return f"{name} {load}: {short(value or 0)}".strip()


def _step(highest: float) -> float:
    """Return the distance of two ticks: 1, 2 or 5 times a power of ten."""
    power: float = 10 ** (ceil(log10(highest / _TICKS)) - 1)
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit * _TICKS >= highest)


def _grid(step: float, top: float) -> list[str]:
    return [mark for n in range(round(top / step) + 1) for mark in _tick(n * step, top)]


def _tick(value: float, top: float) -> list[str]:
    y = _y(value, top)
    return [
        f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
        f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>',
    ]


def _names(loads: Sequence[str]) -> list[str]:
    """Return the names of the loads below the axis; more than four alternate between two lines."""
    lower = 14 * (len(loads) > 4)
    return [
        f'<text x="{_x(index, len(loads)):.1f}" y="{_BOTTOM + 16 + lower * (index % 2)}" '
        f'text-anchor="middle">{escape(load)}</text>'
        for index, load in enumerate(loads)
    ]


def _line(
    values: Sequence[float | None], texts: Sequence[str], top: float, stroke: str
) -> list[str]:
    """Return a line through the values that are not None, with a dot and its text for each."""
    points = [
        (f"{_x(index, len(values)):.1f}", f"{_y(value, top):.1f}", texts[index])
        for index, value in enumerate(values)
        if value is not None
    ]
    line = " ".join(f"{x},{y}" for x, y, _ in points)
    dots = [
        f'<circle cx="{x}" cy="{y}" r="3.5"><title>{escape(text)}</title></circle>'
        for x, y, text in points
    ]
    return [f'<g {stroke}><polyline points="{line}"/>', *dots, "</g>"]


def _x(index: int, count: int) -> float:
    return _LEFT + (_RIGHT - _LEFT) * (index + 0.5) / count


def _y(value: float, top: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * value / top
