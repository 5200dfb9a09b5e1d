"""Blocks over TLS between two workers: they arrive as they were sent, or a problem is told."""

import math
import socket
import ssl
import struct
from contextlib import closing, suppress

import pytest

from mindspore_serving.core.placement import GroupCredentials, LinkSettings
from mindspore_serving.core.prefill_messages import BlocksWritten, Prefill
from mindspore_serving.llm.storage import block_links, block_listener
from mindspore_serving.llm.storage.block_links import BlockLinks
from mindspore_serving.llm.storage.block_memory import BlockMemory
from mindspore_serving.tls import make_group_certificate, to_group_context
from tests.waiting import PATIENCE, eventually

CREDENTIALS, FOREIGN = (GroupCredentials(*make_group_certificate()) for _ in range(2))
SIZE, COUNT = 100_000, 5
BLOCKS = [memoryview(bytes([index + 1]) * SIZE) for index in range(COUNT)]


def links(machine, host, credentials=CREDENTIALS, model="m"):
    return BlockLinks(LinkSettings(machine, host, host, credentials), model)


@pytest.fixture
def decode():
    with closing(links("b", "127.0.0.3")) as opened:
        yield opened


@pytest.fixture
def prefill():
    with closing(links("a", "127.0.0.2")) as opened:
        yield opened


@pytest.fixture
def memory():
    memory = BlockMemory.create(COUNT, SIZE)
    yield memory
    memory.close()


@pytest.fixture
def reports(decode, memory):
    """Reports of what arrives in the memory."""
    received = []
    decode.listener.expect(memory, received.append)
    return received


def request(decode, memory, **changes):
    where = {"machine": "b", "host": "127.0.0.3", "port": decode.listener.port, "model": "m"}
    return Prefill(**{"prompt": [1], "path": memory.path, "name": memory.name, **where, **changes})


def write(writer, begin, end):
    told = writer.write(begin, BLOCKS[begin:end], BlocksWritten(end, 1, 0.5, 0.25))
    assert told == []


def dial(decode, credentials=CREDENTIALS):
    """A connection as that of a sender, for what no sender does."""
    stream = socket.create_connection(("127.0.0.3", decode.listener.port), PATIENCE)
    return to_group_context(*credentials.pem, accepts=False).wrap_socket(stream)


def is_closed(connection):
    """Whether the other side has closed the connection."""
    with suppress(ConnectionError, ssl.SSLError):
        return connection.recv(1) == b""
    return True


def problem_of(writer):
    """The error of a writer, once it has one."""
    problems = []

    def has_failed():
        try:
            writer.check()
        except OSError as error:
            problems.append(str(error))
        return bool(problems)

    eventually(has_failed)
    return problems[0]


def name_of(memory, block_bytes=SIZE):
    return struct.pack("<64sQ", memory.name.encode(), block_bytes)


def head(count, seconds=0.0):
    return struct.pack("<QQdd", count, 0, seconds, 0.0)


def test_blocks_arrive_as_they_were_sent(decode, prefill, memory, reports):
    changes = []
    writer = prefill.open_writer(request(decode, memory), SIZE, lambda: changes.append(1))
    write(writer, 0, 3)
    eventually(lambda: reports and reports[-1].written.count == 3)
    assert [bytes(memory.read(index)) for index in range(3)] == BLOCKS[:3]
    write(writer, 3, COUNT)
    writer.finish()
    eventually(lambda: writer.is_done)
    assert changes
    assert bytes(memory.read(COUNT - 1)) == BLOCKS[-1]
    last = reports[-1]
    assert (last.written, last.problem) == (BlocksWritten(COUNT, 1, 0.5, 0.25), "")
    assert last.wire > 0


def test_blocks_of_the_same_machine_take_the_shared_memory(decode, memory):
    with closing(links("b", "127.0.0.3")) as neighbour:
        writer = neighbour.open_writer(request(decode, memory, port=0), SIZE, lambda: None)
        written = BlocksWritten(1)
        assert writer.write(0, BLOCKS[:1], written) == [written]
        writer.finish()
    assert bytes(memory.read(0)) == BLOCKS[0]


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"port": 0}, "listens for no blocks"), ({"model": "other"}, "has 'other'")],
)
def test_workers_that_cannot_exchange_blocks_are_refused(decode, prefill, memory, changes, text):
    with pytest.raises(OSError, match=text):
        prefill.open_writer(request(decode, memory, **changes), SIZE, lambda: None)


def test_a_member_of_another_group_is_refused(decode, memory, reports):
    with closing(links("a", "127.0.0.2", FOREIGN)) as stranger:
        writer = stranger.open_writer(request(decode, memory), SIZE, lambda: None)
        assert "blocks cannot be sent to 127.0.0.3" in problem_of(writer)
    assert (reports, writer.is_done) == ([], False)
    assert bytes(memory.read(0)) == bytes(SIZE)


