"""Large bodies between the master and a front-end process: where they lie, and until when."""

import asyncio
import gc
import os
import socket
from collections.abc import Callable

import pytest

from mindspore_serving.ipc import arena
from mindspore_serving.server.processes.messages import BodyChunk, Freed
from mindspore_serving.server.processes.pipe import Ends, Pipe
from tests.waiting import PATIENCE

LARGE = bytes(range(256)) * 1000


def pipes(on_message: Callable[[BodyChunk], None]) -> tuple[Pipe[BodyChunk], Pipe[BodyChunk]]:
    """Who sends, and who gets what it sends."""
    streams, fds = socket.socketpair(), (arena.create(), arena.create())
    own = [(fds[0], fds[1]), (os.dup(fds[1]), os.dup(fds[0]))]
    ends = [Ends(stream, *pair) for stream, pair in zip(streams, own, strict=True)]
    kind = BodyChunk | Freed
    return (
        Pipe(ends[0], kind, lambda _: None, lambda: None),
        Pipe(ends[1], kind, on_message, lambda: None),
    )


async def sent(body: bytes) -> tuple[Pipe[BodyChunk], Pipe[BodyChunk], BodyChunk]:
    found: asyncio.Future[BodyChunk] = asyncio.get_running_loop().create_future()
    first, second = pipes(found.set_result)
    first.send(BodyChunk(1, first.put(body)))
    return first, second, await asyncio.wait_for(found, PATIENCE)


async def freed(pipe: Pipe[BodyChunk]) -> None:
    """Wait until nothing that it has sent is in use."""

    async def look() -> None:
        while pipe._arena._size_at:
            await asyncio.sleep(0)

    await asyncio.wait_for(look(), PATIENCE)


@pytest.mark.usefixtures("uncollected")
async def test_a_view_stays_in_shared_memory_until_the_last_reference():
    first, second, message = await sent(LARGE)
    whole = second.view(message.body)
    part = memoryview(whole)[1000:2000]
    assert whole == LARGE
    del whole
    gc.collect(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(first._arena._size_at) == 1
    (offset,) = first._arena._size_at
    first._arena._view[offset + 1000] = 7
    assert part[0] == 7  # it is the sender's memory
    del part
    await freed(first)
    first.close()
    second.close()


async def test_take_copies_a_payload_and_frees_its_memory_at_once():
    first, second, message = await sent(LARGE)
    body = second.take(message.body)
    await freed(first)
    assert body == LARGE
    first.close()
    second.close()


@pytest.mark.parametrize("size", [10, len(LARGE)])
async def test_a_view_outlives_the_channel(size):
    first, second, message = await sent(LARGE[:size])
    body = second.view(message.body)
    first.close()
    second.close()
    assert body == LARGE[:size]


async def test_data_received_in_memory_of_the_channel_is_not_copied():
    found: asyncio.Future[BodyChunk] = asyncio.get_running_loop().create_future()
    first, second = pipes(found.set_result)
    memory = first.take_memory(len(LARGE))
    memory[:] = LARGE
    first.send(BodyChunk(1, first.put(memory[500:])))
    body = second.view((await asyncio.wait_for(found, PATIENCE)).body)
    assert body == LARGE[500:]
    memory[500] = 77
    assert body[0] == 77
    del memory
    first._arena.trim()
    assert len(first._arena._size_at) == 1
    del body

    async def look() -> None:
        while first._arena._size_at:
            await asyncio.sleep(0)
            first._arena.trim()

    await asyncio.wait_for(look(), PATIENCE)
    first.close()
    second.close()
    assert first.take_memory(10) is None
