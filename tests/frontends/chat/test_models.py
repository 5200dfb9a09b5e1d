"""Streams of events and replies over an inference that says what the test tells it to."""

import asyncio

import pytest

from mindspore_serving.core.llm_messages import (
    Chunk,
    Finished,
    Generate,
    Refused,
    RequestRefused,
    Started,
    encode_events,
)
from mindspore_serving.core.prefixes import prompt_texts
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Reply, Request
from mindspore_serving.errors import Overloaded, ServingError, WorkerUnavailable
from mindspore_serving.frontends import access
from mindspore_serving.frontends.chat.models import Generation
from mindspore_serving.frontends.replies import MAX_UNREAD, REPLY_SIZE, Replies
from tests.frontends.inference import FakeInference

REQUEST = Request("s", "m", 0, "llm", b"", is_stream=True)


class Inference(FakeInference):
    def say(self, reply):
        self.calls[-1].on_reply(reply)


def events(*them, is_last=False):
    return Reply([encode_events(them)], is_last=is_last)


PIECE = Chunk(0, "a", (1,))


async def test_events_arrive_in_order_and_end():
    stream = Generation(inference := Inference(), REQUEST)
    inference.say(events(Started(3, 7), PIECE))
    inference.say(events(PIECE, Finished(3, 0, 2), is_last=True))
    assert await stream.begin() == Started(3, 7)
    assert [event async for event in stream] == [PIECE, PIECE, Finished(3, 0, 2)]


async def test_the_end_gives_the_access_log_its_tokens():
    entry = access.Entry("127.0.0.1:5", "POST", "/v1/completions")
    access.current.set(entry)  # of this test's context alone
    stream = Generation(inference := Inference(), REQUEST)
    inference.say(events(Started(3, 7, None, 0.5), PIECE))
    inference.say(events(Finished(3, 0, 1, 2.5), is_last=True))
    await stream.begin()
    assert (entry.servable, entry.method) == ("s", "m")
    assert entry.tokens is None
    assert len([event async for event in stream]) == 2
    assert entry.tokens == (3, 1)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (events(Refused("empty", "nothing"), is_last=True), RequestRefused),
        (Reply(failure=WorkerUnavailable("gone")), WorkerUnavailable),
        (events(PIECE), ServingError),
        (Reply([]), ServingError),
    ],
)
async def test_a_stream_that_does_not_begin_raises(reply, kind):
    stream = Generation(inference := Inference(), REQUEST)
    inference.say(reply)
    with pytest.raises(kind):
        await stream.begin()


async def test_a_stream_without_an_end_raises():
    stream = Generation(inference := Inference(), REQUEST)
    inference.say(events(Started(3, 7)))
    inference.say(events(PIECE, is_last=True))
    await stream.begin()
    with pytest.raises(ServingError, match="ended early"):
        assert [event async for event in stream]


async def test_leaving_cancels_once_and_never_after_the_end():
    inference = Inference()
    with Generation(inference, REQUEST) as stream:
        stream.cancel()
    assert inference.num_cancelled == 1
    with Generation(inference, REQUEST) as stream:
        inference.say(events(Finished(1, 0, 1), is_last=True))
    assert inference.num_cancelled == 1


