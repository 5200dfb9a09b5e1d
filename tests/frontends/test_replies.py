"""`infer` over an inference that answers when told."""

import asyncio

import pytest

from mindspore_serving.core.service import Reply, Request
from mindspore_serving.frontends.replies import infer

REQUEST = Request("add", "add", 0, "ms_json", b"{}")


class ManualInference:
    """Keeps each request's callback; counts cancellations."""

    def __init__(self):
        self.replies = []
        self.num_cancelled = 0

    def submit(self, request, on_reply):
        self.replies.append(on_reply)
        return self

    def cancel(self):
        self.num_cancelled += 1


@pytest.fixture
async def waiting():
    """An inference, and a task that waits for its answer."""
    inference = ManualInference()
    task = asyncio.create_task(infer(inference, REQUEST))
    await asyncio.sleep(0)
    return inference, task


async def test_infer_gives_the_reply(waiting):
    inference, task = waiting
    inference.replies[0](Reply([b"1"]))
    assert (await task).instances == [b"1"]
    assert inference.num_cancelled == 0


async def test_cancelling_infer_cancels_the_call(waiting):
    inference, task = waiting
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert inference.num_cancelled == 1


async def test_a_reply_after_the_cancellation_is_ignored(waiting):
    inference, task = waiting
    task.cancel()
    inference.replies[0](Reply([b"1"]))
    with pytest.raises(asyncio.CancelledError):
        await task
