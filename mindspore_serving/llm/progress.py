"""A bar on stderr for work that takes seconds, where stderr is a terminal; else nothing."""

import sys
from collections.abc import Collection, Iterator
from typing import TypeVar

T = TypeVar("T")
WIDTH = 30


def progress(items: Collection[T], label: str) -> Iterator[T]:
    """Yield `items`, showing how many are done."""
    if not sys.stderr.isatty():
        yield from items
        return
    done = 0
    try:
        for item in items:
            _show(label, done, len(items))
            yield item
            done += 1
    finally:  # also where whoever takes them stops before the end
        _show(label, done, len(items))
        sys.stderr.write("\n")


def _show(label: str, done: int, total: int) -> None:
    filled = WIDTH * done // max(total, 1)
    bar = "#" * filled + " " * (WIDTH - filled)
    sys.stderr.write(f"\r{label} [{bar}] {done}/{total}")
    sys.stderr.flush()
