"""A call on another thread while a runtime compiles and packs a model.

The library of tokenizers holds the interpreter's lock while it reads a vocabulary, which takes most
of a second with 262,144 tokens.  Before the graph is built, that would only delay building it.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TypeVar

from mindspore_serving import loading

T = TypeVar("T")


@contextmanager
def called_while_compiling(call: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Hold a thread that runs `call` as soon as the block reports progress of loading.

    The block gets a function that waits for the result, and raises what `call` has raised.
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
