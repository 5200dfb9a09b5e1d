"""A progress bar for work that takes seconds; nothing where stderr is no terminal."""

from collections.abc import Collection, Iterator
from typing import TypeVar

T = TypeVar("T")


def progress(items: Collection[T], label: str) -> Iterator[T]:
    """Yield `items`, showing how many are done."""
    from tqdm import tqdm

    return iter(tqdm(items, desc=label, disable=None))
