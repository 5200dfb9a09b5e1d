"""The background loop, and the ticker that fires once per turn."""

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from contextlib import suppress

import pytest

from mindspore_serving.aio import (
    BackgroundLoop,
    FunctionThread,
    Ticker,
    is_set_within,
    on_thread,
    on_thread_to_the_end,
    within,
)
from tests.waiting import PATIENCE


@pytest.fixture
def background():
    loop = BackgroundLoop()
    yield loop
    loop.close()


async def thread_name():
    return threading.current_thread().name


async def running_loop():
    return asyncio.get_running_loop()


def test_a_coroutine_runs_on_the_loop_thread(background):
    assert background.run(thread_name()) == "serving-loop"


def test_every_coroutine_runs_on_the_same_loop(background):
    assert background.run(running_loop()) is background.run(running_loop())


def test_an_error_is_raised_where_run_was_called(background):
    async def fail():
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        background.run(fail())


def test_a_timeout_is_raised_where_run_was_called(background):
    async def never():
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        background.run(never(), timeout=0.01)


def test_close_ends_the_thread_and_the_loop(background):
    others = threading.enumerate()
    loop = background.run(running_loop())
    background.close()
    assert not loop.is_running()
    assert [thread.name for thread in threading.enumerate() if thread not in others] == []


def test_a_closed_loop_is_made_anew_on_use(background):
    first = background.run(running_loop())
    background.close()
    assert background.run(running_loop()) is not first


def test_close_may_be_called_twice(background):
    background.run(thread_name())
    background.close()
    background.close()


def test_calls_from_many_threads_share_a_loop(background):
    loops = []
    threads = [
        threading.Thread(target=lambda: loops.append(background.run(running_loop())))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(loops) == 8
    assert len(set(map(id, loops))) == 1


async def test_a_ticker_armed_several_times_fires_once():
    fired = []
    ticker = Ticker(asyncio.get_running_loop(), lambda: fired.append(1))
    ticker.arm()
    ticker.arm()
    assert fired == []
    await asyncio.sleep(0)
    assert fired == [1]


async def test_a_ticker_can_be_armed_again_while_firing():
    fired = []

    def fire():
        fired.append(len(fired))
        if len(fired) < 3:
            ticker.arm()

    ticker = Ticker(asyncio.get_running_loop(), fire)
    ticker.arm()
    while len(fired) < 3:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert fired == [0, 1, 2]


async def test_a_ticker_not_armed_does_not_fire():
    fired = []
    Ticker(asyncio.get_running_loop(), lambda: fired.append(1))
    await asyncio.sleep(0)
    assert fired == []


def test_a_function_runs_on_a_thread_of_its_own(background):
    functions = FunctionThread("functions")
    assert background.run(functions.run(lambda: threading.current_thread().name)) == "functions"
    with pytest.raises(ZeroDivisionError):
        background.run(functions.run(divmod, 1, 0))
    assert background.run(functions.run(divmod, 7, 2)) == (3, 1)


def test_functions_run_when_the_main_thread_has_ended():
    program = """
import asyncio, threading
from mindspore_serving.aio import FunctionThread

functions = FunctionThread("functions")

def go_on():
    threading.main_thread().join()
    print(asyncio.run(functions.run(divmod, 7, 2)))

threading.Thread(target=go_on).start()
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE)
    assert done.stdout == b"(3, 1)\n"


@pytest.mark.parametrize("run", [on_thread, on_thread_to_the_end])
async def test_objects_of_a_function_are_freed_when_its_error_is_handled(run):
    class Held:
        """Something large."""

    kept = []

    def fail():
        held = Held()
        kept.append(weakref.ref(held))
        raise LookupError("gone")

    gc.disable()
    try:
        with suppress(LookupError):
            await run("held", fail)
        async with asyncio.timeout(PATIENCE):
            while kept[0]() is not None:  # the thread is behind its own call for a moment
                await asyncio.sleep(0.001)
    finally:
        gc.enable()


async def wait_for_ever(event):
    while True:
        await is_set_within(PATIENCE, event)
        event.clear()


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancellation_that_comes_with_the_result_is_not_swallowed(turns):
    event = asyncio.Event()
    task = asyncio.ensure_future(wait_for_ever(event))
    for _ in range(4):
        await asyncio.sleep(0)  # until it waits
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=PATIENCE)
    assert task.cancelled()


async def test_a_result_within_the_time_is_returned():
    assert await within(PATIENCE, asyncio.sleep(0, "result")) == "result"


async def test_an_awaitable_that_takes_too_long_is_cancelled():
    future = asyncio.get_running_loop().create_future()
    with pytest.raises(asyncio.TimeoutError):
        await within(0.0, future)
    assert future.cancelled()


async def test_an_awaitable_that_another_cancels_is_not_late():
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(PATIENCE, future)
