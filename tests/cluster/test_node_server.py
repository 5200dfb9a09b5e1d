"""Who reaches the port for nodes: what is refused, and that it holds up nobody else."""

import asyncio
import socket
import ssl
import struct
from contextlib import asynccontextmanager, suppress

import pytest

from mindspore_serving import __version__
from mindspore_serving.cluster import node_connection, node_messages, node_server, spreading
from mindspore_serving.cluster.base import ANYTHING, Needs
from mindspore_serving.cluster.dialing import MasterAddress
from mindspore_serving.cluster.node_connection import NodeConnection, connect
from mindspore_serving.cluster.node_messages import (
    Attach,
    Data,
    FromWorker,
    JoinCluster,
    Start,
    ToNode,
    WorkerStarted,
    preamble,
)
from mindspore_serving.cluster.node_server import NodeServer, Security
from mindspore_serving.cluster.nodes import Machine, is_too_large
from mindspore_serving.cluster.spreading import SpreadingLauncher
from mindspore_serving.errors import NoFreeMachine, ResourceShortage, StartError
from mindspore_serving.process.channel import encode
from mindspore_serving.process.frames import pack
from mindspore_serving.process.vocabulary import Beat, Failed, Hello, Leaving, Ready, hello
from tests.e2e.authority import Authority
from tests.waiting import PATIENCE, until

TOKEN = "a token of no use elsewhere"
B = JoinCluster(__version__, "b", 2, "none", [], {})
JOIN = JoinCluster(__version__, "a", 2, "none", [], {})


def opening(token: str = TOKEN) -> bytes:
    """What a node sends first."""
    return preamble(token) + encode(hello(node_messages))


class NoWorkers:
    """The master's own machine, which starts nothing."""

    async def launch(self, name, log_name, needs):
        raise AssertionError("nothing is to be started here")


