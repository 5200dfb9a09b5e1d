"""Several generations read as one."""

import asyncio

import pytest

from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.openai.completion_choices import MOST_UNREAD, merged

pytestmark = pytest.mark.asyncio


class Endless:
    """In place of a model's stream: numbers without end, counted as they are taken."""

    def __init__(self, problem_at=None):
        self.num_taken = 0
        self.problem_at = problem_at

    async def __aiter__(self):
        while True:
            if self.num_taken == self.problem_at:
                raise ServingError("the model is lost")
            self.num_taken += 1
            yield self.num_taken
            await asyncio.sleep(0)


async def test_events_of_a_stream_stay_in_order_and_come_with_its_place():
    streams = [Endless(), Endless()]
    found = {0: [], 1: []}
    events = merged(streams)
    while min(map(len, found.values())) < 100:
        place, event = await anext(events)
        found[place].append(event)
    await events.aclose()
    for numbers in found.values():
        assert numbers == list(range(1, len(numbers) + 1))


async def test_a_slow_reader_holds_up_the_streams_and_not_the_memory():
    streams = [Endless(), Endless()]
    events = merged(streams)
    await anext(events)
    for _ in range(20 * MOST_UNREAD):
        await asyncio.sleep(0)
    assert sum(stream.num_taken for stream in streams) <= MOST_UNREAD + len(streams) + 1
    await events.aclose()


async def test_the_loss_of_one_is_raised_and_ends_all():
    streams = [Endless(problem_at=5), Endless()]
    with pytest.raises(ServingError, match="the model is lost"):
        async for _ in merged(streams):
            pass
    taken = streams[1].num_taken
    for _ in range(20):
        await asyncio.sleep(0)
    assert streams[1].num_taken == taken
