"""Charts of `bench` as a PNG drawn by matplotlib; `bench_chart` has their content."""

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
    """Raise InvalidInputs if matplotlib is missing, which draws the picture `path`."""
    if find_spec("matplotlib") is None:
        raise InvalidInputs(
            f"--chart {path}: a PNG needs matplotlib, install it with {extras.command('charts')}; "
            "an HTML page needs no library: --chart out.html"
        )


def draw(rows: Rows, path: str) -> None:
    """Draw a chart of each number of `rows` that has values.  Raises OSError."""
    from matplotlib.figure import Figure

    drawn = charts(rows)
    lines = max(1, ceil(len(drawn) / _COLUMNS))
    figure = Figure((_COLUMNS * _WIDTH, lines * _HEIGHT), layout="constrained")
    figure.suptitle("mindspore-serving bench")
    for position, chart in enumerate(drawn, 1):
        _draw(figure.add_subplot(lines, _COLUMNS, position), chart)
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
