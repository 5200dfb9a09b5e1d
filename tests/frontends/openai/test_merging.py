"""Several generations read as one."""

import asyncio

import pytest

from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.openai.completion_choices import MAX_UNREAD, merge

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


async def test_events_of_a_stream_stay_in_order_and_have_its_index():
    streams = [Endless(), Endless()]
    found = {0: [], 1: []}
    events = merge(streams)
    while min(map(len, found.values())) < 100:
        place, event = await anext(events)
        found[place].append(event)
    await events.aclose()
    for numbers in found.values():
        assert numbers == list(range(1, len(numbers) + 1))


async def test_a_slow_reader_blocks_the_streams_and_bounds_memory():
    streams = [Endless(), Endless()]
    events = merge(streams)
    await anext(events)
    for _ in range(20 * MAX_UNREAD):
        await asyncio.sleep(0)
    assert sum(stream.num_taken for stream in streams) <= MAX_UNREAD + len(streams) + 1
    await events.aclose()


async def test_the_loss_of_a_stream_is_raised_and_ends_all_streams():
    streams = [Endless(problem_at=5), Endless()]
    with pytest.raises(ServingError, match="the model is lost"):
        async for _ in merge(streams):
            pass
    taken = streams[1].num_taken
    for _ in range(20):
        await asyncio.sleep(0)
    assert streams[1].num_taken == taken
