"""What both ways share: refusals, deadlines, cancellation, retries, counting."""

import json

import numpy as np
import pytest
from msgspec.structs import replace

from mindspore_serving.core.service import Reply
from mindspore_serving.errors import (
    Code,
    DeadlineExceeded,
    InvalidInputs,
    NotFound,
    Overloaded,
    ServableUnavailable,
    StageFailed,
    WorkerUnavailable,
)
from mindspore_serving.ipc.messages import CallStep, RequestPart, WorkerCall
from mindspore_serving.master import dispatcher
from mindspore_serving.wire import native, splitting
from tests.master.served import Served, Worker, turn
from tests.waiting import until


@pytest.fixture(params=[False, True], ids=["batched", "streamed"])
def serve(request):
    """serve(*workers, **options): a method that goes one of the ways."""

    def start(*workers, **options):
        return Served(*workers, streams=request.param, **options)

    return start


# --- requests and replies -----------------------------------------------------------------------


async def test_a_reply_reaches_its_request(serve):
    served = serve(worker := Worker())
    served.submit(body=b'{"instances":[{"x":1}]}')
    served.submit(body=b'{"instances":[{"x":2}]}')
    await turn()
    served.answer(worker)
    assert [reply.instances for reply in served.replies] == [
        [b'{"instances":[{"x":1}]}'],
        [b'{"instances":[{"x":2}]}'],
    ]


async def test_a_single_worker_gets_the_whole_body(serve):
    served = serve(worker := Worker())
    served.submit(3)
    await turn()
    (part,) = worker.held
    assert part.codec == "ms_json"
    assert len(part.chunks) == 1


async def test_several_workers_share_a_request(serve):
    served = serve(first := Worker(), second := Worker())
    served.submit(4)
    await turn()
    held = [part for worker in (first, second) for part in worker.held]
    assert [[json.loads(bytes(chunk))["x"] for chunk in part.chunks] for part in held] == [
        [0, 1],
        [2, 3],
    ]
    assert len(first.held) == len(second.held) == 1


async def test_the_answer_of_several_workers_is_in_order(serve):
    served = serve(first := Worker(), second := Worker())
    served.submit(4)
    await turn()
    served.answer(second)
    assert served.replies == [None]
    served.answer(first)
    assert [json.loads(text)["x"] for text in served.replies[0].instances] == [0, 1, 2, 3]


async def test_a_stream_replies_until_its_last_answer(serve):
    served = serve(worker := Worker())
    served.submit(is_stream=True)
    await turn()
    assert worker.held[0].is_stream
    served.answer(worker, is_last=False)
    assert not served.replies[0].is_last
    assert served.dispatcher.num_in_flight == 1
    served.answer(worker)
    assert served.replies[0].is_last
    assert served.dispatcher.num_in_flight == 0


# --- refusals -----------------------------------------------------------------------------------


async def test_refusals_come_by_a_later_turn_and_not_by_an_exception(serve):
    served = serve(Worker())
    served.submit(servable="unknown")
    assert served.replies == [None]
    await turn()
    assert isinstance(served.failure(), NotFound)
    assert served.dispatcher.num_in_flight == 0


async def test_a_body_that_cannot_be_cut_is_refused(serve):
    served = serve(Worker(), Worker())
    served.submit(body=b'{"instances":7}')
    await turn()
    assert isinstance(served.failure(), InvalidInputs)


