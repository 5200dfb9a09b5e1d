"""`infer` and `stream` over an inference that answers when told."""

import asyncio

import pytest

from mindspore_serving.core.service import Reply, Request, infer, stream
from mindspore_serving.errors import InvalidInputs

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


async def test_infer_gives_the_reply():
    inference = ManualInference()
    task = asyncio.create_task(infer(inference, REQUEST))
    await asyncio.sleep(0)
    inference.replies[0](Reply([b"1"]))
    assert (await task).instances == [b"1"]
    assert inference.num_cancelled == 0


async def test_cancelling_infer_cancels_the_call():
    inference = ManualInference()
    task = asyncio.create_task(infer(inference, REQUEST))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert inference.num_cancelled == 1


async def test_a_reply_after_the_cancellation_is_ignored():
    inference = ManualInference()
    task = asyncio.create_task(infer(inference, REQUEST))
    await asyncio.sleep(0)
    task.cancel()
    inference.replies[0](Reply([b"1"]))
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_stream_gives_replies_until_the_last():
    inference = ManualInference()
    async with stream(inference, REQUEST) as replies:
        inference.replies[0](Reply([b"1"], is_last=False))
        inference.replies[0](Reply([b"2"]))
        assert [reply.instances async for reply in replies] == [[b"1"], [b"2"]]


async def test_leaving_a_stream_cancels_the_call():
    inference = ManualInference()
    async with stream(inference, REQUEST) as replies:
        inference.replies[0](Reply([b"1"], is_last=False))
        assert (await anext(replies)).instances == [b"1"]
    assert inference.num_cancelled == 1


def test_failures_are_codes_and_texts():
    reply = Reply([b"1", b""], [None, InvalidInputs("bad")])
    assert reply.failures() == [None, (2, "bad")]
    assert Reply([b"1"]).failures() is None
