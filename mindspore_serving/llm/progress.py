"""A progress bar for work that takes seconds; nothing where stderr is no terminal."""

import sys
from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

from mindspore_serving import loading

T = TypeVar("T")


def progress(items: Collection[T], label: str) -> Iterator[T]:
    """Yield `items`, showing how many are done.  While a servable is loaded, they are the second
    half of that.
    """
    return _reported(_shown(items, label), len(items))


def _shown(items: Collection[T], label: str) -> Iterable[T]:
    if not sys.stderr.isatty():
        return items
    from tqdm import tqdm

    found: Iterable[T] = tqdm(items, desc=label)
    return found


def _reported(items: Iterable[T], count: int) -> Iterator[T]:
    for number, item in enumerate(items):
        loading.reached(0.5 + 0.5 * number / count)
        yield item
