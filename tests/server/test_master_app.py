"""A call of the master's application through a front end: what is on its way when one of them gives
up, and is not to stay in the memory that they share."""

import asyncio
import gc
import os
import socket
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest

from mindspore_serving.ipc import arena
from mindspore_serving.server.processes.forwarded_call import ForwardedCall
from mindspore_serving.server.processes.master_app import MasterCalls
from mindspore_serving.server.processes.messages import (
    AsgiCall,
    BodyChunk,
    BodyRequest,
    CancelRequest,
    ResponseChunk,
    Scope,
    ToFrontEnd,
    ToMaster,
)
from mindspore_serving.server.processes.pipe import Ends, Pipe
from tests.waiting import PATIENCE

LARGE = bytes(1 << 20)
SCOPE = Scope("1.1", "http", None, None, "POST", "/x", b"/x", b"", [])


class Both:
    """A front end and the master, and what each gets."""

    def __init__(self) -> None:
        streams, fds = socket.socketpair(), (arena.create(), arena.create())
        own = [(fds[0], fds[1]), (os.dup(fds[1]), os.dup(fds[0]))]
        ends = [Ends(stream, *pair) for stream, pair in zip(streams, own, strict=True)]
        self.got: list[Any] = []
        self.on_event: Callable[[Any], None] = lambda _: None
        self.front: Pipe[ToFrontEnd] = Pipe(ends[0], ToFrontEnd, self._take, lambda: None)
        self.master: Pipe[ToMaster] = Pipe(ends[1], ToMaster, self.got.append, lambda: None)

    def _take(self, event: Any) -> None:
        self.on_event(event)
        self.got.append(event)

    async def wait_for(self, kind: type[msgspec.Struct]) -> Any:
        return await until(lambda: [one for one in self.got if isinstance(one, kind)])

    async def close(self) -> None:
        """Once nothing that was sent is in use."""
        for pipe in (self.front, self.master):
            await until(lambda own=pipe: not own._arena._size_at)
        self.front.close()
        self.master.close()


async def until(look: Callable[[], Any]) -> Any:
    async def wait() -> Any:
        while not (found := look()):
            await asyncio.sleep(0)
        return found

    return await asyncio.wait_for(wait(), PATIENCE)


async def never() -> Any:
    await asyncio.get_running_loop().create_future()


async def test_an_answer_that_nobody_waits_for_any_more_is_given_back() -> None:
    both = Both()
    master = MasterCalls(both.front, count(1))
    app = master.app(0)
    both.on_event = master.take
    scope = msgspec.structs.asdict(SCOPE)
    task = asyncio.create_task(app(scope, never, lambda _: never()))
    await both.wait_for(AsgiCall)
    both.on_event = lambda event: (master.take(event), task.cancel())[0]  # before the task goes on
    both.master.send(ResponseChunk(1, body=both.master.put(LARGE)))
    await both.wait_for(CancelRequest)
    await both.close()


@pytest.mark.usefixtures("uncollected")
async def test_a_body_that_nobody_waits_for_any_more_is_given_back() -> None:
    both = Both()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    async def sync() -> None:
        pass

    call = ForwardedCall(AsgiCall(1, 0, SCOPE, ""), both.master, app, sync)
    task = asyncio.create_task(call.run(None))
    await both.wait_for(BodyRequest)
    both.front.send(BodyChunk(1, both.front.put(LARGE)))
    given = (await both.wait_for(BodyChunk))[0]
    call.on_body(given)
    task.cancel()
    await asyncio.wait([task], timeout=PATIENCE)
    assert task.cancelled()
    del call, task  # whose traceback has the message, too
    gc.collect(0)
    await both.close()
