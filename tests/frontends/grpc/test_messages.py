"""Messages of gRPC on our own HTTP/2, byte by byte: framing, compression, metadata, deadlines."""

import asyncio
import gzip
import zlib
from contextlib import suppress

import grpc
import h2.exceptions
import pytest

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.frontends.address import Address
from mindspore_serving.frontends.grpc.http2_server import GrpcMethods, Http2GrpcServer
from tests.frontends.http2.peer import Peer
from tests.waiting import eventually

LARGEST = 100_000
SERVICE = "test.Service"
Code = grpc.StatusCode


class Seen:
    """What the methods below were told."""

    def __init__(self):
        self.metadata, self.remaining, self.num_running = (), None, 0


SEEN = Seen()


async def echo(_, context):
    SEEN.metadata, SEEN.remaining = context.invocation_metadata(), context.time_remaining()
    message = await context.read()
    context.set_trailing_metadata((("x-text", "a"), ("x-bytes-bin", b"\0\1")))
    return message if message is not None else b"nothing"


async def repeat(_, context):
    while (message := await context.read()) is not None:
        yield message
        yield message


async def refuse(_, context):
    await context.abort(Code.FAILED_PRECONDITION, "50 % of \u03c0\nis missing")


async def fail(_, context):
    raise ZeroDivisionError("a bug of ours")


async def wait(_, context):
    SEEN.num_running += 1
    try:
        await context.read()
        await context.read()
    finally:
        SEEN.num_running -= 1
    return b""


async def read_nothing(_, context):
    SEEN.num_running += 1
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        SEEN.num_running -= 1


@pytest.fixture(scope="module")
def server(background):
    methods = {
        each.__name__: grpc.stream_unary_rpc_method_handler(each)
        for each in (echo, refuse, fail, wait, read_nothing)
    }
    methods["repeat"] = grpc.stream_stream_rpc_method_handler(repeat)
    handlers = [grpc.method_handlers_generic_handler(SERVICE, methods)]
    made = Http2GrpcServer(
        Address("127.0.0.1:0", "127.0.0.1", 0),
        GrpcMethods(handlers, LARGEST),
        ServerLimits(max_body_memory=4 << 20),
    )
    background.run(made.start(None))
    yield made
    background.run(made.stop(0.0))


@pytest.fixture
def peer(server):
    made = Peer(server.port)
    yield made
    made.close()


def framed(message, is_compressed=False):
    return bytes([is_compressed]) + len(message).to_bytes(4, "big") + message


def begin(peer, method, *headers):
    content = ("content-type", "application/grpc")
    path = f"/{SERVICE}/{method}"
    return peer.ask(content, ("te", "trailers"), *headers, path=path, method="POST", is_last=False)


def send(peer, number, *parts, is_last=True):
    for part in parts:
        peer.h2.send_data(number, part)
        peer.send()
    if is_last:
        peer.h2.end_stream(number)
        peer.send()


def called(peer, method, *parts, headers=()):
    """The messages of the answer, its status, and its fields."""
    number = begin(peer, method, *headers)
    send(peer, number, *parts)
    answer = peer.read(number)
    fields = dict(answer.fields)
    messages, body = [], answer.body
    while body:
        end = 5 + int.from_bytes(body[1:5], "big")
        messages.append(body[5:end])
        body = body[end:]
    return messages, next(c for c in Code if str(c.value[0]) == fields["grpc-status"]), fields


# --- framing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_message_may_be_cut_anywhere(peer, cut):
    data = framed(b"message")
    assert called(peer, "echo", data[:cut], data[cut:])[:2] == ([b"message"], Code.OK)


def test_several_messages_may_come_at_once(peer):
    data = framed(b"a") + framed(b"") + framed(b"bc")
    assert called(peer, "repeat", data)[0] == [b"a", b"a", b"", b"", b"bc", b"bc"]


def test_a_stream_of_large_messages_passes(peer):
    messages = [bytes([n]) * 60_000 for n in range(8)]
    number = begin(peer, "repeat")
    for message in messages:
        data = framed(message)
        for start in range(0, len(data), 16_000):
            send(peer, number, data[start : start + 16_000], is_last=False)
            peer.read(until=lambda: peer.h2.local_flow_control_window(number) > 32_000)
    send(peer, number)
    assert len(peer.read(number).body) == 16 * 60_005


def test_a_message_that_is_cut_is_no_message(peer):
    assert called(peer, "echo", framed(b"message")[:-1])[:2] == ([b"nothing"], Code.OK)


def test_a_size_over_the_limit_is_refused_before_the_message_comes(peer):
    number = begin(peer, "echo")
    send(peer, number, b"\0" + (1 << 31).to_bytes(4, "big"), is_last=False)
    peer.read(until=lambda: peer.answers[number].fields)
    assert dict(peer.answers[number].fields)["grpc-status"] == str(Code.RESOURCE_EXHAUSTED.value[0])
    send(peer, number)
    assert called(peer, "echo", framed(b"a"))[1] is Code.OK


def test_unread_messages_count_in_the_memory_limit(peer):
    """An empty message is five bytes on the wire, and many times that in memory."""
    number = begin(peer, "read_nothing")
    peer.read(until=lambda: peer.h2.local_flow_control_window(number) > 900_000)
    with suppress(h2.exceptions.StreamClosedError, h2.exceptions.ProtocolError):
        for _ in range(55):
            peer.read(until=lambda: peer.h2.local_flow_control_window(number) > 16_000)
            send(peer, number, framed(b"") * 3_200, is_last=False)
            if peer.answers[number].fields:
                break
    peer.read(until=lambda: peer.answers[number].fields)
    assert dict(peer.answers[number].fields)["grpc-status"] == str(Code.RESOURCE_EXHAUSTED.value[0])
    eventually(lambda: SEEN.num_running == 0)


