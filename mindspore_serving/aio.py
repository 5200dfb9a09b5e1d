"""One event loop in a background thread, so that the public functions can be plain functions.

Knows nothing of what runs on it.
"""

import asyncio
import atexit
import concurrent.futures
import functools
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """An event loop (uvloop where it is installed) on a daemon thread, made on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run on the loop and wait for the result.  Not to be called from the loop's thread."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._get())
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError:  # the builtin one from Python 3.11 on
            if future.done():
                raise  # the coroutine's own
            future.cancel()
            raise TimeoutError(f"no result within {timeout} s") from None
        except BaseException:
            future.cancel()  # KeyboardInterrupt, or a time-out: nobody waits any more
            raise

    def close(self) -> None:
        """End the loop and its thread."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            with suppress(concurrent.futures.TimeoutError):
                asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(5)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(5)
            if not thread.is_alive():
                loop.close()  # its descriptors

    def _get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = new_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="serving-loop", daemon=True
                )
                self._thread.start()
                atexit.register(self.close)
            return self._loop


async def _cancel_all() -> None:
    """End every other task of this loop, so that none is destroyed half-way."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=4)


def new_loop() -> asyncio.AbstractEventLoop:
    """Of uvloop, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def readable(descriptor: int) -> None:
    """Wait until `descriptor` is readable, which nobody else waits for."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)


class FunctionThread:
    """A thread that runs functions for coroutines, one after another.

    It does so also when the main thread has ended, as that of a start-up script does while its
    server runs: executors, and `asyncio.to_thread`, refuse everything then.
    """

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """What `function` returns or raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(functools.partial(_call, loop, future, function, arguments))
        try:
            return await future
        finally:
            del future  # as in `_call`

    def _run(self) -> None:
        while True:
            self._queue.get()()


@functools.cache
def _thread(name: str) -> FunctionThread:
    return FunctionThread(name)


async def on_thread(name: str, function: Callable[..., T], *arguments: Any) -> T:
    """What `function` returns or raises, run by the thread `name`, one for this process."""
    return await _thread(name).run(function, *arguments)


async def on_thread_to_the_end(name: str, function: Callable[..., T], *arguments: Any) -> T:
    """The same; but who is cancelled meanwhile goes on when the function has ended, with what it
    reads.
    """
    running = asyncio.ensure_future(on_thread(name, function, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        if not running.cancelled():
            running.exception()  # nobody wants it
        raise
    finally:
        del running  # whose error refers to this call


def _call(
    loop: asyncio.AbstractEventLoop,
    future: "asyncio.Future[T]",
    function: Callable[..., T],
    arguments: tuple[Any, ...],
) -> None:
    """Set what `function` returns or raises.  An error refers to its callers by its traceback: if
    they kept the future that has it, all that `function` held would wait for the garbage
    collector.
    """
    try:
        result = function(*arguments)
    except BaseException as error:
        _in_loop(loop, future, future.set_exception, error)
    else:
        _in_loop(loop, future, future.set_result, result)
    finally:
        del future


def _in_loop(
    loop: asyncio.AbstractEventLoop,
    future: "asyncio.Future[Any]",
    settle: Callable[[Any], None],
    outcome: Any,
) -> None:
    def done() -> None:
        if not future.done():  # cancelled
            settle(outcome)

    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(done)


class Ticker:
    """Calls `function` once at the end of this turn of the loop, however often it is armed."""

    __slots__ = ("_function", "_loop", "is_armed")

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
        self._loop = loop
        self._function = function
        self.is_armed = False  # to be asked where a call costs too much

    def arm(self) -> None:
        if not self.is_armed:
            self.is_armed = True
            self._loop.call_soon(self._fire)

    def _fire(self) -> None:
        self.is_armed = False
        self._function()
