"""Event streams over an ASGI server that is only two functions."""

import asyncio
from contextlib import ExitStack

import pytest

from mindspore_serving.frontends import sse
from mindspore_serving.frontends.disconnect import OwnedStream
from tests.waiting import until


class Web:
    """What a response sends; `gate` holds up every send, `left` is the client's leaving."""

    def __init__(self):
        self.sent, self.left, self.gate = [], asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.num_held = 0  # sends that wait at the gate

    async def send(self, message):
        self.num_held += 1
        await self.gate.wait()
        self.num_held -= 1
        self.sent.append(message.get("body"))

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}

    def answer(self, response):
        return asyncio.ensure_future(response({"type": "http"}, self.receive, self.send))


def test_an_event_has_its_optional_name():
    assert sse.event(b"x") == b"data: x\n\n"
    assert sse.event(b"x", b"y") == b"event: y\ndata: x\n\n"


async def test_pieces_are_sent_and_then_the_end():
    async def pieces():
        yield b"a"
        yield b"b"

    web = Web()
    await web.answer(sse.EventStream(pieces()))
    assert web.sent == [None, b"a", b"b", b""]


async def test_a_client_that_leaves_closes_the_events():
    closed = []

    async def pieces():
        try:
            yield b"a"
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    web = Web()
    answering = web.answer(sse.EventStream(pieces()))
    await until(lambda: b"a" in web.sent)
    web.left.set()
    await answering
    assert closed == [True]


@pytest.mark.parametrize("is_held", [True, False])
async def test_a_disconnect_before_the_first_chunk_frees_the_resources(is_held):
    freed = []

    async def pieces():
        await asyncio.Event().wait()
        yield b"never"

    web, stack = Web(), ExitStack()
    stack.callback(freed.append, True)
    if is_held:
        web.gate.clear()  # not even the head can be sent: the generator is not begun
    answering = web.answer(sse.EventStream(OwnedStream(pieces(), stack)))
    await asyncio.sleep(0)
    web.left.set()
    await answering
    assert freed == [True]


async def test_silence_is_filled_and_pings_do_not_pile_up_for_who_does_not_read(monkeypatch):
    monkeypatch.setattr(sse, "PING_SECONDS", 0)

    async def pieces():
        await asyncio.Event().wait()
        yield b"never"

    web = Web()
    answering = web.answer(sse.EventStream(pieces(), ping=b":\n\n"))
    await until(lambda: web.sent.count(b":\n\n") >= 3)
    web.gate.clear()
    for _ in range(50):  # turns of the loop, each time for a ping
        await asyncio.sleep(0)
    assert web.num_held == 1
    web.left.set()
    await answering


async def test_an_error_of_the_events_ends_the_response():
    async def pieces():
        yield b"a"
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await Web().answer(sse.EventStream(pieces()))
