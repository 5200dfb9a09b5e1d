"""How much a worker may hold, with answers computed by hand."""

import pytest

from mindspore_serving.core.service import Reply
from mindspore_serving.master.pacing import MAX_WINDOW, Pace, Window
from mindspore_serving.master.request import PendingPart


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
    assert paced((1000, 0.001)).window(1) == MAX_WINDOW


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


# --- the window of one worker -------------------------------------------------------------------


def parts(*ids):
    """Parts as a link numbered them."""
    return [PendingPart(None, 0, "ms_json", (b"{}",), id=number) for number in ids]


def last(*some):
    return [(part, Reply([b"y"])) for part in some]


def test_room_is_the_window_less_the_parts_in_flight():
    window = Window(max_messages=2)
    assert window.room(4) == 8
    window.sent(parts(1, 2, 3), 0.0)
    assert (window.num_in_flight, window.room(4)) == (3, 5)


def test_a_message_counts_until_all_its_parts_are_answered():
    window = Window(max_messages=2)
    first, second = parts(1, 2), parts(5, 6)  # other ways use the link, too: ids have gaps
    window.sent(first, 0.0)
    assert window.room(4) > 0
    window.sent(second, 0.0)
    assert window.room(4) == 0
    window.answered(last(first[0], second[1]), 1.0)
    assert window.room(4) == 0
    window.answered(last(second[0]), 2.0)
    assert window.room(4) == 7
    window.answered(last(first[1]), 3.0)
    assert (window.num_in_flight, window.room(4)) == (0, 8)


def test_an_answer_before_the_last_changes_nothing():
    window = Window(max_messages=1)
    (part,) = parts(1)
    window.sent([part], 0.0)
    window.answered([(part, Reply([b"y"], is_last=False))], 1.0)
    assert (window.num_in_flight, window.room(1)) == (1, 0)
    window.answered(last(part), 1.0)
    assert (window.num_in_flight, window.room(1)) == (0, 2)


def test_a_window_grows_with_the_pace_of_answers():
    window = Window(max_messages=2)
    some = parts(*range(1, 11))
    window.sent(some, 0.0)
    window.answered(last(*some[:5]), 0.0005)  # 0.1 ms each: 40 are 4 ms, and 5 are held
    assert window.room(1) == 35


def test_the_pace_is_measured_from_sending_to_an_idle_worker():
    window = Window(max_messages=2)
    first, second = parts(1), parts(2)
    window.sent(first, 0.0)
    window.answered(last(*first), 2**-13)  # seconds: 32.8 of them are 4 ms
    assert window.room(1) == 32
    window.sent(second, 100.0)
    window.answered(last(*second), 100.0 + 2**-13)
    assert window.room(1) == 32
