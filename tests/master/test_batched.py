"""The batched way: which worker gets what waits, and when."""

import time
from contextlib import closing

import pytest
import uvloop

from mindspore_serving.errors import Overloaded, ServableUnavailable, WorkerUnavailable
from mindspore_serving.master import batched, dispatcher
from mindspore_serving.master.method import MAX_PARTS
from mindspore_serving.master.request import PendingPart
from tests.master.served import Served, Worker, turn
from tests.waiting import until

# --- handing out --------------------------------------------------------------------------------


async def test_requests_of_a_turn_leave_in_a_single_message():
    served = Served(worker := Worker())
    for _ in range(5):
        served.submit()
    assert worker.sent == []
    await turn()
    assert worker.sizes == [5]


async def test_a_request_of_several_batches_is_spread_over_workers_by_batch():
    served = Served(first := Worker(), second := Worker(), batch_size=4)
    served.submit(8)
    await turn()
    assert [[len(part.chunks) for part in worker.held] for worker in (first, second)] == [[4], [4]]


async def test_small_requests_fill_a_batch_before_another_worker_gets_any():
    served = Served(first := Worker(), second := Worker(), batch_size=4)
    for _ in range(6):
        served.submit()
    await turn()
    assert sorted(map(len, [first.held, second.held])) == [2, 4]


async def test_many_requests_are_shared_evenly():
    served = Served(first := Worker(), second := Worker())
    for _ in range(10):
        served.submit()
    await turn()
    assert len(first.held) == len(second.held) == 5


async def test_a_full_worker_leaves_work_in_the_queue():
    served = Served(worker := Worker(room=2))
    for _ in range(5):
        served.submit()
    await turn()
    assert (worker.sizes, len(served.method._queue)) == ([2], 3)
    served.answer(worker)
    await turn()
    assert (worker.sizes, len(served.method._queue)) == ([2, 2], 1)


async def test_a_worker_that_is_less_full_is_first():
    served = Served(first := Worker(room=8), second := Worker(room=8))
    served.submit()
    await turn()
    served.submit()
    await turn()
    assert (first.sizes, second.sizes) == ([1], [1])


async def test_slow_workers_get_their_part_of_a_request_too():
    """Fast ones have more room than they, even with all of the request."""
    served = Served(fast := Worker(room=100), slow := Worker(room=2), slower := Worker(room=1))
    served.submit(60)
    await turn()
    assert [worker.sizes for worker in (fast, slow, slower)] == [[1], [1], [1]]


async def test_a_long_queue_leaves_turns_to_other_methods_of_the_worker():
    served = Served(worker := Worker(room=2), others=["other"])
    for _ in range(100):
        served.submit()
    await turn()
    served.submit(method="other")
    while served.replies[-1] is None:
        served.answer(worker, worker.held[0])
        await turn()
    assert len(served.method._queue) > 90


async def test_a_method_without_retry_sends_a_worker_a_single_batch():
    served = Served(worker := Worker(), batch_size=4, method_retry=False, has_real_windows=True)
    for _ in range(10):
        served.submit()
    await turn()
    assert (worker.sizes, len(served.method._queue)) == ([4], 6)
    served.answer(worker, *worker.held[:3])
    await turn()
    assert worker.sizes == [4]
    served.answer(worker)
    await turn()
    assert worker.sizes == [4, 4]


async def test_queued_parts_survive_a_death_even_without_retry():
    served = Served(worker := Worker(), method_retry=False, has_real_windows=True)
    served.submit(), served.submit()
    await turn()
    served.lose(worker)
    served.add(second := Worker())
    await turn()
    assert "it died" in str(served.failure(0))
    served.answer(second)
    assert served.replies[1].failure is None


async def test_a_new_worker_gets_the_queued_parts():
    served = Served(worker := Worker(room=0))
    served.submit()
    await turn()
    served.add(second := Worker())
    await turn()
    assert (worker.sizes, second.sizes) == ([], [1])


