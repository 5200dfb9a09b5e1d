"""Time limit of warming up when a runtime opens a model, after the first pass."""

import os
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from mindspore_serving.errors import StartError
from mindspore_serving.llm.progress import progress

T = TypeVar("T")

VARIABLE = "SERVING_WARM_UP_SECONDS"  # environment variable that lowers a runtime's limit


def warm_up_within(
    seconds: float, sizes: list[T], minimum: Callable[[int], int] = int, *, shows: bool = True
) -> Iterator[T]:
    """Iterate over the first of `sizes` and those that begin within `seconds` after it.

    The environment can lower `seconds`.  All ranks stop as soon as one has no time left, by
    `minimum` of their numbers.  `shows` progress unless the model is in use meanwhile.

    Raises StartError if the environment's value is not a number.
    """
    seconds, deadline = min(seconds, _limit(seconds)), None
    for size in progress(sizes, "warming up") if shows else sizes:
        if deadline is not None and not minimum(time.monotonic() <= deadline):
            return
        yield size
        deadline = deadline or time.monotonic() + seconds


def _limit(default: float) -> float:
    text = os.environ.get(VARIABLE, "")
    try:
        return float(text) if text else default
    except ValueError:
        raise StartError(f"{VARIABLE} is {text!r}, expected seconds: 0, or 0.5") from None
