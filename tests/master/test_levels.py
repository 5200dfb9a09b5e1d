"""Priorities of queued requests, and the limits of each level."""

import json

import pytest

from mindspore_serving.errors import Overloaded
from tests.master.served import Served, Worker, turn
from tests.waiting import until


def body(number):
    return json.dumps({"instances": [{"x": number}]}).encode()


def order(worker):
    return [json.loads(bytes(part.chunks[0]))["instances"][0]["x"] for part in worker.held]


async def busy(**options):
    """A method whose only worker has one part and no room for a second."""
    served = Served(worker := Worker(room=1), **{"priority_levels": 3, **options})
    served.submit(body=body(0))
    await turn()
    return served, worker


async def answered(served, worker):
    """The numbers of the requests in the order in which the worker gets them."""
    numbers = []
    while worker.held:
        numbers += order(worker)
        served.answer(worker)
        await turn()
    return numbers


async def test_requests_of_higher_levels_run_first():
    served, worker = await busy()
    for number, priority in enumerate((3, 1, 2, 1, 3), 1):
        served.submit(body=body(number), priority=priority)
    assert await answered(served, worker) == [0, 2, 4, 3, 1, 5]
    assert all(reply.failure is None for reply in served.replies)


@pytest.mark.parametrize(("default", "numbers"), [(0, [0, 2, 1, 3]), (1, [0, 1, 3, 2])])
async def test_a_request_without_a_known_level_has_the_default(default, numbers):
    served, worker = await busy(default_priority=default)
    for number, priority in enumerate((0, 2, 4), 1):
        served.submit(body=body(number), priority=priority)
    assert await answered(served, worker) == numbers


async def test_levels_without_priorities_have_no_effect():
    served, worker = await busy(priority_levels=0)
    for number, priority in enumerate((3, 1), 1):
        served.submit(body=body(number), priority=priority)
    assert await answered(served, worker) == [0, 1, 2]


async def test_a_full_level_refuses_further_requests():
    served, worker = await busy(level_queue_sizes={"2": 1})
    for priority in (2, 2, 1):
        served.submit(body=body(1), priority=priority)
    await turn()
    assert [type(reply and reply.failure) for reply in served.replies[1:]] == [
        type(None),
        Overloaded,
        type(None),
    ]
    assert "1 requests of priority 2 are queued, and the limit is 1" in str(served.failure(2))
    assert await answered(served, worker) == [0, 1, 1]
    assert served.method.share.num_used == 0


async def test_a_request_that_waits_longer_than_its_level_allows_is_refused():
    served, worker = await busy(level_queue_ms={"1": 10, "3": 60_000})
    cancelled = served.submit(body=body(1), priority=1)
    cancelled.cancel()
    for number, priority in enumerate((1, 2, 3), 2):
        served.submit(body=body(number), priority=priority)
    await until(lambda: served.replies[2] is not None)
    assert isinstance(served.failure(2), Overloaded)
    assert "priority 1 waited for over 0.01 s (level_queue_ms)" in str(served.failure(2))
    assert served.failure(2).retry_after == 0.01
    assert served.method.num_ahead == 2  # nothing of the ended requests is counted
    assert await answered(served, worker) == [0, 3, 4]


async def test_a_request_of_which_a_part_runs_is_not_refused():
    served = Served(first := Worker(room=1), Worker(room=0), priority_levels=1,
                    level_queue_ms={"1": 5})  # fmt: skip
    served.submit(2)
    await turn()
    assert (len(first.held), served.method.num_ahead) == (1, 1)
    served.submit(1, body=body(7))  # behind it
    for _ in range(3):
        served.method._levels.refuse_overdue()
    assert served.replies == [None, None]
    served.answer(first)
    await turn()
    served.answer(first)
    assert served.failure(0) is None