@asynccontextmanager
async def serving(token: str = TOKEN, context: "ssl.SSLContext | None" = None):
    """A server for nodes: its launcher and its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    launcher = SpreadingLauncher(NoWorkers())
    launcher.here.slots = 0
    server = NodeServer(listener, Security(lambda: context, token), launcher)
    server.start()
    try:
        yield launcher, listener.getsockname()[1]
    finally:
        await server.close()
        while _dialled:
            _dialled.pop().abort()


_dialled: list[NodeConnection] = []


async def dial(port: int, first: bytes) -> NodeConnection:
    connection = await connect("127.0.0.1", port, None, PATIENCE)
    _dialled.append(connection)
    connection.writer.write(first)
    return connection


async def join(port: int, message: JoinCluster = JOIN, token: str = TOKEN) -> NodeConnection:
    return await dial(port, opening(token) + encode(message))


async def answer(connection: NodeConnection) -> object:
    return await asyncio.wait_for(connection.receive(ToNode), PATIENCE)


async def is_closed(connection: NodeConnection) -> bool:
    """Whether the server ends it, perhaps with a word."""
    with suppress(ConnectionError):
        await asyncio.wait_for(connection.reader.read(), PATIENCE)
    return True


async def test_a_node_with_the_token_joins():
    async with serving() as (launcher, port):
        connection = await join(port)
        assert await answer(connection) == Ready()
        assert await answer(connection) == Beat()
        connection.abort()


@pytest.mark.parametrize("token", ["", "another token, as long as it"])
async def test_a_wrong_token_is_refused(token):
    async with serving() as (_, port):
        connection = await join(port, token=token)
        assert await answer(connection) == Failed("the token is wrong or missing")
        assert await is_closed(connection)


async def test_another_version_is_refused_with_both():
    async with serving() as (_, port):
        connection = await join(port, JoinCluster("0.9", "a", 2, "none", [], {}))
        refused = await answer(connection)
        assert "the node has version '0.9'" in refused.text
        assert f"the master version '{__version__}'" in refused.text
        connection = await dial(port, preamble(TOKEN) + encode(Hello("other", "")) + encode(JOIN))
        assert "the node has protocol 'other'" in (await answer(connection)).text


async def test_a_name_is_taken_once_and_is_free_when_its_node_has_gone():
    async with serving() as (launcher, port):
        first = await join(port)
        assert await answer(first) == Ready()
        second = await join(port)
        assert "a node with the name 'a' has joined already" in (await answer(second)).text
        first.abort()
        await until(lambda: choices(launcher) == [])
        assert await answer(await join(port)) == Ready()


def choices(launcher: SpreadingLauncher) -> list[str]:
    """The nodes of `launcher`."""
    return [machine.name for machine in launcher.machines if machine.name]


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 4,
        bytes(1000),
        preamble(TOKEN) + struct.pack("<I", 2**31),
        preamble(TOKEN) + struct.pack("<I", 70_000) + bytes(70_000),
        opening() + pack(b"\xc1\xc1\xc1\xc1"),
        opening() + encode(Data(b"four")),
        opening() + encode(Beat()),
        opening() + encode(Attach("nobody asked for it")),
    ],
)
async def test_a_client_that_is_no_node_is_cut_off_and_nodes_join(garbage):
    async with serving() as (_, port):
        assert await is_closed(await dial(port, garbage))
        assert await answer(await join(port)) == Ready()


@pytest.mark.parametrize("first", [b"", preamble(TOKEN)[:20], preamble(TOKEN), opening()])
async def test_who_is_silent_is_cut_off(monkeypatch, first):
    monkeypatch.setattr(node_server, "HANDSHAKE_SECONDS", 0.1)
    async with serving() as (_, port):
        assert await is_closed(await dial(port, first))


async def test_a_flood_of_strangers_holds_up_no_node_that_has_joined(monkeypatch):
    async with serving() as (launcher, port):
        node = await join(port)
        assert await answer(node) == Ready()
        strangers = [await dial(port, b"") for _ in range(3 * node_server.MAX_PENDING)]
        pushed_out = strangers[: -node_server.MAX_PENDING]
        assert all([await is_closed(one) for one in pushed_out])  # at once: they are too many
        assert choices(launcher) == ["a"]
        assert await answer(node) == Beat()


async def test_silent_strangers_keep_no_node_out():
    async with serving() as (launcher, port):
        for _ in range(node_server.MAX_PENDING):
            await dial(port, b"")
        node = await join(port, B)
        assert await answer(node) == Ready()
        assert choices(launcher) == ["b"]


async def test_a_flood_of_pings_is_not_read_faster_than_its_limit():
    async with serving() as (launcher, port):
        node = await join(port)
        assert await answer(node) == Ready()
        node.writer.write(encode(Beat()) * (100 * node_connection.MAX_MESSAGES))
        node.send(Leaving())
        assert await answer(await join(port, B)) == Ready()
        machine = next(one for one in launcher.machines if one.name == "a")
        await answer(node)  # it is alive
        assert not machine.is_leaving  # which comes behind all pings


async def test_small_chunks_of_a_workers_stream_leave_other_tasks_their_turn():
    reader = asyncio.StreamReader()
    reader.feed_data(encode(Data(b"x")) * 1000)
    others = []
    connection = NodeConnection(reader, NoWriter())
    turns = asyncio.create_task(count_turns(others))
    for _ in range(1000):
        await connection.receive(FromWorker)
    turns.cancel()
    assert len(others) >= 1000 // node_connection.MESSAGES_AT_ONCE


async def count_turns(turns: list[None]) -> None:
    while True:
        turns.append(None)
        await asyncio.sleep(0)


class NoWriter:
    """Of a connection that only reads."""

    def __init__(self):
        self.transport = self

    def set_write_buffer_limits(self, high):
        pass


@pytest.mark.parametrize(
    "first", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\0\1", bytes(5000)]
)
async def test_a_client_without_tls_is_cut_off_and_nodes_join(monkeypatch, tmp_path, first):
    authority = Authority(tmp_path, "authority")
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(*authority.issue("server"))
    async with serving(context=ours) as (launcher, port):
        with monkeypatch.context() as patch:
            patch.setattr(node_server, "HANDSHAKE_SECONDS", 0.5)
            assert await is_closed(await dial(port, first))
        theirs = ssl.create_default_context(cafile=authority.ca)
        node = await MasterAddress("127.0.0.1", port, theirs, TOKEN).dial()
        node.send(JOIN)
        assert await answer(node) == Ready()
        node.abort()
        with pytest.raises(StartError, match="is not trusted: "):
            await MasterAddress("127.0.0.1", port, ssl.create_default_context(), TOKEN).dial()


async def test_a_node_that_says_nothing_any_more_is_lost(monkeypatch):
    monkeypatch.setattr(node_connection, "PING_SECONDS", 0.02)
    monkeypatch.setattr(node_connection, "SILENCE_SECONDS", 0.2)
    async with serving() as (launcher, port):
        assert await answer(await join(port)) == Ready()
        await until(lambda: choices(launcher) == [])


async def test_a_start_ends_with_its_node(monkeypatch):
    async with serving() as (launcher, port):
        node = await join(port)
        assert await answer(node) == Ready()
        starting = asyncio.create_task(launcher.launch("add", "log_add", ANYTHING))
        while not isinstance(message := await answer(node), Start):
            pass
        assert (message.name, message.log_name, message.device_id) == ("add", "log_add", None)
        node.abort()
        with pytest.raises(ResourceShortage, match="no machine can run it now"):
            await starting


async def test_a_launch_that_waits_for_a_machine_ends_with_the_server():
    async with serving() as (launcher, _):
        starting = asyncio.create_task(
            launcher.launch("add", "log", Needs(placement_timeout=PATIENCE))
        )
        await asyncio.sleep(0)
        launcher.close()
        with pytest.raises(ResourceShortage, match="add waits"):
            await starting


async def test_ranks_that_fit_no_machine_are_refused_before_the_timeout(
    monkeypatch,
):
    """But a larger machine may join: until one is there, they wait for a while."""
    monkeypatch.setattr(spreading, "JOIN_SECONDS", 0.0)
    async with serving() as (launcher, port):
        connection = await join(port)
        assert isinstance(await answer(connection), Ready)
        gang = Needs("cut", slots=3, placement_timeout=10 * PATIENCE)
        with pytest.raises(
            NoFreeMachine, match="2 of its 2 slots are free, and 3 ranks need one each"
        ):
            await asyncio.wait_for(launcher.launch("a", "a", gang), PATIENCE)
        connection.abort()


@pytest.mark.parametrize(
    ("slots", "expected"), [((0,), False), ((0, 2), True), ((2, 3), False), ((2, None), False)]
)
def test_ranks_are_too_large_for_machines_that_have_fewer_slots(slots, expected):
    machines = [Machine(str(place), most) for place, most in enumerate(slots)]
    assert is_too_large(Needs("cut", slots=3), machines) == expected


async def test_a_worker_that_sends_frames_that_are_none_is_lost():
    async with serving() as (launcher, port):
        node = await join(port)
        starting = asyncio.create_task(
            launcher.launch("add", "log_add", Needs(placement_timeout=PATIENCE))
        )
        while not isinstance(message := await answer(node), Start):
            pass
        worker = await dial(port, opening() + encode(Attach(message.id)))
        worker.send(WorkerStarted(256))
        launched = await starting
        assert (launched.location.node, launched.process.pid) == ("a", 256)
        worker.writer.write(struct.pack("<I", 2**31))
        assert await launched.process.wait() < 0
        assert "node a is lost: a frame of" in launched.process.log_tail()
        assert launched.stream.recv(1) == b""
        launched.stream.close()
