"""The charts of `bench` as a picture, drawn by matplotlib.  What is in them is in `bench_chart`."""

from importlib.util import find_spec
from math import ceil
from typing import TYPE_CHECKING

from mindspore_serving import extras
from mindspore_serving.cli.bench_chart import Chart, Rows, charts, style_of
from mindspore_serving.errors import InvalidInputs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIX = ".png"
_COLUMNS = 2
_WIDTH, _HEIGHT = 6.0, 3.6  # inches of a chart
_DOTS_PER_INCH = 150


def check(path: str) -> None:
    """Raises InvalidInputs if the picture `path` cannot be drawn here."""
    if find_spec("matplotlib") is None:
        raise InvalidInputs(
            f"--chart {path}: a PNG needs matplotlib: {extras.command('charts')}; a page with the "
            "same charts needs nothing: --chart out.html"
        )


def draw(rows: Rows, path: str) -> None:
    """A chart of each number of `rows` that has values.  Raises OSError."""
    from matplotlib.figure import Figure

    found = charts(rows)
    lines = max(1, ceil(len(found) / _COLUMNS))
    figure = Figure((_COLUMNS * _WIDTH, lines * _HEIGHT), layout="constrained")
    figure.suptitle("mindspore-serving bench")
    for place, chart in enumerate(found, 1):
        _draw(figure.add_subplot(lines, _COLUMNS, place), chart)
    figure.savefig(path, format="png", dpi=_DOTS_PER_INCH)


def _draw(axes: "Axes", chart: Chart) -> None:
    axes.set_title(chart.title)
    for number, (name, values) in enumerate(chart.series.items()):
        colour, is_dashed = style_of(chart.series, number)
        axes.plot(
            chart.loads,
            [float("nan") if value is None else value for value in values],
            "o--" if is_dashed else "o-",
            color=colour,
            label=name,
        )
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    if any(chart.series):
        axes.legend()
