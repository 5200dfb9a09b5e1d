"""How long a runtime warms up when it opens a model, after the first pass."""

import os
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from mindspore_serving.errors import StartError
from mindspore_serving.llm.progress import progress

T = TypeVar("T")

VARIABLE = "SERVING_WARM_UP_SECONDS"  # of the environment: less than a runtime takes by itself


def within(seconds: float, sizes: list[T], least: Callable[[int], int] = int) -> Iterator[T]:
    """The first of `sizes` to warm up, and those that begin within `seconds` after it, or as many
    as the environment says if these are less; as long as all ranks have the time, by `least` of
    their numbers.  Raises StartError if the environment says no number.
    """
    seconds, deadline = min(seconds, _given(seconds)), None
    for size in progress(sizes, "warming up"):
        if deadline is not None and not least(time.monotonic() <= deadline):
            return
        yield size
        deadline = deadline or time.monotonic() + seconds


def _given(default: float) -> float:
    text = os.environ.get(VARIABLE, "")
    try:
        return float(text) if text else default
    except ValueError:
        raise StartError(f"{VARIABLE} is {text!r}, expected seconds: 0, or 0.5") from None