async def test_queued_parts_fail_when_no_worker_is_expected_any_more():
    served = Served(worker := Worker(room=1))
    served.submit()
    served.submit()
    await turn()
    assert (worker.sizes, served.method.num_waiting) == ([1], 1)
    served.lose(worker)
    assert served.method.num_waiting == 2
    served.give_up()
    assert [type(served.failure(number)) for number in (0, 1)] == [ServableUnavailable] * 2
    assert served.method.num_waiting == 0
    assert served.dispatcher.num_in_flight == 0


async def test_a_request_that_failed_in_the_queue_is_never_sent():
    served = Served(worker := Worker(room=0))
    served.submit(timeout=0.01)
    await until(lambda: served.replies[0])
    worker.size = 10
    served.submit()
    await turn()
    assert worker.sizes == [1]


async def test_a_cancelled_request_in_the_queue_is_never_sent():
    served = Served(worker := Worker())
    served.submit().cancel()
    served.submit()
    await turn()
    assert worker.sizes == [1]
    assert served.replies[0] is None
    assert served.dispatcher.num_in_flight == 1


async def test_a_retry_is_next():
    served = Served(first := Worker(), second := Worker(room=0))
    served.submit()
    await turn()
    (part,) = first.held
    first.size = 1
    served.submit()
    await turn()
    second.size = 1
    served.lose(first)
    await turn()
    assert second.held == [part]


@pytest.mark.parametrize(("owns_models", "most"), [(True, 2), (False, 8)])
async def test_a_worker_has_few_messages_unless_its_models_run_elsewhere(owns_models, most):
    worker = Worker()
    worker.owns_models = owns_models
    served = Served(worker, batch_size=100, has_real_windows=True)
    for _ in range(10):
        served.submit()
        await turn()
    assert worker.sizes == [1] * most
    served.answer(worker, worker.held[0])
    await turn()
    assert worker.sizes == [1] * most + [10 - most]


# --- delayed batches ----------------------------------------------------------------------------


async def test_a_batch_of_the_preferred_size_leaves_at_once():
    served = Served(worker := Worker(), max_batch_delay_ms=60000, preferred_batch_size=3)
    served.submit()
    served.submit()
    await turn()
    assert worker.sizes == []
    served.submit()
    await turn()
    assert worker.sizes == [3]


async def test_the_preferred_size_counts_instances_not_requests():
    served = Served(worker := Worker(), max_batch_delay_ms=60000, preferred_batch_size=3)
    served.submit(2)
    served.submit(2)
    await turn()
    assert worker.sizes == [3]
    assert len(served.method._queue) == 1


async def test_the_number_of_parts_of_a_request_is_limited():
    served = Served(Worker(), max_batch_delay_ms=60000, preferred_batch_size=3)
    served.submit(MAX_PARTS * 2 + 1)
    assert len(served.method._queue) <= MAX_PARTS
    chunks = [len(part.chunks) for part in served.method._queue]
    assert (sum(chunks), max(chunks)) == (MAX_PARTS * 2 + 1, 3)


@pytest.mark.parametrize(
    ("options", "preferred"),
    [
        ({}, 0),
        ({"max_batch_delay_ms": 1000}, 4),  # the batch size of the method
        ({"max_batch_delay_ms": 1000, "preferred_batch_size": 8}, 8),
    ],
    ids=["no delay", "a delay", "a delay and a size"],
)
async def test_with_a_delay_the_batch_size_of_the_method_is_preferred(options, preferred):
    queue = Served(Worker(), batch_size=4, **options).method._queue
    assert queue.preferred_batch_size == preferred
    assert queue.max_batch_delay_ms == options.get("max_batch_delay_ms", 0)


async def test_an_overdue_batch_leaves_incomplete():
    served = Served(worker := Worker(), max_batch_delay_ms=20, preferred_batch_size=8)
    served.submit()
    served.submit()
    due = served.method._queue.due()
    await until(lambda: worker.sizes)
    assert worker.sizes == [2]
    assert time.monotonic() >= due


