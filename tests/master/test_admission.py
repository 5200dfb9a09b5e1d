"""What is refused because it would be answered too late, by a clock that only counts here."""

import pytest

from mindspore_serving.errors import Overloaded
from mindspore_serving.master.admission import AdmissionControl, OpenRequest
from mindspore_serving.master.patience import Patience
from mindspore_serving.master.rates import DrainRate, SharedRate
from mindspore_serving.master.streamed import SERVED_SHARE as STAYING_SHARED


def drained(rate, seconds, start=100.0):
    """A queue that `rate` requests per second left for `seconds`, and is not empty; and now."""
    queue, now = DrainRate(), start
    queue.fill(now)
    for _ in range(int(rate * seconds)):
        now += 1 / rate
        queue.drain(1, now, is_empty=False)
    return queue, now


# --- the queue ----------------------------------------------------------------------------------


def test_the_wait_of_a_request_is_predicted_from_earlier_requests():
    queue, now = drained(rate=50, seconds=4)
    assert queue.wait(100, now) == pytest.approx(2.0, rel=0.05)


def test_a_worker_that_stands_still_makes_the_wait_longer():
    queue, now = drained(rate=50, seconds=4)
    assert queue.wait(100, now + 4.0) > 3.0


def test_nothing_is_known_of_a_queue_that_nobody_has_left():
    queue = DrainRate()
    queue.fill(1.0)
    assert queue.wait(100, 2.0) == 0.0


def test_a_queue_is_standing_after_a_while_without_being_empty():
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


def test_the_patience_of_waiting_clients_exceeds_their_wait_so_far():
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


def test_the_patience_estimate_grows_while_no_client_leaves():
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


def test_a_request_that_can_be_answered_in_time_is_admitted(overloaded):
    admission, now = overloaded
    admission.check(100, 3.0, now)  # 2 s, and 0.2


def test_a_request_that_would_be_late_is_refused_with_retry_after(overloaded):
    admission, now = overloaded
    with pytest.raises(Overloaded, match="the request would wait for 4") as caught:
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


def test_a_queued_request_is_late_if_its_deadline_is_before_its_run(overloaded):
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
        arrival = opened.pop(0)
        rate.answered(rate.work(arrival, now), max(1e-9, now - arrival.started), now)
        rate.end(now)
        opened.append(rate.begin(now))
    return rate, now


def test_work_of_a_request_is_its_share_of_the_time_until_its_answer():
    rate = SharedRate()
    first = rate.begin(0.0)
    rate.begin(1.0)
    assert rate.work(first, 3.0) == pytest.approx(1.0 + 2.0 / 2)


def test_the_work_of_running_requests_is_shared_by_max_running_at_most():
    rate = SharedRate()
    rate.max_running = 2
    first, *_, last = [rate.begin(0.0) for _ in range(4)]
    assert rate.work(first, 1.0) == pytest.approx(1 / 2)
    assert rate.work(last, 1.0) == pytest.approx(1 / 4)


def test_the_time_of_requests_computed_together_grows_with_their_number():
    rate, now = shared(32, 1.6)
    assert rate.sojourn(32) == pytest.approx(1.6, rel=0.05)
    assert rate.sojourn(320) == pytest.approx(16.0, rel=0.05)
    assert rate.max_open(3.0, now) == pytest.approx(60, rel=0.05)


def test_few_open_requests_say_nothing_of_many():
    rate, _ = shared(1, 1.0)
    assert rate.sojourn(2) == pytest.approx(2.0)
    assert rate.sojourn(3) == 0.0


def test_quick_answers_to_few_do_not_make_the_share_of_many_longer():
    rate, now = shared(32, 1.6)
    for _ in range(10):
        rate.answered(0.5, 0.5, now)
    assert rate.sojourn(32) == pytest.approx(1.6, rel=0.05)


def test_late_requests_raise_the_measured_work_and_early_leavers_do_not():
    rate, _ = shared(32, 1.6)
    before = rate.sojourn(32)
    rate.late(0.01, 0.3)
    assert rate.sojourn(32) == before
    rate.late(0.1, 3.0)
    assert rate.sojourn(32) > before


def test_a_worker_that_gives_no_answer_any_more_takes_fewer_at_once():
    rate, now = shared(32, 1.6)
    assert rate.max_open(3.0, now + 1.0) < 0.8 * rate.max_open(3.0, now)


def test_a_rate_is_uncertain_while_all_requests_are_late():
    rate, now = shared(32, 1.6)
    for _ in range(34):
        rate.late(0.06, 3.0)
    assert rate.is_uncertain
    assert rate.max_open(2.0, now) == pytest.approx(4.0)
    assert rate.max_open(60.0, now) > 100  # whoever waits for longer was not late
    rate.answered(0.3, 2.4, now)
    assert not rate.is_uncertain
    assert rate.max_open(2.4, now) == pytest.approx(8.0)


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


def test_a_late_arrival_is_refused_unless_few_requests_are_open():
    admission, now = shared_admission()
    admission.check_shared(3.0, now + 0.04)
    now = open_more(admission, 67, now)
    with pytest.raises(Overloaded, match=r"the request would take 5\.0 s") as caught:
        admission.check_shared(3.0, now)
    assert caught.value.retry_after == pytest.approx(5.0 - 0.75 * 3.0, abs=0.1)
    admission.check_shared(None, now)
    few = AdmissionControl(STAYING_SHARED)
    few.shared, now = shared(3, 1.6)
    few.check_shared(0.01, now)


def test_a_shared_request_slower_than_median_patience_is_refused():
    admission, now = shared_admission(num_left=11, num_stayed=5)
    admission.check_shared(None, now + 0.04)
    now = open_more(admission, 67, now)
    with pytest.raises(Overloaded, match=r"the request would take 5\.0 s"):
        admission.check_shared(None, now)


def test_a_shared_request_is_not_refused_if_few_clients_leave():
    admission, now = shared_admission(num_left=11, num_stayed=20)
    admission.check_shared(None, open_more(admission, 67, now))


def test_simultaneous_arrivals_are_refused_near_the_limit():
    admission, now = shared_admission(num_left=11)
    admission.shared.begin(now)
    with pytest.raises(Overloaded):
        admission.check_shared(None, now)
    admission.check_shared(None, now + 0.04)


def opened(admission, count, now, deadline=None):
    return [OpenRequest(admission.shared.begin(now), deadline) for _ in range(count)]


def test_the_longest_waiting_requests_are_shed_beyond_the_limit():
    admission, now = shared_admission(num_left=11)
    admission.shared.max_running = 32
    requests = opened(admission, 400, now)
    shed = admission.shed_shared(requests, now)
    assert len(shed) == pytest.approx(400, abs=40)
    assert sorted(shed)[:300] == list(range(300))


def test_no_request_is_shed_if_clients_are_patient_or_all_are_in_time():
    patient, now = shared_admission()
    assert patient.shed_shared(opened(patient, 400, now), now) == []
    admission, now = shared_admission(num_left=11)
    assert admission.shed_shared(opened(admission, 5, now), now) == []


def test_the_last_arrivals_are_kept_while_the_rate_is_unknown():
    admission, now = AdmissionControl(STAYING_SHARED), 100.0
    requests = opened(admission, 100, now, deadline=now + 3.0)
    for one in requests[:6]:
        admission.late_shared(one.arrival, now + 3.0)
    assert admission.shed_shared(requests, now + 3.0) == list(range(92))
