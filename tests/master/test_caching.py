"""Answers from caches, and equal requests in flight that are computed once."""

import asyncio

import pytest

from mindspore_serving.core.service import HIT, MISS, Reply
from mindspore_serving.errors import (
    Code,
    DeadlineExceeded,
    Overloaded,
    StageFailed,
    WorkerUnavailable,
)
from tests.master.served import Served, Worker, turn
from tests.waiting import until

OTHER = b'{"instances":[{"x":7}]}'


def served_with(*workers: Worker, **options: object) -> Served:
    return Served(*workers, **{"cache_mb": 1, **options})


def counts(served: Served) -> tuple[int, int, int]:
    counted = served.method.cache.counts
    return counted.hit, counted.miss, counted.joined


def codes(served: Served) -> dict[int, int]:
    return dict(served.method.series.codes)


async def test_a_second_request_is_answered_from_the_cache():
    served = served_with(worker := Worker())
    served.submit()
    await turn()
    served.answer(worker)
    served.submit()
    await turn()
    first, second = served.replies
    assert (first.cache, second.cache) == (MISS, HIT)
    assert list(first.instances) == list(second.instances)
    assert (worker.num_sent, counts(served), codes(served)) == (1, (1, 1, 0), {0: 2})


async def test_requests_of_other_content_methods_or_streams_are_computed():
    served = served_with(worker := Worker(), others=("n",))
    served.submit()
    await turn()
    served.answer(worker)
    served.submit(body=OTHER)
    served.submit(method="n")
    served.submit(is_stream=True)
    await turn()
    assert (worker.num_sent, counts(served)) == (4, (0, 2, 0))


async def test_equal_requests_in_flight_are_computed_once():
    served = served_with(worker := Worker())
    for _ in range(3):
        served.submit()
    await turn()
    assert worker.num_sent == 1
    served.answer(worker)
    assert len({tuple(reply.instances) for reply in served.replies}) == 1
    assert [reply.cache for reply in served.replies] == [MISS] * 3
    assert (counts(served), codes(served)) == ((0, 1, 2), {0: 3})
    assert served.method.share.num_used == 0


async def test_an_error_reaches_all_and_is_not_cached():
    served = served_with(worker := Worker())
    for _ in range(2):
        served.submit()
    await turn()
    (part,) = worker.held
    worker.held = []
    part.strategy.on_answers(worker, [(part, Reply(failure=StageFailed("no")))])
    assert [str(reply.failure) for reply in served.replies] == ["no", "no"]
    assert served.failure(0) is not served.failure(1)  # each is raised by itself
    served.submit()
    await turn()
    assert (worker.num_sent, len(served.method.cache)) == (2, 0)


async def test_an_answer_with_a_failed_instance_is_not_cached():
    served = served_with(worker := Worker())
    served.submit(2)
    await turn()
    (part,) = worker.held
    worker.held = []
    reply = Reply([b"", b"y"], [StageFailed("no"), None])
    part.strategy.on_answers(worker, [(part, reply)])
    assert served.replies[0].faults is not None
    assert len(served.method.cache) == 0


async def test_a_cancelled_leader_does_not_cancel_the_other_requests():
    served = served_with(worker := Worker())
    leader = served.submit()
    served.submit()
    await turn()
    leader.cancel()
    assert worker.cancelled == []
    served.answer(worker)
    assert served.replies[0] is None
    assert served.replies[1].cache == MISS
    assert codes(served) == {Code.CANCELLED: 1, 0: 1}
    assert served.method.share.num_used == 0


async def test_the_last_cancelled_request_cancels_the_computation():
    served = served_with(worker := Worker())
    calls = [served.submit() for _ in range(2)]
    await turn()
    for call in calls:
        call.cancel()
        call.cancel()  # harmless
    assert len(worker.cancelled) == 1
    assert codes(served) == {Code.CANCELLED: 2}
    assert (served.dispatcher.num_in_flight, served.method.share.num_used) == (0, 0)
    served.submit()
    await turn()
    assert worker.num_sent == 2  # a new computation


