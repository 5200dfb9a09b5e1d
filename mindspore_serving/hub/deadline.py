"""A deadline for calls that have none, such as a look-up of a host's address."""

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of `call`, which runs in a thread, or raise its error.

    Raises TimeoutError after `seconds`; the thread then goes on, and holds up no exit.
    """
    results: SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = SimpleQueue()

    def run() -> None:
        try:
            results.put((call(), None))
        except BaseException as error:
            results.put((None, error))

    Thread(target=run, daemon=True).start()
    try:
        result, error = results.get(timeout=seconds)
    except Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
