"""What is refused because it would be answered too late, by a clock that only counts here."""

import pytest

from mindspore_serving.dispatch.admission import (
    STAYING_SHARED,
    Admission,
    DrainRate,
    Patience,
    SharedRate,
)
from mindspore_serving.errors import Overloaded


def drained(rate, seconds, start=100.0):
    """A queue that `rate` requests per second left for `seconds`, and is not empty; and now."""
    queue, now = DrainRate(), start
    queue.fill(now)
    for _ in range(int(rate * seconds)):
        now += 1 / rate
        queue.drain(1, now, is_empty=False)
    return queue, now


# --- the queue ----------------------------------------------------------------------------------


def test_how_long_a_request_waits_is_known_from_those_before_it():
    queue, now = drained(rate=50, seconds=4)
    assert queue.wait(100, now) == pytest.approx(2.0, rel=0.05)


def test_a_worker_that_stands_still_makes_the_wait_longer():
    queue, now = drained(rate=50, seconds=4)
    assert queue.wait(100, now + 4.0) > 3.0


def test_nothing_is_known_of_a_queue_that_nobody_has_left():
    queue = DrainRate()
    queue.fill(1.0)
    assert queue.wait(100, 2.0) == 0.0


def test_a_queue_is_standing_when_it_was_not_empty_for_a_while():
    queue = DrainRate()
    queue.fill(1.0)
    assert not queue.is_standing(1.05)
    assert queue.is_standing(1.2)
    queue.drain(5, 1.3, is_empty=True)
    queue.fill(1.31)
    assert not queue.is_standing(1.35)


# --- patience -----------------------------------------------------------------------------------


def test_the_patience_of_clients_is_not_known_before_some_have_left():
    patience = Patience()
    for _ in range(4):
        patience.left(3.0, 10.0)
    assert patience.seconds(10.0) is None
    patience.left(3.0, 10.0)
    assert patience.seconds(10.0) == pytest.approx(3.0, rel=0.1)


def test_few_that_leave_early_among_many_that_stay_do_not_matter():
    patience = Patience()
    for number in range(1000):
        if number % 20:
            patience.stayed(2.0, 10.0)
        else:
            patience.left(0.1, 10.0)
    for _ in range(100):
        patience.left(8.0, 10.0)
    assert patience.seconds(10.0) == pytest.approx(8.0, rel=0.1)


def test_those_that_were_refused_at_once_say_nothing_of_patience():
    patience = Patience()
    for _ in range(10):
        patience.left(3.0, 10.0)
    for _ in range(10_000):
        patience.stayed(0.0, 10.0)
    patience.left(3.0, 10.0)
    assert patience.seconds(10.0) == pytest.approx(3.0, rel=0.1)


def test_clients_that_leave_at_once_make_nobody_else_impatient():
    patience = Patience()
    for _ in range(100):
        patience.left(0.01, 10.0)
    assert patience.seconds(10.0) == 1.0


def test_without_clients_that_leave_patience_is_thought_to_be_longer_and_longer():
    patience = Patience()
    for _ in range(10):
        patience.left(3.0, 10.0)
    assert patience.seconds(70.0) == pytest.approx(6.0, rel=0.1)
    assert patience.seconds(10.0 + 60 * 20) is not None
    assert patience.seconds(10.0 + 60 * 20) is None  # longer than any that matters


# --- batched methods ----------------------------------------------------------------------------


@pytest.fixture
def overloaded():
    """An admission whose queue is left by 50 requests per second, each then taking 0.2 s; now."""
    admission = Admission()
    admission.queue, now = drained(rate=50, seconds=4)
    admission.ran(0.2)
    return admission, now


def test_what_can_be_answered_in_time_is_taken(overloaded):
    admission, now = overloaded
    admission.check(100, 3.0, now)  # 2 s, and 0.2


def test_what_would_be_late_is_refused_with_the_time_to_come_again(overloaded):
    admission, now = overloaded
    with pytest.raises(Overloaded, match="it would wait for 4") as caught:
        admission.check(200, 3.0, now)
    assert caught.value.retry_after == pytest.approx(4.0 - (0.9 * 3.0 - 0.2), abs=0.3)


