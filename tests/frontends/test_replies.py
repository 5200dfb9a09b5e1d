"""`infer` and `Replies` over an inference that answers when told."""

import asyncio
import weakref

import pytest

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Reply, Request
from mindspore_serving.frontends.replies import Replies, infer
from tests.frontends.inference import FakeInference

REQUEST = Request("add", "add", 0, "ms_json", b"{}")


@pytest.fixture
async def waiting():
    """An inference, and a task that waits for its answer."""
    inference = FakeInference()
    task = asyncio.create_task(infer(inference, REQUEST))
    await asyncio.sleep(0)
    return inference, task


async def test_infer_gives_the_reply(waiting):
    inference, task = waiting
    inference.calls[0].on_reply(Reply([b"1"]))
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
    inference.calls[0].on_reply(Reply([b"1"]))
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("is_last", [False, True])
async def test_a_stream_that_is_over_keeps_nothing_in_a_circle(is_last):
    replies = Replies(inference := FakeInference(), REQUEST, ServerLimits(stream_idle_timeout=60))
    call = inference.calls.pop()  # which nobody has but `replies`, as it is when it is done
    call.on_reply(Reply([b"unread"], is_last=is_last))
    found = weakref.ref(replies)
    replies.cancel()
    assert call.is_cancelled != is_last
    assert await replies.next() is None
    del call, replies
    assert found() is None
