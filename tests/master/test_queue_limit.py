"""max_queue_seconds: what still waits for its turn after so long is refused."""

import pytest

from mindspore_serving.errors import Overloaded
from mindspore_serving.ipc.status import STEPS, Running
from tests.master.served import Served, Worker, turn
from tests.waiting import until

LIMIT = 0.05  # seconds
ANYTHING = Running(STEPS, 1.0, 0, None)


class Seen(Worker):
    """A worker that counts how often somebody looks at what it runs."""

    num_looks = 0

    def running(self):
        self.num_looks += 1
        return super().running()


class Unclear(Seen):
    """A worker that runs something, and does not say what unless `is_clear`."""

    is_clear = False

    def running(self):
        return super().running() if self.is_clear else [*super().running(), ANYTHING]


async def test_overdue_queued_parts_are_refused_and_running_parts_are_not():
    served = Served(worker := Worker(room=1), max_queue_seconds=LIMIT)
    served.submit()
    await turn()
    worker.at = list(worker.held)
    served.submit()
    await until(lambda: served.replies[1])
    assert isinstance(served.failure(1), Overloaded)
    assert str(served.failure(1)).endswith("the request waited for over 0.05 s (max_queue_seconds)")
    assert served.failure(1).retry_after == LIMIT
    served.answer(worker)
    assert served.failure(0) is None


@pytest.mark.parametrize("streams", [False, True])
async def test_overdue_parts_that_wait_in_a_worker_are_refused_and_cancelled(streams):
    served = Served(worker := Worker(), streams=streams, max_queue_seconds=LIMIT)
    served.submit()
    await turn()
    worker.at = list(worker.held)
    served.submit()
    await turn()
    second = worker.held[-1]
    await until(lambda: served.replies[1])
    assert isinstance(served.failure(1), Overloaded)
    assert worker.cancelled == [second]
    assert served.replies[0] is None


async def test_a_part_that_ran_at_its_limit_may_pause_later():
    served = Served(worker := Seen(), streams=True, max_queue_seconds=LIMIT)
    served.submit()
    first = list(worker.held)
    worker.at = first
    await until(lambda: worker.num_looks)
    worker.at = []
    served.submit()
    await until(lambda: served.replies[1])
    assert served.replies[0] is None


async def test_a_worker_that_is_between_two_steps_is_looked_at_again():
    served = Served(worker := Seen(), streams=True, max_queue_seconds=LIMIT)
    served.submit()
    await until(lambda: worker.num_looks == 1)
    worker.at = list(worker.held)
    await until(lambda: worker.num_looks == 2)
    served.answer(worker)
    assert served.failure(0) is None


async def test_a_worker_with_unclear_status_is_checked_until_the_status_is_clear():
    served = Served(worker := Unclear(), streams=True, max_queue_seconds=LIMIT)
    served.submit()
    await until(lambda: worker.num_looks > 4)
    assert served.replies[0] is None
    worker.is_clear = True
    await until(lambda: served.replies[0])
    assert isinstance(served.failure(0), Overloaded)


async def test_a_stream_that_has_begun_is_not_refused():
    served = Served(worker := Worker(), streams=True, max_queue_seconds=LIMIT)
    served.submit(is_stream=True)
    served.answer(worker, *worker.held, is_last=False)
    served.submit()
    await until(lambda: served.replies[1])
    assert served.failure(0) is None


async def test_requests_that_come_after_a_pause_are_looked_at_too():
    served = Served(worker := Worker(), max_queue_seconds=LIMIT)
    served.submit()
    await turn()
    served.answer(worker)
    await until(lambda: not served.method.is_watched)
    served.submit()
    await until(lambda: served.replies[1])
    assert isinstance(served.failure(1), Overloaded)


async def test_without_a_limit_nothing_is_looked_at():
    served = Served(Worker(room=0))
    served.submit()
    assert not served.method.is_watched
