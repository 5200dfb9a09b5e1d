"""What is refused because it would be answered too late, by a clock that only counts here."""

import pytest

from mindspore_serving.errors import Overloaded
from mindspore_serving.master.admission import AdmissionControl, Open
from mindspore_serving.master.patience import Patience
from mindspore_serving.master.rates import DrainRate, SharedRate
from mindspore_serving.master.streamed import STAYING as STAYING_SHARED


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


def test_the_patience_of_clients_that_still_wait_is_longer_than_they_have_waited():
    ages = [5.0] * 20
    patience = Patience(0.5, lambda now: ages)
    for _ in range(10):
        patience.left(3.0, 10.0)
    assert patience.seconds(10.0) is None
    ages[:] = [1.0] * 20
    patience.left(3.0, 11.0)
    assert patience.seconds(11.0) == pytest.approx(3.0, rel=0.1)


def test_patience_is_that_of_more_clients_where_most_are_refused():
    patience = Patience(0.5)
    for age in (2.0, 4.0, 8.0) * 10:
        patience.left(age, 10.0)
    assert patience.seconds(10.0) == pytest.approx(4.0, rel=0.1)
    assert patience.seconds(10.0, is_crowded=True) == pytest.approx(2.0, rel=0.1)


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
    admission = AdmissionControl()
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
    admission = AdmissionControl()
    admission.queue.fill(10.0)
    admission.queue.drain(1, 10.05, is_empty=False)
    admission.check(100_000, 0.1, 10.06)
    assert not admission.is_late(1.0, 2.0, 10.06)


# --- streamed methods ---------------------------------------------------------------------------


def shared(num_open, seconds, count=200, start=100.0):
    """A rate measured at `num_open` requests that take so many seconds each, one of which ends and
    is replaced at a time; and now."""
    rate, now = SharedRate(), start
    opened = [rate.begin(now) for _ in range(num_open)]
    for _ in range(count):
        now += seconds / num_open
        begun = opened.pop(0)
        rate.answered(rate.work(begun, now), max(1e-9, now - begun.started), now)
        rate.end(now)
        opened.append(rate.begin(now))
    return rate, now


def test_work_of_a_request_is_its_share_of_the_time_until_its_answer():
    rate = SharedRate()
    first = rate.begin(0.0)
    rate.begin(1.0)
    assert rate.work(first, 3.0) == pytest.approx(1.0 + 2.0 / 2)


def test_work_of_those_that_an_engine_computes_is_shared_by_no_more_than_it_computes():
    rate = SharedRate()
    rate.most_running = 2
    first, *_, last = [rate.begin(0.0) for _ in range(4)]
    assert rate.work(first, 1.0) == pytest.approx(1 / 2)
    assert rate.work(last, 1.0) == pytest.approx(1 / 4)


def test_requests_that_are_computed_together_take_as_long_as_there_are_many():
    rate, now = shared(32, 1.6)
    assert rate.sojourn(32) == pytest.approx(1.6, rel=0.05)
    assert rate.sojourn(320) == pytest.approx(16.0, rel=0.05)
    assert rate.most(3.0, now) == pytest.approx(60, rel=0.05)


def test_few_open_requests_say_nothing_of_many():
    rate, _ = shared(1, 1.0)
    assert rate.sojourn(2) == pytest.approx(2.0)
    assert rate.sojourn(3) == 0.0


def test_quick_answers_to_few_do_not_make_the_share_of_many_longer():
    rate, now = shared(32, 1.6)
    for _ in range(10):
        rate.answered(0.5, 0.5, now)
    assert rate.sojourn(32) == pytest.approx(1.6, rel=0.05)


def test_what_was_late_makes_the_share_longer_and_what_left_early_does_not():
    rate, _ = shared(32, 1.6)
    before = rate.sojourn(32)
    rate.late(0.01, 0.3)
    assert rate.sojourn(32) == before
    rate.late(0.1, 3.0)
    assert rate.sojourn(32) > before