async def test_every_later_batch_leaves_in_its_time_too():
    served = Served(worker := Worker(), max_batch_delay_ms=5)
    for number in range(1, 4):
        served.submit()
        await until(lambda: len(worker.sent) == number)  # noqa: B023
    assert worker.sizes == [1, 1, 1]


@pytest.mark.parametrize("delay_ms", [0.4, 1.3, 2.4, 10.4])
def test_a_clock_of_milliseconds_that_wakes_early_forgets_no_batch(delay_ms):
    async def main():
        served = Served(worker := Worker(), max_batch_delay_ms=delay_ms)
        served.submit()
        await until(lambda: worker.sizes)

    with closing(uvloop.new_event_loop()) as loop:
        loop.run_until_complete(main())


# --- suspects: a worker may have died of them -----------------------------------------------------


async def lose_at(served, worker, count):
    """`worker` dies while it runs the first `count` of the parts that it has; which those are."""
    worker.at = worker.held[:count]
    suspects = list(worker.at)
    served.lose(worker)
    await turn()
    return suspects


async def test_quarantined_parts_run_alone_in_their_worker():
    served = Served(first := Worker(), second := Worker(room=0))
    for _ in range(5):
        served.submit()
    await turn()
    second.size = 1000
    suspects = await lose_at(served, first, 3)
    assert second.held == suspects[:1]
    for number in range(3):
        assert second.held == [suspects[number]]
        served.answer(second)
        await turn()
        await turn()
    assert len(second.held) == 2  # that only waited
    served.answer(second)
    assert [reply.failure for reply in served.replies] == [None] * 5


async def test_of_many_running_parts_only_the_part_that_kills_workers_fails():
    served = Served(first := Worker())
    for _ in range(8):
        served.submit()
    await turn()
    poison = first.held[3]
    await lose_at(served, first, 8)
    workers = [first]
    while None in served.replies:
        if workers[-1] not in served.method.workers:
            workers.append(Worker())
            served.add(workers[-1])
        await turn()
        if poison in workers[-1].held:
            await lose_at(served, workers[-1], 1)
        elif workers[-1].held:
            served.answer(workers[-1])
        await turn()
    failed = [number for number in range(8) if served.replies[number].failure is not None]
    assert failed == [3]
    assert len(workers) == 3


async def test_the_other_workers_go_on_while_a_suspect_is_run():
    served = Served(first := Worker(), second := Worker(), third := Worker())
    served.submit()
    await turn()
    suspects = await lose_at(served, first, 1)
    (its_worker,) = (worker for worker in (second, third) if worker.held == suspects)
    for _ in range(6):
        served.submit()
    await turn()
    assert its_worker.held == suspects
    served.answer(third if its_worker is second else second)
    assert [reply is None for reply in served.replies].count(True) == 1


async def test_a_suspect_waits_until_its_worker_has_nothing_else():
    served = Served(first := Worker(), second := Worker())
    for _ in range(4):
        served.submit()
    await turn()
    before = list(second.held)
    assert before
    suspects = await lose_at(served, first, 1)
    served.submit()
    await turn()
    assert second.held == before
    served.answer(second)
    await turn()
    assert second.held == suspects


async def test_a_suspect_that_nobody_waits_for_any_more_reserves_no_worker():
    served = Served(first := Worker(), second := Worker(room=0))
    request = served.submit()
    served.submit()
    await turn()
    second.size = 1000
    second.held.append(PendingPart(served.submit(), 0, "ms_json", []))
    await lose_at(served, first, 1)
    assert served.dispatcher._batches._reserved
    request.cancel()
    served.submit()
    await turn()
    assert not served.dispatcher._batches._reserved
    assert len(second.held) > 1


async def test_a_worker_that_is_lost_with_a_suspect_is_not_reserved_any_more():
    served = Served(first := Worker(), second := Worker())
    served.submit()
    await turn()
    await lose_at(served, first, 1)
    assert served.dispatcher._batches._reserved
    await lose_at(served, second, 1)
    assert not served.dispatcher._batches._reserved
    assert isinstance(served.failure(), WorkerUnavailable)


