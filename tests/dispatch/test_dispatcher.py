"""The dispatcher over workers that only keep what they are sent."""

import asyncio
import json
import time
from contextlib import closing

import pytest
import uvloop

from mindspore_serving.core.deployment import BatchPolicy, Deployment
from mindspore_serving.core.service import Reply, Request
from mindspore_serving.dispatch.dispatcher import Dispatcher
from mindspore_serving.dispatch.registry import Registry
from mindspore_serving.errors import (
    DeadlineExceeded,
    InvalidInputs,
    NotFound,
    Overloaded,
    ServableUnavailable,
    WorkerUnavailable,
)
from mindspore_serving.ipc.messages import Call, MethodReport, WorkItem


class Worker:
    """In place of a link: keeps parts until the test answers."""

    def __init__(self, room=1000):
        self.size = room
        self.sent = []  # one list of parts per message
        self.held = []
        self.cancelled = []
        self.call_replies = []

    @property
    def num_held(self):
        return len(self.held)

    def room(self, batch_size):
        return self.size - len(self.held)

    def send_work(self, parts, now, *, is_paced=True):
        self.sent.append(list(parts))
        self.held += parts
        for part in parts:
            part.holder = self
            part.attempts += 1

    def cancel(self, part):
        self.cancelled.append(part)

    def answer_call(self, call_id, reply):
        self.call_replies.append((call_id, reply))

    @property
    def sizes(self):
        """How many parts each message had."""
        return [len(parts) for parts in self.sent]


class Served:
    """A dispatcher with one method "m" of servable "s", and the workers that run it."""

    def __init__(self, *workers, batch_size=1, policy=None, method_retry=True, retry=True):
        self.registry = Registry()
        self.dispatcher = Dispatcher(self.registry)
        self.workers = workers
        report = MethodReport("m", ["x"], ["y"], batch_size, method_retry, False)
        deployment = Deployment("d", "s", batching=policy or BatchPolicy(), retry=retry)
        for worker in workers:
            self.service = self.registry.add_worker(deployment, 1, [report], worker)
        self.replies = []

    @property
    def line(self):
        return self.service.lines["m"]

    def submit(self, count=1, timeout=None, **changes):
        """Ask for `count` instances; the replies are kept with the number of the request."""
        body = json.dumps({"instances": [{"x": number} for number in range(count)]}).encode()
        values = {"servable": "s", "method": "m", "body": body, **changes}
        request = Request(
            values["servable"], values["method"], 0, "ms_json", values["body"], timeout=timeout
        )
        number = len(self.replies)
        self.replies.append(None)

        def keep(reply):
            self.replies[number] = reply

        return self.dispatcher.submit(request, keep)

    def answer(self, worker, *parts):
        """`worker` answers `parts`, or all it holds, each instance with its own chunk."""
        parts = parts or tuple(worker.held)
        for part in parts:
            worker.held.remove(part)
        self.dispatcher.on_answers(
            worker, [(part, Reply([bytes(chunk) for chunk in part.chunks])) for part in parts]
        )

    def lose(self, worker):
        """As the master does when the process of `worker` has died."""
        parts, worker.held = worker.held, []
        for line in self.registry.remove_worker(self.service, worker):
            self.dispatcher.fail_line(line)
        self.dispatcher.give_elsewhere(parts, "it died")

    def failure(self, number=0):
        return self.replies[number].failure