def test_a_client_without_certificate_is_refused(decode, reports):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    stream = socket.create_connection(("127.0.0.3", decode.listener.port), PATIENCE)
    with context.wrap_socket(stream) as connection:
        assert is_closed(connection)
    assert reports == []


@pytest.mark.parametrize("block_bytes", [SIZE - 1, 1 << 40])
def test_blocks_of_another_size_are_refused(decode, prefill, memory, reports, block_bytes):
    writer = prefill.open_writer(request(decode, memory), block_bytes, lambda: None)
    assert "closed" in problem_of(writer) or "reset" in problem_of(writer)
    assert reports == []


def test_only_awaited_memories_are_written_and_each_by_a_single_connection(decode, memory, reports):
    with dial(decode) as first, dial(decode) as second, dial(decode) as third:
        first.sendall(name_of(memory) + head(1) + bytes(BLOCKS[0]))
        eventually(lambda: reports)
        second.sendall(name_of(memory))
        assert is_closed(second)
        other = BlockMemory.create(1, SIZE)
        third.sendall(name_of(other))
        assert is_closed(third)
        other.close()
    assert bytes(memory.read(0)) == BLOCKS[0]


@pytest.mark.parametrize(
    "sent",
    [head(0), head(COUNT + 1), head(1 << 63), head(1, math.nan), head(1, math.inf)],
    ids=["no blocks", "too many", "far too many", "no number", "infinite"],
)
def test_heads_out_of_range_end_the_connection(decode, memory, reports, sent):
    with dial(decode) as connection:
        connection.sendall(name_of(memory) + sent)
        assert is_closed(connection)
    eventually(lambda: reports)
    assert reports[-1].problem.startswith("it sent what is not expected")
    assert reports[-1].written.count == 0


def test_a_truncated_transfer_tells_the_blocks_that_are_whole(decode, memory, reports, monkeypatch):
    monkeypatch.setattr(block_listener, "REPORT_SECONDS", 0.0)
    with dial(decode) as connection:
        connection.sendall(name_of(memory) + head(3) + bytes(BLOCKS[0]) + bytes(BLOCKS[1])[:-1])
        eventually(lambda: reports)  # the end of a connection may overtake its bytes
    eventually(lambda: reports and reports[-1].problem)
    assert reports[-1].written.count == 1
    assert bytes(memory.read(0)) == BLOCKS[0]


def test_a_memory_that_is_no_longer_awaited_ends_its_connection(decode, prefill, memory, reports):
    writer = prefill.open_writer(request(decode, memory), SIZE, lambda: None)
    write(writer, 0, 1)
    eventually(lambda: reports)
    decode.listener.forget(memory.name)
    problem_of(writer)
    assert not writer.is_done
    assert [report.problem for report in reports] == [""]


def test_a_memory_closed_before_its_connection_is_refused(decode, memory, reports):
    memory.close()
    with dial(decode) as connection:
        connection.sendall(name_of(memory))
        assert is_closed(connection)
    assert reports == []


def test_a_sender_waits_for_room_while_the_other_reads_nothing(
    decode, prefill, memory, monkeypatch
):
    monkeypatch.setattr(block_links, "SEND_AHEAD", 2 * SIZE)
    with socket.create_server(("127.0.0.3", 0)) as silent:
        port = silent.getsockname()[1]
        writer = prefill.open_writer(request(decode, memory, port=port), SIZE, lambda: None)
        assert writer.room == 2
        write(writer, 0, 2)
        assert writer.room == 0
        writer.close()


def test_a_peer_that_never_answers_is_given_up(decode, prefill, memory, monkeypatch):
    monkeypatch.setattr(block_links, "OPEN_SECONDS", 0.05)
    with socket.create_server(("127.0.0.3", 0)) as silent:
        port = silent.getsockname()[1]
        writer = prefill.open_writer(request(decode, memory, port=port), SIZE, lambda: None)
        assert problem_of(writer)


def test_silent_connections_keep_no_sender_out(decode, prefill, memory, reports, monkeypatch):
    where = ("127.0.0.3", decode.listener.port)
    silent = [
        socket.create_connection(where, PATIENCE) for _ in range(block_listener.MAX_PENDING + 8)
    ]
    eventually(lambda: len(decode.listener._pending) == block_listener.MAX_PENDING)
    writer = prefill.open_writer(request(decode, memory), SIZE, lambda: None)
    write(writer, 0, COUNT)
    writer.finish()
    eventually(lambda: writer.is_done)
    assert reports[-1].written.count == COUNT
    for connection in silent:
        connection.close()
