"""How a benchmark speaks: an aligned table for people, one JSON line last for programs."""

import json
import os
import platform
from collections.abc import Iterable, Sequence


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """The first column to the left, the others to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join([line[0].ljust(widths[0]), *cells]))


def print_json(benchmark: str, **found: object) -> None:
    """One line with what was found, and on what."""
    machine = {"cpus": os.cpu_count(), "python": platform.python_version()}
    print(json.dumps({"benchmark": benchmark, **machine, **found}), flush=True)