async def turn():
    """Let the loop do what is due; a refusal or a hand-out takes one turn."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def until(condition, limit=5.0):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.001)


# --- handing out --------------------------------------------------------------------------------


async def test_requests_of_one_turn_leave_in_one_message():
    served = Served(worker := Worker())
    for _ in range(5):
        served.submit()
    assert worker.sent == []
    await turn()
    assert worker.sizes == [5]


async def test_a_reply_reaches_its_request():
    served = Served(worker := Worker())
    served.submit(body=b'{"instances":[{"x":1}]}')
    served.submit(body=b'{"instances":[{"x":2}]}')
    await turn()
    served.answer(worker)
    assert [reply.instances for reply in served.replies] == [
        [b'{"instances":[{"x":1}]}'],
        [b'{"instances":[{"x":2}]}'],
    ]


async def test_one_worker_gets_the_body_whole():
    served = Served(worker := Worker())
    served.submit(3)
    await turn()
    (part,) = worker.held
    assert part.codec == "ms_json"
    assert len(part.chunks) == 1


async def test_several_workers_share_a_request():
    served = Served(first := Worker(), second := Worker())
    served.submit(4)
    await turn()
    held = [part for worker in (first, second) for part in worker.held]
    assert [[json.loads(bytes(chunk))["x"] for chunk in part.chunks] for part in held] == [
        [0, 1],
        [2, 3],
    ]
    assert len(first.held) == len(second.held) == 1


async def test_a_request_of_several_batches_is_spread_over_workers_batch_by_batch():
    served = Served(first := Worker(), second := Worker(), batch_size=4)
    served.submit(8)
    await turn()
    assert [[len(part.chunks) for part in worker.held] for worker in (first, second)] == [[4], [4]]


async def test_small_requests_fill_the_batch_of_one_worker_before_they_go_to_another():
    served = Served(first := Worker(), second := Worker(), batch_size=4)
    for _ in range(6):
        served.submit()
    await turn()
    assert sorted(map(len, [first.held, second.held])) == [2, 4]


async def test_the_answer_of_several_workers_is_in_order():
    served = Served(first := Worker(), second := Worker())
    served.submit(4)
    await turn()
    served.answer(second)
    assert served.replies == [None]
    served.answer(first)
    assert [json.loads(text)["x"] for text in served.replies[0].instances] == [0, 1, 2, 3]


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
    assert (worker.sizes, len(served.line.batcher)) == ([2], 3)
    served.answer(worker)
    await turn()
    assert (worker.sizes, len(served.line.batcher)) == ([2, 2], 1)


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


async def test_a_new_worker_gets_what_waits():
    served = Served(worker := Worker(room=0))
    served.submit()
    await turn()
    worker.size = 1
    served.dispatcher.on_new_worker()
    await turn()
    assert worker.sizes == [1]


# --- refusals -----------------------------------------------------------------------------------


async def test_refusals_come_by_a_later_turn_and_not_by_an_exception():
    served = Served(Worker())
    served.submit(servable="unknown")
    assert served.replies == [None]
    await turn()
    assert isinstance(served.failure(), NotFound)
    assert served.dispatcher.num_in_flight == 0


async def test_a_body_that_cannot_be_cut_is_refused():
    served = Served(Worker(), Worker())
    served.submit(body=b'{"instances":7}')
    await turn()
    assert isinstance(served.failure(), InvalidInputs)


async def test_over_the_limit_requests_are_refused_until_others_end():
    served = Served(worker := Worker())
    served.dispatcher.limit = 2
    for _ in range(3):
        served.submit()
    await turn()
    assert isinstance(served.failure(2), Overloaded)
    assert str(served.failure(2)) == ("Serving Error: enqueued requests count exceeds the limit 2")
    served.answer(worker)
    served.submit()
    await turn()
    assert served.replies[3] is None
    assert len(worker.held) == 1


# --- deadlines and cancellation -----------------------------------------------------------------


async def test_no_answer_in_time_is_told_and_the_worker_hears_of_it():
    served = Served(worker := Worker())
    served.submit(timeout=0.01)
    await until(lambda: served.replies[0])
    assert isinstance(served.failure(), DeadlineExceeded)
    assert str(served.failure()) == "no answer within 0.01 seconds"
    assert worker.cancelled == worker.held


async def test_time_in_the_queue_counts():
    served = Served(worker := Worker(room=0))
    served.submit(timeout=0.01)
    await until(lambda: served.replies[0])
    worker.size = 10
    served.submit()
    await turn()
    assert worker.sizes == [1]


async def test_an_answer_in_time_stops_the_clock():
    served = Served(worker := Worker())
    call = served.submit(timeout=60)
    await turn()
    served.answer(worker)
    assert call.timer.cancelled()
    assert served.failure() is None


async def test_a_cancelled_request_in_the_queue_is_never_sent():
    served = Served(worker := Worker())
    served.submit().cancel()
    served.submit()
    await turn()
    assert worker.sizes == [1]
    assert served.replies[0] is None
    assert served.dispatcher.num_in_flight == 1


async def test_cancelling_tells_every_worker_that_has_a_part():
    served = Served(first := Worker(), second := Worker())
    call = served.submit(2)
    await turn()
    call.cancel()
    assert first.cancelled == first.held
    assert second.cancelled == second.held


async def test_an_answered_part_is_not_cancelled():
    served = Served(first := Worker(), second := Worker())
    call = served.submit(2)
    await turn()
    served.answer(first)
    call.cancel()
    assert (len(first.cancelled), len(second.cancelled)) == (0, 1)


async def test_a_request_that_nobody_waits_for_lets_go_of_its_body():
    served = Served(Worker(room=0))
    call = served.submit(3)
    parts = call.parts
    call.cancel()
    assert [list(part.chunks) for part in parts] == [[]]
    assert call.parts == []  # no cycle: the reply is freed with the call


async def test_fail_all_answers_everything_under_way():
    served = Served(Worker(room=1))
    served.submit()
    served.submit()
    await turn()
    served.dispatcher.fail_all(ServableUnavailable("stopping"))
    assert [str(reply.failure) for reply in served.replies] == ["stopping", "stopping"]
    assert served.dispatcher.num_in_flight == 0


# --- loss of a worker ---------------------------------------------------------------------------


async def test_a_request_is_retried_once_on_another_worker():
    served = Served(first := Worker(), second := Worker(room=0))
    served.submit()
    await turn()
    second.size = 1
    served.lose(first)
    await turn()
    assert second.sizes == [1]
    served.answer(second)
    assert served.failure() is None


async def test_a_request_is_not_retried_twice():
    served = Served(first := Worker(), second := Worker(room=0), third := Worker(room=0))
    served.submit()
    await turn()
    second.size = 1
    served.lose(first)
    await turn()
    served.lose(second)
    await turn()
    assert third.sizes == []
    assert isinstance(served.failure(), WorkerUnavailable)
    assert str(served.failure()) == "servable(s) method(m): it died"


@pytest.mark.parametrize("forbidden", [{"method_retry": False}, {"retry": False}], ids=str)
async def test_what_must_not_run_twice_is_not_retried(forbidden):
    served = Served(first := Worker(), second := Worker(room=0), **forbidden)
    served.submit()
    await turn()
    second.size = 1
    served.lose(first)
    await turn()
    assert second.sizes == []
    assert isinstance(served.failure(), WorkerUnavailable)


async def test_without_another_worker_the_loss_is_told_to_all():
    served = Served(worker := Worker(room=1))
    served.submit()
    served.submit()
    await turn()
    served.lose(worker)
    await turn()
    assert isinstance(served.failure(0), WorkerUnavailable)
    assert isinstance(served.failure(1), ServableUnavailable)
    assert served.dispatcher.num_in_flight == 0


async def test_a_lost_part_of_a_cancelled_request_is_dropped():
    served = Served(first := Worker(), second := Worker(room=0))
    call = served.submit()
    await turn()
    call.cancel()
    second.size = 1
    served.lose(first)
    await turn()
    assert second.sizes == []


# --- delayed batches ----------------------------------------------------------------------------


async def test_a_batch_of_the_preferred_size_leaves_at_once():
    served = Served(worker := Worker(), policy=BatchPolicy(max_wait=60.0, preferred_size=3))
    served.submit()
    served.submit()
    await turn()
    assert worker.sizes == []
    served.submit()
    await turn()
    assert worker.sizes == [3]


async def test_the_preferred_size_counts_instances_not_requests():
    served = Served(worker := Worker(), policy=BatchPolicy(max_wait=60.0, preferred_size=3))
    served.submit(2)
    served.submit(2)
    await turn()
    assert worker.sizes == [3]
    assert len(served.line.batcher) == 1


async def test_an_overdue_batch_leaves_incomplete():
    served = Served(worker := Worker(), policy=BatchPolicy(max_wait=0.02, preferred_size=8))
    start = time.monotonic()
    served.submit()
    served.submit()
    await until(lambda: worker.sizes)
    assert worker.sizes == [2]
    assert time.monotonic() - start >= 0.02


async def test_every_later_batch_leaves_in_its_time_too():
    served = Served(worker := Worker(), policy=BatchPolicy(max_wait=0.005))
    for number in range(1, 4):
        served.submit()
        await until(lambda: len(worker.sent) == number)  # noqa: B023
    assert worker.sizes == [1, 1, 1]


@pytest.mark.parametrize("max_wait", [0.0004, 0.0013, 0.0024, 0.0104])
def test_a_clock_of_milliseconds_that_wakes_early_forgets_no_batch(max_wait):
    async def main():
        served = Served(worker := Worker(), policy=BatchPolicy(max_wait=max_wait))
        served.submit()
        await until(lambda: worker.sizes, limit=1.0)

    with closing(uvloop.new_event_loop()) as loop:
        loop.run_until_complete(main())


# --- what a worker asks for, and what is counted ------------------------------------------------


def call_of(method="m", servable="s", chunks=(b"1", b"2")):
    return Call(servable, 1, WorkItem(5, method, "native", list(chunks), None))


async def test_a_call_of_a_worker_is_answered_to_it():
    asking = Worker()
    served = Served(worker := Worker())
    served.dispatcher.on_call(asking, call_of())
    await turn()
    assert worker.held[0].codec == "native"
    served.answer(worker)
    assert asking.call_replies == [(5, Reply([b"1", b"2"]))]
    assert served.dispatcher.num_in_flight == 0


@pytest.mark.parametrize(
    ("call", "kind"),
    [(call_of(servable="other"), NotFound), (call_of(chunks=()), InvalidInputs)],
    ids=["unknown", "empty"],
)
async def test_a_call_that_cannot_be_done_is_answered_too(call, kind):
    asking = Worker()
    served = Served(Worker())
    served.dispatcher.on_call(asking, call)
    ((call_id, reply),) = asking.call_replies
    assert call_id == 5
    assert type(reply.failure) is kind


async def test_requests_are_counted_by_result_and_refusals_have_no_series():
    served = Served(worker := Worker())
    served.submit()
    served.submit().cancel()
    served.submit(servable="unknown")
    await turn()
    served.answer(worker)
    assert served.line.series.codes == {0: 1, 10: 1}
