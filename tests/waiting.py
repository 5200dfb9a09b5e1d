"""Waiting on conditions. No test says how long something may take: PATIENCE only ends a hang."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 180.0  # seconds, whatever else runs on the machine
LONGEST_PAUSE = 0.02  # seconds: what is waited for may last no longer

T = TypeVar("T")


def eventually(condition: Callable[[], T], seconds: float = PATIENCE, what: str = "") -> T:
    """The first true value of `condition`, which is asked again and again, ever less often."""
    end, pause = time.monotonic() + seconds, 0.005
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {what or condition}"
        time.sleep(pause)  # between two looks, which take time from what is waited for
        pause = min(pause * 1.2, LONGEST_PAUSE)
    return value


async def until(condition: Callable[[], T], what: str = "") -> T:
    """The same on a running loop, which goes on meanwhile."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {PATIENCE} s: {what or condition}"
        await asyncio.sleep(0.001)
    return value
