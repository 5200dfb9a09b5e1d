"""How much a worker may hold, with answers computed by hand."""

import pytest

from mindspore_serving.dispatch.pacing import MOST, Pace


def paced(*answers):
    """A pace that sent work at 0 and got `answers`: (count, now)."""
    pace = Pace()
    pace.sent_first(0.0)
    for count, now in answers:
        pace.answered(count, now)
    return pace


@pytest.mark.parametrize(("batch_size", "window"), [(1, 2), (16, 32)])
def test_two_batches_while_nothing_is_known(batch_size, window):
    assert Pace().window(batch_size) == window


def test_a_slow_worker_gets_two_batches():
    assert paced((1, 1.0)).window(4) == 8


def test_a_fast_worker_gets_four_milliseconds_of_work():
    # 10 parts in 1 ms are 0.1 ms each: 40 of them are 4 ms.
    assert paced((10, 0.001)).window(1) == 40


def test_a_very_fast_worker_gets_at_most_the_limit():
    assert paced((1000, 0.001)).window(1) == MOST


def test_two_batches_may_be_more_than_the_limit():
    assert paced((1000, 0.001)).window(200) == 400


def test_the_time_per_part_is_smoothed():
    # 1 ms at first, then 6 ms: 1 + 0.2 * (6 - 1) = 2 ms, so two parts are 4 ms.
    pace = paced((1, 0.001), (1, 0.007))
    assert pace.window(1) == 2
    # 1 ms, then 0.5 ms: 0.9 ms, so four parts.
    assert paced((1, 0.001), (1, 0.0015)).window(1) == 4


def test_idle_time_does_not_count_as_work():
    pace = paced((10, 0.001))
    pace.sent_first(100.0)
    pace.answered(10, 100.0 + 0.002)  # 0.1 ms, then 0.2 ms: 0.12 ms, so 33 are 4 ms
    assert pace.window(1) == 33


def test_answers_that_take_no_time_leave_the_pace_unknown():
    assert paced((5, 0.0)).window(3) == 6