@pytest.mark.parametrize("leaves", ["lost", "withheld"])
async def test_a_worker_is_free_after_its_suspect_though_another_left_meanwhile(leaves):
    served = Served(first := Worker(), second := Worker(), third := Worker())
    served.submit()
    await turn()
    suspects = await lose_at(served, first, 1)
    its_worker, other = (second, third) if second.held == suspects else (third, second)
    if leaves == "lost":
        served.lose(other)
    else:
        served.dispatcher.withhold(other, [served.method])
    served.answer(its_worker)
    await turn()
    served.submit()
    await turn()
    assert len(its_worker.held) == 1


async def test_a_quarantined_part_moves_from_a_silent_worker_and_runs_alone():
    served = Served(first := Worker(), second := Worker(), third := Worker())
    request = served.submit()
    await turn()
    suspects = await lose_at(served, first, 1)
    its_worker, other = (second, third) if second.held == suspects else (third, second)
    served.dispatcher.withhold(its_worker, [served.method])
    await turn()
    for _ in range(2):
        served.submit()
    await turn()
    assert [part.request for part in other.held] == [request]


# --- overload -------------------------------------------------------------------------------------


class Clock:
    """In place of the module `time`."""

    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (batched, dispatcher):
        monkeypatch.setattr(module, "time", made)
    return made


async def overload(served, worker, clock):
    """Answer 50 requests per second until that is known and a queue is standing."""
    worker.size = 1
    for _ in range(12):
        served.submit()
    for _ in range(7):
        await turn()
        clock.now += 0.02
        served.answer(worker)
    assert served.method.admission.queue.is_standing(clock.now)


async def test_a_late_request_is_refused_at_once_with_retry_after(clock):
    served = Served(worker := Worker())
    await overload(served, worker, clock)
    served.submit(timeout=0.02)
    await turn()
    refusal = served.replies[-1].failure
    assert isinstance(refusal, Overloaded)
    assert refusal.retry_after > 0
    served.submit(timeout=600)
    await turn()
    assert served.replies[-1] is None


async def test_a_client_that_left_is_not_counted_among_those_ahead():
    served = Served(Worker(room=0))
    requests = [served.submit() for _ in range(10)]
    await turn()
    for request in requests[2:8]:
        request.cancel()
    assert served.method.num_ahead == 4


async def test_the_oldest_parts_are_refused_beyond_clients_patience(clock):
    served = Served(worker := Worker())
    await overload(served, worker, clock)
    later = [served.submit() for _ in range(300)]
    for _ in range(10):
        served.method.admission.patience.left(0.2, clock.now)
    later[-1].cancel()
    await turn()
    refused = [isinstance(reply and reply.failure, Overloaded) for reply in served.replies]
    assert refused.count(True) > 200
    assert not refused[-2]


async def test_a_late_request_of_several_parts_leaves_nothing_counted(clock):
    served = Served(worker := Worker(), Worker(room=0))
    await overload(served, worker, clock)
    served.submit(2, timeout=30)  # a part for each worker
    late, num_waiting = len(served.replies) - 1, len(served.method._queue)
    for _ in range(5):
        served.submit()
    clock.now += 100
    worker.size = len(worker.held) + num_waiting
    await turn()
    assert isinstance(served.replies[late].failure, Overloaded)
    assert served.method.num_ahead == len(served.method._queue) > 0


async def test_cancelled_parts_do_not_pile_up_behind_a_busy_worker():
    served = Served(worker := Worker(room=0))
    first = served.submit()
    for number in range(3 * batched.MAX_DROPPED):
        served.submit(1 + number % 2).cancel()
        if number % 100 == 0:
            await turn()
    last = served.submit()
    await turn()
    assert len(served.method._queue) <= batched.MAX_DROPPED + 200
    assert served.method.num_ahead == 2
    worker.size = 10
    served.method._scheduler.schedule(served.method)
    await turn()
    assert [part.request for part in worker.held] == [first, last]
    assert served.method.num_ahead == 0
