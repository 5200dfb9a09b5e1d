"""How much work Python code is, in steps of its interpreter: the same on every machine."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(run: Callable[[], object]) -> int:
    """The instructions that `run` takes, without those of functions written in C."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    (lambda: None)()  # Python 3.12 traces no instructions before some frame has asked for them
    sys.settrace(trace)
    count = 0
    try:
        run()
    finally:
        sys.settrace(before)
    assert count, "nothing was traced"
    return count


def growth(make: Callable[[int], Callable[[], object]], size: int) -> float:
    """How many times the work is done for four times `size`: 4 if each part is looked at once."""
    return steps(make(4 * size)) / steps(make(size))
