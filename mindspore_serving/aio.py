"""Event loop in a background thread, for public functions that are not coroutines.

Also helpers for coroutines that need a thread. It does not know what runs on them.
"""

import asyncio
import atexit
import concurrent.futures
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """Event loop (uvloop if it is installed) on a daemon thread, created on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result; not from the loop's thread."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._get())
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError:  # the builtin TimeoutError since Python 3.11
            if future.done():
                raise  # raised by the coroutine
            future.cancel()
            raise TimeoutError(f"no result within {timeout} s") from None
        except BaseException:
            future.cancel()  # KeyboardInterrupt, or a timeout: nobody waits for the result
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
        """Run a coroutine on the loop; return its result to the loop of the caller.

        Cancelling the result cancels the coroutine.
        """
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._get()))

    def close(self) -> None:
        """Stop the loop and its thread."""
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
    """Cancel all other tasks of this loop and wait, so that none is destroyed while it runs."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=4)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop, of uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def readable(descriptor: int) -> None:
    """Wait until `descriptor` is readable; there must be no other reader of it."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)


async def within(seconds: float | None, awaitable: Awaitable[T]) -> T:
    """Return the result of `awaitable`; cancel it and raise asyncio.TimeoutError after `seconds`.

    Unlike `asyncio.wait_for` before Python 3.12 this never swallows a cancellation that arrives
    together with the result: a task that loops would survive it, and whoever awaits its end would
    wait for ever.
    """
    task, is_late = asyncio.ensure_future(awaitable), False
    try:
        await asyncio.wait((task,), timeout=seconds)
    finally:
        if not task.done():
            is_late = task.cancel()
            await asyncio.wait((task,))
    if is_late and task.cancelled():
        raise asyncio.TimeoutError
    return task.result()


async def is_set_within(seconds: float, event: asyncio.Event) -> bool:
    """Wait until `event` is set, for at most `seconds`; return whether it is."""
    with suppress(asyncio.TimeoutError):
        await within(seconds, event.wait())
    return event.is_set()


class FunctionThread:
    """Thread that runs functions for coroutines, one after another.

    It also runs after the main thread has ended, as that of a start-up script does while its server
    runs; executors and `asyncio.to_thread` refuse work then.
    """

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run `function` on the thread; return its result or raise its error."""
        future = self.submit(function, *arguments)
        try:
            return await future
        finally:
            del future  # as in `_call`

    def submit(self, function: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        """Let `function` run on the thread, after what was submitted before."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(functools.partial(_call, loop, future, function, arguments))
        return future

    def _run(self) -> None:
        while True:
            self._queue.get()()


@functools.cache
def function_thread(name: str) -> FunctionThread:
    """Return the thread `name` of this process."""
    return FunctionThread(name)


async def on_thread(name: str, function: Callable[..., T], *arguments: Any) -> T:
    """Run `function` on the thread `name` of this process; return its result or raise its error."""
    return await function_thread(name).run(function, *arguments)


async def on_thread_to_the_end(name: str, function: Callable[..., T], *arguments: Any) -> T:
    """Run `function` as `on_thread` does; if cancelled, wait for its end first.

    Data that it reads stays in use until then.
    """
    running = asyncio.ensure_future(on_thread(name, function, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        if not running.cancelled():
            running.exception()  # retrieved, so that asyncio does not log it
        raise
    finally:
        del running  # its error refers to this frame


def _call(
    loop: asyncio.AbstractEventLoop,
    future: "asyncio.Future[T]",
    function: Callable[..., T],
    arguments: tuple[Any, ...],
) -> None:
    """Set the result or error of `function`.

    An error refers to its callers by its traceback. If a caller kept the future with the error, all
    objects of `function` would be freed by the garbage collector only.
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
    """Call of `function` at the end of this turn of the loop, once however often it is armed."""

    __slots__ = ("_function", "_loop", "is_armed")

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
        self._loop = loop
        self._function = function
        self.is_armed = False  # checked first where the cost of a call matters

    def arm(self) -> None:
        if not self.is_armed:
            self.is_armed = True
            self._loop.call_soon(self._fire)

    def _fire(self) -> None:
        self.is_armed = False
        self._function()
