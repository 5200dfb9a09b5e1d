"""Table of the results of `bench`, each line of which is printed as soon as it is known."""

from collections.abc import Sequence
from typing import Any

from mindspore_serving.cli.bench_summary import QUANTILES, short

_MIN_WIDTH = 5  # of a column of numbers, which are not known when the first line is printed
_LOAD_WIDTH = 11  # of the names of loads: "32 clients" and "0.52 req/s"
_STREAM_GROUPS = (("first token ms", "first_token_ms"), ("between pieces ms", "between_pieces_ms"))
_WHOLE_GROUP = ("whole answer ms", "whole_ms")


class BenchTable:
    """Columns of the table, with lines of the same widths before the numbers are known.

    `labels` are the names of the loads as far as they are known. A column of streams or of memory
    is there only if there are some.
    """

    def __init__(self, labels: Sequence[str], *, is_stream: bool, has_memory: bool = False) -> None:
        self._is_stream, self._has_memory = is_stream, has_memory
        self._groups = (*_STREAM_GROUPS * is_stream, _WHOLE_GROUP)
        self._heads = [
            *("load", "done", "failed", "req/s"),
            *["tok/s"] * is_stream,
            *["MiB"] * has_memory,
            *(f"p{q}" for _ in self._groups for q in QUANTILES),
        ]
        widths = [max(_MIN_WIDTH, len(head)) for head in self._heads]
        widths[0] = max(_LOAD_WIDTH, *map(len, labels), 0)
        for number, (title, _) in enumerate(self._groups):  # a wide title widens its first quantile
            start = len(widths) - len(QUANTILES) * (len(self._groups) - number)
            width = sum(widths[start : start + len(QUANTILES)]) + 2 * (len(QUANTILES) - 1)
            widths[start] += max(0, len(title) - width)
        self._widths = widths

    def heading(self) -> list[str]:
        """Return the titles of the quantiles, and below them the names of the columns."""
        first = len(self._widths) - len(QUANTILES) * len(self._groups)
        titles = " " * (sum(self._widths[:first]) + 2 * (first - 1))
        for number, (title, _) in enumerate(self._groups):
            group = self._widths[first + number * len(QUANTILES) :][: len(QUANTILES)]
            titles += "  " + title.rjust(sum(group) + 2 * (len(QUANTILES) - 1))
        return [titles, self._line(self._heads)]

    def line(self, row: dict[str, Any]) -> str:
        """Return the line of a run."""
        failed = row["requests"] - row["answered"]
        cells = [row["load"], str(row["answered"]), str(failed), short(row["requests_per_second"])]
        cells += [short(row["tokens_per_second"])] * self._is_stream
        memory = row.get("memory_bytes", 0) / 2**20
        cells += [short(memory) if memory else "-"] * self._has_memory
        for _, name in self._groups:
            cells += [short(row[name][f"p{q}"]) if row[name] else "-" for q in QUANTILES]
        return self._line(cells)

    def _line(self, cells: Sequence[str]) -> str:
        numbers = zip(cells[1:], self._widths[1:], strict=True)
        return "  ".join([cells[0].ljust(self._widths[0]), *(c.rjust(w) for c, w in numbers)])


class BenchReport:
    """Lines for the standard output: a table, and lines before and after it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._table: BenchTable | None = None

    def begin(self, table: BenchTable, *titles: str) -> None:
        """Print `titles` and the heading of the table, unless it has begun."""
        if self._table is None:
            self._table = table
            self.say(*titles, *table.heading())

    def add(self, row: dict[str, Any]) -> None:
        """Print the line of a run."""
        assert self._table is not None
        self.say(self._table.line(row))

    def say(self, *lines: str) -> None:
        """Print lines at once, also to a pipe."""
        self.lines += lines
        for line in lines:
            print(line, flush=True)