async def test_each_request_has_its_deadline():
    served = served_with(worker := Worker())
    served.submit(timeout=0.01)
    served.submit(timeout=60)
    await until(lambda: served.replies[0] is not None)
    assert isinstance(served.failure(0), DeadlineExceeded)
    assert worker.cancelled == []
    served.answer(worker)
    assert served.failure(1) is None
    served.submit(body=OTHER, timeout=0.01)
    await until(lambda: served.replies[2] is not None)
    assert isinstance(served.failure(2), DeadlineExceeded)
    assert len(worker.cancelled) == 1
    assert codes(served) == {Code.DEADLINE_EXCEEDED: 2, 0: 1}


async def test_a_cancelled_hit_gets_no_reply():
    served = served_with(worker := Worker())
    served.submit()
    await turn()
    served.answer(worker)
    served.submit().cancel()
    await turn()
    assert served.replies[1] is None


async def test_a_computation_is_retried_when_its_worker_dies():
    served = served_with(first := Worker())
    for _ in range(2):
        served.submit()
    await turn()
    served.lose(first)
    served.add(second := Worker())
    await turn()
    served.answer(second)
    assert [reply.failure for reply in served.replies] == [None, None]
    served.lose(second)
    served.add(third := Worker())
    served.submit()
    await turn()
    assert served.replies[2].cache == HIT  # answers outlive the worker that computed them
    assert third.num_sent == 0


async def test_the_death_of_a_worker_fails_all_if_a_method_is_not_retried():
    served = served_with(worker := Worker(), method_retry=False, cache=True)
    for _ in range(2):
        served.submit()
    await turn()
    served.lose(worker)
    assert all(isinstance(served.failure(number), WorkerUnavailable) for number in range(2))


@pytest.mark.parametrize(
    "options",
    [{"method_retry": False}, {"retry": False}, {"cache": False}, {"cache_mb": 0}],
)
async def test_methods_that_are_not_to_be_cached_have_no_cache(options):
    served = served_with(worker := Worker(), **options)
    assert served.method.cache is None
    for _ in range(2):
        served.submit()
    await turn()
    assert worker.num_sent == 2


async def test_tenants_do_not_share_answers_or_computations_if_so_configured():
    served = served_with(worker := Worker(), cache_per_key=True)
    for tenant in ("a", "b", "a"):
        served.submit(tenant=tenant)
    await turn()
    assert (worker.num_sent, counts(served)) == (2, (0, 2, 1))


async def test_a_hit_needs_no_room():
    served = served_with(worker := Worker(), max_requests=1)
    served.submit()
    await turn()
    served.answer(worker)
    served.submit(body=OTHER)  # the only request that is allowed
    await turn()
    served.submit()
    served.submit(body=OTHER)
    served.submit(2)
    await turn()
    assert served.replies[2].cache == HIT
    assert isinstance(served.failure(3), Overloaded)  # it would have joined
    assert isinstance(served.failure(4), Overloaded)
    assert served.inference.is_refusing
    assert served.inference.refusal("s", 0, "m", None) is None  # its answer may be cached
    served.answer(worker)
    assert served.method.share.num_used == 0


async def test_a_reloaded_servable_has_an_empty_cache():
    served = served_with(worker := Worker())
    served.submit()
    await turn()
    served.answer(worker)
    before = served.deployment
    served.deployment = type(before)("d", "s", cache_mb=1, generation=1)
    served.add(renewed := Worker())
    served.registry.promote(served.deployment)
    served.registry.remove(before)
    served.submit()
    await turn()
    assert (renewed.num_sent, counts(served)) == (1, (0, 1, 0))


async def test_a_front_end_that_fails_does_not_harm_the_other_requests():
    served = served_with(worker := Worker())

    def fail(reply: Reply) -> None:
        raise RuntimeError("a broken front end")

    submit, served.inference.submit = (
        served.inference.submit,
        lambda request, _: submit(request, fail),
    )
    served.submit()
    served.inference.submit = submit
    served.submit()
    await turn()
    served.answer(worker)
    await asyncio.sleep(0)
    assert served.replies[1].cache == MISS