def test_without_a_deadline_everything_is_taken_while_clients_are_patient(overloaded):
    admission, now = overloaded
    admission.check(100_000, None, now)
    assert admission.num_to_shed(100_000, now) == 0
    assert not admission.is_late(now - 1000, None, now)


def test_clients_that_leave_are_a_deadline_for_all(overloaded):
    admission, now = overloaded
    for _ in range(10):
        admission.patience.left(3.0, now)
    admission.check(50, None, now)
    with pytest.raises(Overloaded):
        admission.check(100, None, now)
    assert admission.num_to_shed(50, now) == 0
    assert admission.num_to_shed(500, now) == pytest.approx(400, abs=30)
    assert admission.is_late(now - 2.95, None, now)
    assert not admission.is_late(now - 2.0, None, now)


def test_what_waits_is_late_when_it_cannot_be_run_before_its_deadline(overloaded):
    admission, now = overloaded
    assert admission.is_late(now - 1, now + 0.1, now)
    assert not admission.is_late(now - 1, now + 0.3, now)


def test_a_burst_is_never_refused():
    admission = Admission()
    admission.queue.fill(10.0)
    admission.queue.drain(1, 10.05, is_empty=False)
    admission.check(100_000, 0.1, 10.06)
    assert not admission.is_late(1.0, 2.0, 10.06)


# --- streamed methods ---------------------------------------------------------------------------


def test_requests_that_are_computed_together_take_as_long_as_there_are_many():
    rate = SharedRate()
    for _ in range(50):
        rate.ended(1.6, 32)
    assert rate.sojourn(32) == pytest.approx(1.6)
    assert rate.sojourn(320) == pytest.approx(16.0)


def test_few_open_requests_say_nothing_of_many():
    rate = SharedRate()
    rate.ended(1.0, 1)
    assert rate.sojourn(2) == pytest.approx(2.0)
    assert rate.sojourn(3) == 0.0


def test_quick_answers_to_few_do_not_make_the_share_of_many_longer():
    rate = SharedRate()
    for _ in range(50):
        rate.ended(1.6, 32)
    for _ in range(10):
        rate.ended(0.5, 1)
    assert rate.sojourn(32) == pytest.approx(1.6)


def test_what_was_late_makes_the_share_longer_and_what_left_early_does_not():
    rate = SharedRate()
    for _ in range(50):
        rate.ended(1.6, 32)
    rate.ended(0.1, 32, is_late=True)
    assert rate.sojourn(32) == pytest.approx(1.6)
    rate.ended(3.0, 32, is_late=True)
    assert rate.sojourn(32) > 1.6


def test_one_more_that_would_be_late_is_refused_and_few_never_are():
    admission = Admission()
    for _ in range(50):
        admission.shared.ended(1.6, 32)
    admission.check_shared(40, 3.0, 10.0)
    with pytest.raises(Overloaded, match=r"it would take 5\.0 s") as caught:
        admission.check_shared(100, 3.0, 10.0)
    assert caught.value.retry_after == pytest.approx(5.0 - 0.75 * 3.0)
    admission.check_shared(100, None, 10.0)
    admission.check_shared(4, 0.01, 10.0)
    with pytest.raises(Overloaded):
        admission.check_shared(5, 0.01, 10.0)


def shared_with_clients(num_left: int, num_stayed: int) -> Admission:
    admission = Admission(STAYING_SHARED)
    for _ in range(50):
        admission.shared.ended(1.6, 32)
    for _ in range(num_left):
        admission.patience.left(3.0, 10.0)
    for _ in range(num_stayed):
        admission.patience.stayed(5.0, 10.0)
    admission.patience.left(3.0, 10.0)
    return admission


def test_what_is_shared_is_refused_when_it_would_take_longer_than_half_of_the_clients_wait():
    admission = shared_with_clients(num_left=10, num_stayed=5)
    admission.check_shared(40, None, 10.0)
    with pytest.raises(Overloaded, match=r"it would take 5\.0 s"):
        admission.check_shared(100, None, 10.0)


def test_what_is_shared_is_not_refused_for_the_few_that_leave():
    shared_with_clients(num_left=10, num_stayed=20).check_shared(100, None, 10.0)
