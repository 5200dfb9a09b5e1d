"""max_queue_seconds: what still waits for its turn after so long is refused."""

import pytest

from mindspore_serving.errors import Overloaded
from tests.master.served import Served, Worker, turn
from tests.waiting import until

LIMIT = 0.05  # seconds


class Seen(Worker):
    """A worker that counts how often somebody looks at what it runs."""

    num_looks = 0

    def running(self):
        self.num_looks += 1
        return super().running()


async def test_what_waits_in_the_queue_of_a_method_is_refused_and_what_runs_is_not():
    served = Served(worker := Worker(room=1), max_queue_seconds=LIMIT)
    served.submit()
    await turn()
    worker.at = list(worker.held)
    served.submit()
    await until(lambda: served.replies[1])
    assert isinstance(served.failure(1), Overloaded)
    assert str(served.failure(1)).endswith("it waited for over 0.05 s (max_queue_seconds)")
    assert served.failure(1).retry_after == LIMIT
    served.answer(worker)
    assert served.failure(0) is None


@pytest.mark.parametrize("streams", [False, True])
async def test_what_waits_in_a_worker_is_refused_there_and_the_worker_is_told(streams):
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


async def test_what_ran_when_its_time_was_over_may_rest_later():
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