# --- compression ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_a_compressed_message_is_read(peer, encoding, compress):
    headers = [("grpc-encoding", encoding)]
    data = framed(compress(b"x" * 1000), True) + framed(b"plain")
    messages, code, _ = called(peer, "repeat", data, headers=headers)
    assert (messages[::2], code) == ([b"x" * 1000, b"plain"], Code.OK)


def test_a_bomb_is_refused(peer):
    data = framed(gzip.compress(bytes(10 * LARGEST)), True)
    _, code, fields = called(peer, "echo", data, headers=[("grpc-encoding", "gzip")])
    assert (code, f"over {LARGEST} bytes" in fields["grpc-message"]) == (
        Code.RESOURCE_EXHAUSTED,
        True,
    )


def test_bytes_that_cannot_be_decompressed_are_refused(peer):
    headers = [("grpc-encoding", "gzip")]
    assert called(peer, "echo", framed(b"no gzip", True), headers=headers)[1] is Code.INTERNAL


def test_an_unknown_compression_is_refused(peer):
    _, code, fields = called(peer, "echo", framed(b"a"), headers=[("grpc-encoding", "zstd")])
    assert (code, fields["grpc-accept-encoding"]) == (
        Code.UNIMPLEMENTED,
        "identity,deflate,gzip",
    )


def test_a_compressed_message_without_its_encoding_is_refused(peer):
    assert called(peer, "echo", framed(b"a", True))[1] is Code.INTERNAL


# --- metadata and status --------------------------------------------------------------------------


def test_metadata_may_be_bytes(peer):
    headers = [("x-name", "value"), ("x-data-bin", "AAE")]
    fields = called(peer, "echo", framed(b"a"), headers=headers)[2]
    assert {("x-name", "value"), ("x-data-bin", b"\0\1")} <= set(SEEN.metadata)
    assert (fields["x-text"], fields["x-bytes-bin"]) == ("a", "AAE")


def test_metadata_that_is_no_base64_is_refused(peer):
    code = called(peer, "echo", framed(b"a"), headers=[("x-data-bin", "?")])[1]
    assert code is Code.INVALID_ARGUMENT


def test_metadata_over_the_limit_is_refused(peer):
    headers = [("x-large", "y" * ServerLimits().max_metadata)]
    assert called(peer, "echo", framed(b"a"), headers=headers)[1] is Code.RESOURCE_EXHAUSTED


def test_a_text_of_a_status_is_percent_encoded(peer):
    _, code, fields = called(peer, "refuse", framed(b"a"))
    expected = (Code.FAILED_PRECONDITION, "50 %25 of %CF%80%0Ais missing")
    assert (code, fields["grpc-message"]) == expected


def test_a_bug_of_a_method_tells_nothing_of_the_server(peer, capfd):
    _, code, fields = called(peer, "fail", framed(b"a"))
    assert (code, fields["grpc-message"]) == (Code.UNKNOWN, "the call failed")


def test_an_unknown_method_is_refused(peer):
    assert called(peer, "nothing", framed(b"a"))[1] is Code.UNIMPLEMENTED


@pytest.mark.parametrize(
    "headers", [[], [("content-type", "application/json")]], ids=["none", "json"]
)
def test_a_request_that_is_no_call_is_refused(peer, headers):
    assert peer.read(peer.ask(*headers, path=f"/{SERVICE}/echo", body=b"a")).status == 415


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "seconds"), [("2H", 7200), ("3M", 180), ("90S", 90)])
def test_a_deadline_is_told_to_the_method(peer, text, seconds):
    called(peer, "echo", framed(b"a"), headers=[("grpc-timeout", text)])
    assert abs(SEEN.remaining - seconds) < 60


@pytest.mark.parametrize("text", ["1m", "1000u", "1000000n"])
def test_a_deadline_that_passes_ends_the_method(peer, text):
    number = begin(peer, "wait", ("grpc-timeout", text))
    fields = dict(peer.read(number, until=lambda: peer.answers[number].fields).fields)
    assert fields["grpc-status"] == str(Code.DEADLINE_EXCEEDED.value[0])
    eventually(lambda: SEEN.num_running == 0)


@pytest.mark.parametrize("text", ["", "1", "S", "1s", "-1S", "999999999S", "1.5S"])
def test_a_timeout_of_another_form_is_refused(peer, text):
    assert called(peer, "echo", framed(b"a"), headers=[("grpc-timeout", text)])[1] is Code.INTERNAL


def test_a_call_that_is_reset_ends_its_method(peer):
    number = begin(peer, "wait")
    eventually(lambda: SEEN.num_running == 1)
    peer.h2.reset_stream(number, error_code=8)
    peer.send()
    eventually(lambda: SEEN.num_running == 0)
    assert called(peer, "echo", framed(b"a"))[1] is Code.OK  # the connection goes on


def test_a_lost_connection_ends_all_its_methods(server):
    peer = Peer(server.port)
    for _ in range(5):
        begin(peer, "wait")
    eventually(lambda: SEEN.num_running == 5)
    peer.close()
    eventually(lambda: SEEN.num_running == 0)
    assert server.shared.memory.used == 0