def test_a_worker_that_gives_no_answer_any_more_takes_fewer_at_once():
    rate, now = shared(32, 1.6)
    assert rate.most(3.0, now + 1.0) < 0.8 * rate.most(3.0, now)


def test_a_worker_all_of_whose_requests_are_late_is_in_doubt_and_gets_few_until_one_is_answered():
    rate, now = shared(32, 1.6)
    for _ in range(34):
        rate.late(0.06, 3.0)
    assert rate.is_in_doubt
    assert rate.most(2.0, now) == pytest.approx(4.0)
    assert rate.most(60.0, now) > 100  # whoever waits for longer was not late
    rate.answered(0.3, 2.4, now)
    assert not rate.is_in_doubt
    assert rate.most(2.4, now) == pytest.approx(8.0)


def shared_admission(num_left=0, num_stayed=0):
    """Of a worker with 32 requests that take 1.6 s, some of whose clients left after 3 s; now."""
    admission = AdmissionControl(STAYING_SHARED)
    admission.shared, now = shared(32, 1.6)
    for _ in range(num_left):
        admission.patience.left(3.0, now)
    for _ in range(num_stayed):
        admission.patience.stayed(5.0, now)
    return admission, now


def open_more(admission, count, now):
    for _ in range(count):
        admission.shared.begin(now)
    return now + 0.04  # they did not all come just now


def test_one_more_that_would_be_late_is_refused_and_few_never_are():
    admission, now = shared_admission()
    admission.check_shared(3.0, now + 0.04)
    now = open_more(admission, 67, now)
    with pytest.raises(Overloaded, match=r"it would take 5\.0 s") as caught:
        admission.check_shared(3.0, now)
    assert caught.value.retry_after == pytest.approx(5.0 - 0.75 * 3.0, abs=0.1)
    admission.check_shared(None, now)
    few = AdmissionControl(STAYING_SHARED)
    few.shared, now = shared(3, 1.6)
    few.check_shared(0.01, now)


def test_what_is_shared_is_refused_when_it_would_take_longer_than_half_of_the_clients_wait():
    admission, now = shared_admission(num_left=11, num_stayed=5)
    admission.check_shared(None, now + 0.04)
    now = open_more(admission, 67, now)
    with pytest.raises(Overloaded, match=r"it would take 5\.0 s"):
        admission.check_shared(None, now)


def test_what_is_shared_is_not_refused_for_the_few_that_leave():
    admission, now = shared_admission(num_left=11, num_stayed=20)
    admission.check_shared(None, open_more(admission, 67, now))


def test_one_that_comes_with_others_is_refused_where_there_is_room_for_few_more():
    admission, now = shared_admission(num_left=11)
    admission.shared.begin(now)
    with pytest.raises(Overloaded):
        admission.check_shared(None, now)
    admission.check_shared(None, now + 0.04)


def opened(admission, count, now, deadline=None):
    return [Open(admission.shared.begin(now), deadline) for _ in range(count)]


def test_those_that_wait_longest_are_shed_when_more_are_open_than_can_be_answered_in_time():
    admission, now = shared_admission(num_left=11)
    admission.shared.most_running = 32
    requests = opened(admission, 400, now)
    shed = admission.shed_shared(requests, now)
    assert len(shed) == pytest.approx(400, abs=40)
    assert sorted(shed)[:300] == list(range(300))


def test_nothing_is_shed_of_patient_clients_or_when_all_will_be_answered_in_time():
    patient, now = shared_admission()
    assert patient.shed_shared(opened(patient, 400, now), now) == []
    admission, now = shared_admission(num_left=11)
    assert admission.shed_shared(opened(admission, 5, now), now) == []


def test_those_that_came_last_are_kept_when_nobody_knows_how_fast_the_worker_is():
    admission, now = AdmissionControl(STAYING_SHARED), 100.0
    requests = opened(admission, 100, now, deadline=now + 3.0)
    for one in requests[:6]:
        admission.late_shared(one.begun, now + 3.0)
    assert admission.shed_shared(requests, now + 3.0) == list(range(92))
