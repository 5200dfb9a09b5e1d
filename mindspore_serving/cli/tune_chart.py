"""Picture of the frontier of latency and rate: text, SVG in an HTML page, or PNG.

All but the PNG is pure; matplotlib draws that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from string import ascii_uppercase

from mindspore_serving.cli import bench_chart
from mindspore_serving.cli.bench_summary import short

_COLUMNS, _LINES = 64, 16  # of the text
_OTHER = "."  # sign of points that are not on the frontier


@dataclass(frozen=True, slots=True)
class Dot:
    """Point of the chart; `letter` is "" for one that is not on the frontier."""

    latency: float
    rate: float
    letter: str
    text: str


@dataclass(frozen=True, slots=True)
class FrontierChart:
    """Chart of dots, with the names of its axes."""

    dots: Sequence[Dot]
    latency_name: str
    rate_name: str

    @property
    def size(self) -> tuple[float, float]:
        return (
            max((dot.latency for dot in self.dots), default=0.0) or 1.0,
            max((dot.rate for dot in self.dots), default=0.0) or 1.0,
        )

    @property
    def steps(self) -> list[Dot]:
        """Dots of the frontier by rising latency."""
        return sorted((dot for dot in self.dots if dot.letter), key=lambda dot: dot.latency)


def letters(count: int) -> list[str]:
    """Return a sign for each point of a frontier: A to Z, then a to z, then 9."""
    signs = ascii_uppercase + ascii_uppercase.lower()
    return [signs[n] if n < len(signs) else "9" for n in range(count)]


def lines(chart: FrontierChart) -> list[str]:
    """Return the chart as text: latency to the right, rate upwards."""
    width, height = chart.size
    cells = [[" "] * _COLUMNS for _ in range(_LINES)]
    for dot in sorted(chart.dots, key=lambda dot: bool(dot.letter)):
        column = round(dot.latency / width * (_COLUMNS - 1))
        line = round(dot.rate / height * (_LINES - 1))
        cells[_LINES - 1 - line][column] = dot.letter or _OTHER
    labels = [short(height), *[""] * (_LINES - 2), "0"]
    margin = max(map(len, labels))
    rows = [
        f"{label.rjust(margin)} |{''.join(row)}".rstrip()
        for label, row in zip(labels, cells, strict=True)
    ]
    end = short(width)
    foot = f"{' ' * margin} 0{chart.latency_name.center(_COLUMNS - len(end) - 1)}{end}"
    return [chart.rate_name, *rows, f"{' ' * margin} +{'-' * _COLUMNS}", foot]


def page(chart: FrontierChart, report: Sequence[str]) -> str:
    """Return an HTML page with the chart as SVG, and the lines that `tune` prints."""
    width, height = chart.size
    caption = f"{chart.rate_name} over {chart.latency_name}"
    marks = bench_chart.axes(width, height)
    path = [_position(dot, width, height) for dot in chart.steps]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in path)
    marks.append(f'<g stroke="#0072b2"><polyline points="{line}"/></g>')
    for dot in chart.dots:
        x, y = _position(dot, width, height)
        colour = "#0072b2" if dot.letter else "#999999"
        marks.append(
            f'<g stroke="{colour}"><circle cx="{x:.1f}" cy="{y:.1f}" r="3.5">'
            f"<title>{escape(dot.text)}</title></circle></g>"
        )
        if dot.letter:
            marks.append(f'<text x="{x + 6:.1f}" y="{y - 6:.1f}">{dot.letter}</text>')
    return bench_chart.document(
        "mindspore-serving tune", bench_chart.figure(caption, marks), report
    )


def draw(chart: FrontierChart, path: str) -> None:
    """Draw the chart as PNG.  Raises OSError."""
    from matplotlib.figure import Figure

    figure = Figure((8.0, 5.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title("mindspore-serving tune")
    axes.set_xlabel(chart.latency_name)
    axes.set_ylabel(chart.rate_name)
    axes.plot(
        [dot.latency for dot in chart.dots], [dot.rate for dot in chart.dots], "o", color="#999999"
    )
    steps = chart.steps
    axes.plot([dot.latency for dot in steps], [dot.rate for dot in steps], "o-", color="#0072b2")
    for dot in steps:
        axes.annotate(dot.letter, (dot.latency, dot.rate), (4, 4), textcoords="offset points")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    figure.savefig(path, format="png", dpi=150)


def _position(dot: Dot, width: float, height: float) -> tuple[float, float]:
    return bench_chart.position(dot.latency / width, dot.rate / height)
