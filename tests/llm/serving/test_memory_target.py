"""How much memory the prefix cache may take, as a table: a machine of 1000 bytes."""

import math

import pytest

from mindspore_serving.llm.runtimes.main_memory import MainMemory
from mindspore_serving.llm.serving.memory_target import (
    CALM_SECONDS,
    CUT_SECONDS,
    MemoryTarget,
    decide,
)

NEVER = -math.inf
LIMIT = 300


@pytest.mark.parametrize(
    ("available", "stalled", "used", "target"),
    [
        (1000, 0.0, 0, 300),  # enough is left: the limit
        (500, 0.0, 300, 300),
        (150, 0.0, 100, 150),  # as much as leaves 100
        (100, 0.0, 100, 100),  # no growth
        (50, 0.0, 100, 100),
        (49, 0.0, 100, 49),  # gives back 51, so that 100 are left
        (0, 0.0, 100, 0),
        (0, 0.0, 20, 0),  # all of it, and never less than nothing
        (500, 5.0, 100, 200),  # stalled a little: not beyond the last target
        (500, 10.0, 100, 50),  # half
        (500, 99.0, 7, 3),
        (20, 50.0, 100, 20),  # the smaller of both
        (40, 50.0, 200, 100),
    ],
)
def test_target_by_the_memory_that_is_left(
    available: int, stalled: float, used: int, target: int
) -> None:
    last = MemoryTarget(300 if stalled != 5.0 else 200)
    decided = decide(last, MainMemory(1000, available, stalled), used, LIMIT, now=1000.0)
    assert decided.num_bytes == target
    is_short = available < 50 or stalled >= 10
    assert decided.is_short(1000.0) is is_short
    assert decided.short_at == (1000.0 if is_short else NEVER)


def test_a_stall_takes_half_once_in_each_interval() -> None:
    stalled = MainMemory(1000, 500, 20.0)
    state = decide(MemoryTarget(300), stalled, 200, LIMIT, now=0.0)
    assert state.num_bytes == 100
    state = decide(state, stalled, 100, LIMIT, now=CUT_SECONDS - 1)
    assert state.num_bytes == 100
    state = decide(state, stalled, 100, LIMIT, now=CUT_SECONDS)
    assert state.num_bytes == 50


def test_the_cache_grows_again_when_memory_has_not_been_short_for_a_while() -> None:
    calm = MainMemory(1000, 500, 0.0)
    state = decide(MemoryTarget(300), MainMemory(1000, 500, 20.0), 200, LIMIT, now=0.0)
    assert decide(state, calm, 40, LIMIT, now=CALM_SECONDS - 1).num_bytes == 100
    assert decide(state, calm, 40, LIMIT, now=CALM_SECONDS).num_bytes == 300


def test_memory_at_the_border_changes_nothing_back_and_forth() -> None:
    """What was given back is not taken again as soon as it is available."""
    state, used, others = MemoryTarget(300), 300, 680
    for now in range(200):
        state = decide(state, MainMemory(1000, 1000 - used - others), used, LIMIT, float(now))
        used = min(used, state.num_bytes)
        assert used == 220
        used = state.num_bytes  # requests fill what is allowed
        assert 1000 - used - others == 100
