"""Progress of work that takes seconds: a bar, none if stderr is no terminal, and work beside it."""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
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


@contextmanager
def called_while_compiling(call: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Hold a thread that runs `call` as soon as the block reports progress of loading.

    The library of tokenizers holds the interpreter's lock while it reads a vocabulary, which takes
    most of a second with 262,144 tokens.  Before the graph is built, that would only delay building
    it; compiling needs no lock.  The block gets a function that waits for the result, and raises
    what `call` has raised.
    """
    begin = Event()

    def wait_and_call() -> T:
        begin.wait()
        return call()

    def start(*_: object) -> None:
        begin.set()

    with ThreadPoolExecutor(1, "beside") as pool, loading.reported_to(start):
        future = pool.submit(wait_and_call)

        def result() -> T:
            begin.set()
            return future.result()

        try:
            yield result
        finally:
            begin.set()
