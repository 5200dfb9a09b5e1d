"""Bridges between machines: arrays as they were sent, and what a hostile or silent machine does."""

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest

from mindspore_serving.aio import on_thread, within
from mindspore_serving.core.placement import GroupCredentials
from mindspore_serving.llm.parallel import bridge as bridges
from mindspore_serving.llm.parallel import peer as peers
from mindspore_serving.llm.parallel.bridge import Bridge
from mindspore_serving.llm.parallel.bridge_messages import Beats, Greeting
from mindspore_serving.llm.parallel.links import PART_BYTES, TAG, RankMemory, create_memory
from mindspore_serving.llm.parallel.machine_end import MachineEnd
from mindspore_serving.llm.parallel.peer import Notice, Peer, packed_of
from mindspore_serving.llm.parallel.processes import connect_machine
from mindspore_serving.tls import make_group_certificate
from tests.waiting import PATIENCE

CREDENTIALS = GroupCredentials(*make_group_certificate())
COUNTS = (1, 1)


class End(MachineEnd):
    """A machine with one rank, without the process of that rank."""

    def __init__(self, machine, credentials):
        super().__init__(machine, credentials)
        self.accepted = []

    def open(self):
        self.memory = RankMemory(create_memory(2), 2)
        sockets, ends = connect_machine(range(self.machine, self.machine + 1), 2)
        self.rank = sockets[self.machine][1 - self.machine]
        self.rank.setblocking(False)
        self.bridge = Bridge(self.machine, COUNTS, self.memory, ends, self.peers)

    def on_message(self, peer, message):
        if not isinstance(message, Greeting):  # which only a host expects
            super().on_message(peer, message)

    async def tag(self):
        return TAG.unpack(await asyncio.get_running_loop().sock_recv(self.rank, TAG.size))


@asynccontextmanager
async def connected():
    """Two machines; the second one has accepted."""
    first, second = End(0, CREDENTIALS), End(1, CREDENTIALS)
    accepted = asyncio.get_running_loop().create_future()

    def accept():
        peer = Peer(second, 0)
        second.accepted.append(peer)
        if not accepted.done():
            second.add(peer)
            accepted.set_result(peer)
        return peer

    context = second.context(accepts=True)
    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:
        await first.dial(1, f"127.0.0.1:{port}")
        await within(PATIENCE, accepted)
        for end in (first, second):
            end.open()
        yield first, second, port
    finally:
        server.close()
        for end in (first, second):
            end.close()
            end.rank.close()


def rounded(array):
    """An array of float32 with the precision of bfloat16."""
    return (array.view(np.uint32) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize("size", [0, 1, 300, PART_BYTES // 4])
@pytest.mark.parametrize("change", [np.asarray, rounded])
async def test_arrays_arrive_bit_for_bit_before_their_notice(size, change):
    array = change(np.random.default_rng(size).standard_normal(size).astype(np.float32))
    async with connected() as (first, second, _):
        first.memory.parts.view(np.float32)[2, 1, 0, :size] = array
        first.rank.send(TAG.pack(7, 2, 5, array.nbytes))
        assert await within(PATIENCE, second.tag()) == (7, 2, 5, array.nbytes)
        found = second.memory.parts.view(np.float32)[2, 1, 0, :size]
        np.testing.assert_array_equal(found.view(np.uint32), array.view(np.uint32))


def test_half_of_the_bytes_are_sent_of_floats_that_are_bfloat16():
    array = np.linspace(-3, 3, 1024, dtype=np.float32)
    assert packed_of(array.view(np.uint8)) is None
    packed = packed_of(rounded(array).view(np.uint8))
    assert packed is not None
    assert packed.nbytes * 2 == array.nbytes


async def test_heartbeats_of_other_machines_are_in_the_memory():
    async with connected() as (first, second, _):
        second.memory.beats[1] = 41
        for end in (first, second):
            task = asyncio.ensure_future(end.keep_alive())
            end.lost.add_done_callback(lambda _, task=task: task.cancel())

        async def arrived() -> None:
            while first.memory.beats[1] != 41:
                await asyncio.sleep(0.01)

        await within(PATIENCE, arrived())
        assert not (first.lost.done())
        assert not (second.lost.done())
        first.lose("the test ends")
        second.lose("the test ends")


async def test_a_silent_machine_is_lost(monkeypatch):
    monkeypatch.setattr(bridges, "SILENCE_SECONDS", 0.5)
    async with connected() as (first, _, _):
        await within(PATIENCE, first.keep_alive())
        assert first.lost.result() == "the server's machine is silent"


@pytest.mark.parametrize(
    ("notice", "problem"),
    [
        (Notice(1, 0, 0, 0, 0, 0), "a notice of rank 1 to rank 0"),  # not its rank
        (Notice(0, 9, 0, 0, 0, 0), "a notice of rank 0 to rank 9"),
        (Notice(0, 1, 0, 3, 0, 0), "0 bytes in region 3"),
        (Notice(0, 1, 0, 0, 0, PART_BYTES + 4), "bytes in region 0"),
    ],
)
async def test_a_notice_that_is_not_possible_ends_the_connection(notice, problem):
    async with connected() as (first, second, _):
        first.peers[1].send_notice(notice, np.empty(0, np.uint8))
        assert problem in await within(PATIENCE, second.lost)
        assert "was closed" in await within(PATIENCE, first.lost)


async def test_a_message_too_large_ends_the_connection(monkeypatch):
    monkeypatch.setattr(peers, "MAX_FRAME", 100)
    async with connected() as (first, second, _):
        first.peers[1].send(Beats([0] * 200))
        assert "at most 100 are accepted" in await within(PATIENCE, second.lost)


@pytest.mark.parametrize("has_certificate", [False, True])
async def test_a_stranger_cannot_connect(has_certificate):
    """Neither without a certificate nor with that of another group; what it sends is not read."""
    context = MachineEnd(0, GroupCredentials(*make_group_certificate())).context(accepts=False)
    if not has_certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with connected() as (_, second, port):

        def talk():
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", port)) as stream,
                context.wrap_socket(stream) as wrapped,
            ):
                wrapped.send(b"\2" * 100)
                assert wrapped.recv(1) == b""

        await on_thread("stranger", talk)
        assert len(second.accepted) == 2
        assert second.accepted[1].num_received == 0
