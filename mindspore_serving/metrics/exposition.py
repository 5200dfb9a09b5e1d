"""Metrics in Prometheus' text format.

A line takes a microsecond: a page is made on the event loop, where prometheus_client would need
twenty times as long.
"""

import re
from collections.abc import Iterator, Sequence

from mindspore_serving.metrics import process
from mindspore_serving.metrics.catalog import CATALOG, Metric
from mindspore_serving.metrics.histogram import Histogram

_ESCAPED = {"\\": r"\\", "\n": r"\n", '"': r"\""}
_TO_ESCAPE = re.compile(r'[\\\n"]')


class Page:
    """Gathers samples of the metrics of the catalog, or of other ones."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}  # of each metric

    def add(self, metric: str | Metric, value: "float | Histogram", *labels: str) -> None:
        """A sample of `metric`, or of the one in the catalog that has this name."""
        described = CATALOG[metric] if isinstance(metric, str) else metric
        name, lines = described.name, self._lines.get(described.name)
        if lines is None:
            lines = self._lines[name] = [
                f"# HELP {name} {described.help}\n# TYPE {name} {described.kind}\n"
            ]
        pairs = [
            f'{label}="{_escape(value)}"'
            for label, value in zip(described.labels, labels, strict=True)
        ]
        if isinstance(value, Histogram):
            lines += _histogram(name, ",".join(pairs), value, described.bounds)
        else:
            braces = f"{{{','.join(pairs)}}}" if pairs else ""
            lines.append(f"{name}{braces} {float(value)}\n")

    def add_process(self) -> None:
        """What this process uses."""
        used = process.usage()
        self.add("process_cpu_seconds_total", used.cpu_seconds)
        self.add("process_resident_memory_bytes", used.resident_bytes)
        self.add("process_virtual_memory_bytes", process.virtual_bytes())
        self.add("process_open_fds", used.num_open_files)
        self.add("process_max_fds", process.most_open_files())
        self.add("process_start_time_seconds", process.start_time())

    def render(self) -> bytes:
        return "".join(line for lines in self._lines.values() for line in lines).encode()


def _histogram(name: str, labels: str, found: Histogram, bounds: Sequence[float]) -> Iterator[str]:
    start = f'{name}_bucket{{{labels},le="' if labels else f'{name}_bucket{{le="'
    counts = found.cumulative(bounds)
    for bound, count in counts:
        yield f'{start}{bound}"}} {count}\n'
    braces = f"{{{labels}}}" if labels else ""
    yield f"{name}_count{braces} {counts[-1][1]}\n"
    yield f"{name}_sum{braces} {found.total}\n"


def _escape(value: str) -> str:
    return _TO_ESCAPE.sub(lambda match: _ESCAPED[match[0]], value)
