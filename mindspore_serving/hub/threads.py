"""Threads for calls that block: a deadline, and parallel downloads that hold up no exit."""

from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TypeVar

NAME = "hub"  # of the threads
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

    Thread(target=run, daemon=True, name=NAME).start()
    try:
        result, error = results.get(timeout=seconds)
    except Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def run_all(calls: Sequence[Callable[[], None]], count: int, is_stopped: Event) -> None:
    """Run `calls` in at most `count` threads; raise the first error at once, as Ctrl-C.

    Then, and in the end, `is_stopped` is set: no call begins any more, and those that run look at
    it.
    """
    waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()
    results: SimpleQueue[BaseException | None] = SimpleQueue()
    for call in calls:
        waiting.put(call)

    def work() -> None:
        while not is_stopped.is_set():
            try:
                waiting.get_nowait()()
            except Empty:
                return
            except BaseException as error:
                results.put(error)
            else:
                results.put(None)

    try:
        for _ in range(min(count, len(calls))):
            Thread(target=work, daemon=True, name=NAME).start()
        for _ in calls:
            error = results.get()
            if error is not None:
                raise error
    finally:
        is_stopped.set()