@pytest.mark.parametrize("limit", [MAX_UNREAD, 2 * MAX_UNREAD])
async def test_a_reader_that_is_busy_elsewhere_loses_the_stream_at_the_limit(limit):
    replies = await replies_of_a_reader(inference := Inference(), limit)
    size = 1 << 20
    for _ in range(limit // size):
        inference.say(Reply([bytes(size)], is_last=False))
    assert inference.num_cancelled == 0
    inference.say(Reply([b"over it"], is_last=False))
    assert inference.num_cancelled == 1
    inference.say(Reply([b"late"], is_last=False))
    reply = await replies.next()
    assert isinstance(reply.failure, Overloaded)
    assert await replies.next() is None


async def test_small_replies_count_with_their_memory_cost():
    await replies_of_a_reader(inference := Inference())
    for _ in range(MAX_UNREAD // REPLY_SIZE + 2):
        inference.say(Reply([], is_last=False))
    assert inference.num_cancelled == 1


async def test_replies_before_the_first_read_are_kept():
    replies = Replies(inference := Inference(), REQUEST)
    for _ in range(3):
        inference.say(Reply([bytes(MAX_UNREAD)], is_last=False))
    for _ in range(3):
        assert (await replies.next()).failure is None


async def replies_of_a_reader(inference, limit=MAX_UNREAD):
    """Replies of which the first was read."""
    replies = Replies(inference, REQUEST, max_unread=limit)
    inference.say(Reply([], is_last=False))
    assert (await replies.next()).failure is None
    return replies


async def test_a_reader_that_waits_gets_any_amount():
    replies = Replies(inference := Inference(), REQUEST)
    reading = asyncio.ensure_future(replies.next())
    await asyncio.sleep(0)
    for _ in range(3):
        inference.say(Reply([bytes(MAX_UNREAD)], is_last=False))
    assert len((await reading).instances[0]) == MAX_UNREAD
    for _ in range(20):
        inference.say(Reply([b"x"], is_last=False))
        if (await replies.next()).failure is not None:
            break
    assert inference.num_cancelled == 1, "two that large are still unread"


async def test_a_reader_that_keeps_up_is_never_cut_off():
    replies = Replies(inference := Inference(), REQUEST)
    for _ in range(50):
        inference.say(Reply([bytes(1 << 20)], is_last=False))
        assert (await replies.next()).failure is None
    assert inference.num_cancelled == 0


async def test_slow_readers_share_the_memory_for_unread_replies(monkeypatch):
    monkeypatch.setattr(Replies, "num_unread", 0)  # whatever other tests have left
    limits = ServerLimits(max_unsent_memory=3 << 20)
    inferences = [Inference() for _ in range(3)]
    slow, other, quick = [Replies(one, REQUEST, limits) for one in inferences]
    for one, replies in zip(inferences, (slow, other, quick), strict=True):
        one.say(Reply([], is_last=False))
        await replies.next()
    for _ in range(2):
        inferences[0].say(Reply([bytes(1 << 20)], is_last=False))
    inferences[1].say(Reply([bytes(1 << 20)], is_last=False))
    inferences[0].say(Reply([b"x"], is_last=False))  # finds that there is too much
    failure = (await slow.next()).failure
    assert isinstance(failure, Overloaded)
    assert "max_unsent_memory" in str(failure)
    assert await slow.next() is None
    for _ in range(2):
        inferences[2].say(Reply([bytes(1 << 20)], is_last=False))
        assert (await quick.next()).failure is None
    assert [one.num_cancelled for one in inferences] == [1, 0, 0]
    other.cancel()
    quick.cancel()


async def test_unread_replies_of_left_streams_free_their_memory():
    before = Replies.num_unread
    replies = await replies_of_a_reader(inference := Inference())
    inference.say(Reply([bytes(1 << 20)], is_last=False))
    assert Replies.num_unread == before + (1 << 20) + REPLY_SIZE
    replies.cancel()
    assert Replies.num_unread == before


@pytest.mark.parametrize(
    "message",
    [
        {"role": ["x"] * 10, "content": "hello"},
        {"role": "", "content": ""},
        {"content": [{"text": ""}, {"text": 1}, "text", 7, {}]},
        {"role": "user", "content": {"deep": [[]]}},
    ],
)
def test_the_prefix_of_a_prompt_has_only_nonempty_texts(message):
    texts = list(prompt_texts(Generate(messages=[message], cache_salt="s")))
    assert all(type(text) is str and text for text in texts)
    assert len(texts) == 2 + (
        len(message["content"]) if isinstance(message["content"], list) else 1
    )


def test_prompts_with_another_salt_or_adapter_begin_otherwise():
    prompts = [Generate(prompt="x"), Generate(prompt="x", cache_salt="s")]
    prompts.append(Generate(prompt="x", adapter="a"))
    assert len({tuple(prompt_texts(one)) for one in prompts}) == 3