async def test_a_codec_that_fails_leaves_nothing_in_flight(serve, monkeypatch):
    monkeypatch.setattr(splitting, "split", lambda codec, body: 1 // 0)
    served = serve(Worker(), Worker())
    served.submit(4)
    await turn()
    assert served.failure().code == Code.FAILED
    assert served.dispatcher.num_in_flight == 0


async def test_a_request_without_instances_is_refused(serve):
    served = serve(Worker(), Worker())
    served.submit(0)
    await turn()
    assert isinstance(served.failure(), InvalidInputs)
    assert served.dispatcher.num_in_flight == 0


async def test_a_stream_of_several_instances_is_refused_and_not_sent(serve):
    served = serve(first := Worker(), second := Worker())
    served.submit(2, is_stream=True)
    await turn()
    assert str(served.failure()) == "a stream takes one instance, 2 were given"
    assert first.sent == second.sent == []


async def test_over_the_limit_requests_are_refused_until_earlier_requests_end(serve):
    served = serve(worker := Worker())
    served.dispatcher.shares.limit = 2
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


async def test_a_timeout_is_reported_and_cancels_the_part_in_the_worker(serve):
    served = serve(worker := Worker())
    served.submit(timeout=0.01)
    await until(lambda: served.replies[0])
    assert isinstance(served.failure(), DeadlineExceeded)
    assert str(served.failure()) == "no answer within 0.01 seconds"
    assert len(worker.held) == 1
    assert worker.cancelled == worker.held


async def test_a_deadline_that_is_far_away_is_kept_too(serve, monkeypatch):
    monkeypatch.setattr(dispatcher, "NEAR_SECONDS", 0.01)
    served = serve(Worker())
    far = served.submit(timeout=0.05)
    served.submit(timeout=3600)
    assert far.stop_timer is None
    await until(lambda: served.replies[0])
    assert str(served.failure()) == "no answer within 0.05 seconds"
    assert served.replies[1] is None


async def test_an_answer_in_time_stops_the_clock(serve):
    served = serve(worker := Worker())
    stopped = []
    request = served.submit(timeout=60)
    request.stop_timer = lambda: stopped.append(request)
    await turn()
    served.answer(worker)
    assert stopped == [request]
    assert served.failure() is None


async def test_cancelling_reaches_every_worker_that_has_a_part(serve):
    served = serve(first := Worker(), second := Worker())
    request = served.submit(2)
    await turn()
    request.cancel()
    assert len(first.held) == len(second.held) == 1
    assert first.cancelled == first.held
    assert second.cancelled == second.held


async def test_an_answered_part_is_not_cancelled(serve):
    served = serve(first := Worker(), second := Worker())
    request = served.submit(2)
    await turn()
    served.answer(first)
    request.cancel()
    assert (len(first.cancelled), len(second.cancelled)) == (0, 1)


async def test_a_stream_that_has_begun_is_cancelled_at_its_worker(serve):
    served = serve(worker := Worker())
    request = served.submit(is_stream=True)
    await turn()
    served.answer(worker, is_last=False)
    request.cancel()
    assert worker.cancelled == worker.held


async def test_a_request_that_nobody_waits_for_lets_go_of_its_body(serve):
    served = serve(Worker(room=0))
    request = served.submit(3)
    parts = request.parts
    request.cancel()
    assert [list(part.chunks) for part in parts] == [[]]
    assert list(request.parts) == []  # no cycle: the reply is freed with the request


async def test_fail_all_answers_everything_in_flight(serve):
    served = serve(Worker(room=1))
    served.submit()
    served.submit()
    await turn()
    served.dispatcher.fail_all(ServableUnavailable("stopping"))
    assert [str(reply.failure) for reply in served.replies] == ["stopping", "stopping"]
    assert served.dispatcher.num_in_flight == 0


# --- loss of a worker ---------------------------------------------------------------------------


async def test_a_request_is_retried_on_another_worker(serve):
    served = serve(first := Worker(), second := Worker())
    served.submit()
    await turn()
    (part,) = first.held
    served.lose(first)
    await turn()
    assert second.held == [part]
    served.answer(second)
    assert served.failure() is None


async def test_a_request_that_ran_in_two_dead_workers_is_not_retried(serve):
    served = serve(first := Worker(), second := Worker(), third := Worker())
    served.submit()
    await turn()
    (part,) = first.at = first.held
    served.lose(first)
    await turn()
    assert second.held == [part]
    second.at = second.held
    served.lose(second)
    await turn()
    assert third.sent == []
    assert isinstance(served.failure(), WorkerUnavailable)
    assert str(served.failure()) == "servable(s) method(m): it died"


async def test_a_part_that_only_waited_in_a_dead_worker_is_retried(serve):
    served = serve(first := Worker(), second := Worker(), third := Worker())
    served.submit()
    served.submit()
    await turn()
    first.at = first.held[:1]
    second.held += first.held[1:]
    first.held = first.held[:1]
    served.lose(second)
    await turn()
    assert served.replies == [None, None]
    served.lose(first)
    await turn()
    assert served.replies == [None, None]
    served.answer(third)


async def test_an_overdue_part_fails_with_the_reason_and_is_not_retried(serve):
    served = serve(first := Worker(), second := Worker())
    served.submit()
    await turn()
    first.at = first.held
    (first.overdue,) = first.running()
    first.end_reason = "stage 1 ran for over 5 s (stage_timeout)"
    served.lose(first)
    await turn()
    assert second.sent == []
    assert isinstance(served.failure(), StageFailed)
    assert str(served.failure()).endswith("stage 1 ran for over 5 s (stage_timeout)")


async def test_parts_waiting_in_a_withheld_worker_go_elsewhere(serve):
    served = serve(first := Worker(), second := Worker())
    for _ in range(4):
        served.submit()
    await turn()
    running, *waiting = held = list(first.held)
    first.at = [running]
    before = list(second.held)
    served.dispatcher.withhold(first, [served.method])
    await turn()
    assert first.cancelled == waiting[::-1]
    assert len(second.held) - len(before) == len(waiting)
    served.submit()
    await turn()
    assert len(second.held) - len(before) == len(waiting) + 1
    assert first.held == held
    served.answer(second)
    assert [reply is None for reply in served.replies].count(True) == 1
    served.answer(first)  # it was only slow: of the copies the first answer counts
    assert None not in served.replies
    served.method.restore(first)
    assert first in served.method.workers


async def test_when_two_workers_die_at_once_the_third_gets_the_request(serve):
    served = serve(first := Worker(), second := Worker(), third := Worker())
    served.submit()
    await turn()
    (part,) = first.held
    served.lose(first)
    served.lose(second)
    await turn()
    assert second.sent == []
    assert third.held == [part]


async def test_a_retry_waits_for_the_next_worker_unless_none_is_expected(serve):
    served = serve(first := Worker(), second := Worker())
    served.submit()
    served.submit()
    await turn()
    served.lose(first)
    served.lose(second)
    await turn()
    assert served.replies == [None, None]
    served.add(third := Worker())
    await turn()
    await turn()
    served.answer(third)
    await turn()
    if third.held:
        served.answer(third)
    assert [reply.failure for reply in served.replies] == [None, None]
    served.submit()
    await turn()
    served.lose(third)
    served.give_up(retry_after=3.0)
    assert isinstance(served.failure(2), ServableUnavailable)
    assert served.failure(2).retry_after == 3.0
    assert served.dispatcher.num_in_flight == 0


@pytest.mark.parametrize("forbidden", [{"method_retry": False}, {"retry": False}], ids=str)
async def test_a_request_that_must_not_run_twice_is_not_retried(serve, forbidden):
    served = serve(first := Worker(), second := Worker(), **forbidden)
    served.submit()
    await turn()
    assert len(first.held) == 1
    served.lose(first)
    await turn()
    assert second.sent == []
    assert isinstance(served.failure(), WorkerUnavailable)


async def test_a_stream_that_has_begun_is_not_retried(serve):
    served = serve(first := Worker(), second := Worker())
    served.submit(is_stream=True)
    await turn()
    served.answer(first, is_last=False)
    served.lose(first)
    await turn()
    assert second.sent == []
    assert isinstance(served.failure(), WorkerUnavailable)


async def test_a_stream_that_has_not_begun_is_retried(serve):
    served = serve(first := Worker(), second := Worker())
    served.submit(is_stream=True)
    await turn()
    served.lose(first)
    await turn()
    served.answer(second, is_last=False)
    assert served.replies == [Reply([b'{"x": 0}'], is_last=False)]


async def test_a_request_waits_for_a_worker_until_its_deadline(serve):
    served = serve(worker := Worker())
    served.submit(timeout=0.05)
    await turn()
    served.lose(worker)
    served.submit(timeout=0.05)
    await until(lambda: None not in served.replies)
    assert {type(served.failure(number)) for number in (0, 1)} == {DeadlineExceeded}
    assert served.dispatcher.num_in_flight == 0


async def test_a_lost_part_of_a_cancelled_request_is_dropped(serve):
    served = serve(first := Worker(), second := Worker())
    request = served.submit()
    await turn()
    assert len(first.held) == 1
    request.cancel()
    served.lose(first)
    await turn()
    assert second.sent == []


async def test_nothing_is_kept_of_a_lost_worker(serve):
    served = serve(worker := Worker())
    served.lose(worker)
    assert served.dispatcher._batches._windows == {}
    assert served.dispatcher._streams._num_open == {}


# --- what a worker asks for, and what is counted ------------------------------------------------


def call_of(method="m", servable="s", chunks=(b"1", b"2")):
    return WorkerCall(servable, 1, RequestPart(5, method, "native", list(chunks), None))


async def test_the_calling_worker_gets_the_answer_of_its_call(serve):
    asking = Worker()
    served = serve(worker := Worker())
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
async def test_a_call_that_cannot_be_done_is_answered_too(serve, call, kind):
    asking = Worker()
    served = serve(Worker())
    served.dispatcher.on_call(asking, call)
    ((call_id, reply),) = asking.call_replies
    assert call_id == 5
    assert type(reply.failure) is kind


def chained(*inputs, returns):
    """A chain of calls of method m, which returns its values, for instances (1, 2) and (3, 4)."""
    rows = ((1, 2), (3, 4))
    chunks = [native.encode_values([np.array(number) for number in row]) for row in rows]
    steps = [CallStep("s", 0, "m", list(numbers), len(numbers)) for numbers in inputs]
    return replace(call_of(chunks=chunks), steps=steps, returns=returns)


async def test_a_chain_of_calls_is_answered_once(serve):
    asking = Worker()
    served = serve(worker := Worker())
    served.dispatcher.on_call(asking, chained([1], [2, 0], returns=[4, 3]))
    await turn()
    served.answer(worker)
    await turn()
    assert [native.decode_values(chunk) for chunk in worker.held[0].chunks] == [(2, 1), (4, 3)]
    assert asking.call_replies == []
    served.answer(worker)
    ((call_id, reply),) = asking.call_replies
    assert (call_id, reply.faults) == (5, None)
    assert [native.decode_values(chunk) for chunk in reply.instances] == [(1, 2), (3, 4)]
    assert served.dispatcher.num_in_flight == 0


async def test_a_chain_goes_on_without_the_instances_that_failed(serve):
    asking, failure = Worker(), StageFailed("bad")
    served = serve(worker := Worker())
    served.dispatcher.on_call(asking, chained([0], [2], returns=[3]))
    await turn()
    (part,) = worker.held
    worker.held = []
    served.dispatcher._deliver([(part, Reply([b"", part.chunks[1]], [failure, None]))])
    await turn()
    assert [native.decode_values(chunk) for chunk in worker.held[0].chunks] == [(3,)]
    served.answer(worker)
    ((_, reply),) = asking.call_replies
    assert reply.faults == [failure, None]
    assert native.decode_values(reply.instances[1]) == (3,)


async def test_a_step_that_is_refused_ends_its_chain(serve):
    asking = Worker()
    served = serve(Worker())
    call = chained([0], [2], returns=[3])
    served.dispatcher.on_call(asking, replace(call, steps=[replace(call.steps[0], servable="t")]))
    ((_, reply),) = asking.call_replies
    assert [type(fault) for fault in reply.faults] == [NotFound, NotFound]
    assert served.dispatcher.num_in_flight == 0


async def test_requests_are_counted_by_result_and_refusals_have_no_series(serve):
    served = serve(worker := Worker())
    served.submit()
    served.submit().cancel()
    served.submit(servable="unknown")
    await turn()
    served.answer(worker)
    assert served.method.series.codes == {Code.OK: 1, Code.CANCELLED: 1}
