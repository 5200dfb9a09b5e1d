"""Progress bar for work that takes seconds; none if stderr is no terminal."""

import sys
from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

from mindspore_serving import loading

T = TypeVar("T")


def progress(items: Collection[T], label: str) -> Iterator[T]:
    """Iterate over `items`, showing how many are done.

    While a servable is loaded, they count as the second half of the loading.
    """
    return _reported(_shown(items, label), len(items))


def _shown(items: Collection[T], label: str) -> Iterable[T]:
    if not sys.stderr.isatty():
        return items
    from tqdm import tqdm

    bar: Iterable[T] = tqdm(items, desc=label)
    return bar


def _reported(items: Iterable[T], count: int) -> Iterator[T]:
    for number, item in enumerate(items):
        loading.reached(0.5 + 0.5 * number / count)
        yield item
