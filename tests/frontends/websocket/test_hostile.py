"""Clients that break the rules of RFC 6455 or its limits, frame by frame.

Each gets the close code that the RFC names, and costs no other client.
"""

from contextlib import closing, contextmanager
from threading import Thread

import pytest
from wsproto.events import Ping, Pong, TextMessage

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.frontends.websocket.socket import MAX_FRAMES
from tests.frontends.http_serving import GET
from tests.frontends.websocket.serving import (
    MAX_MESSAGE,
    RawSocket,
    echoing,
    framed,
    handshake,
)
from tests.waiting import PATIENCE, eventually

CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


@pytest.fixture
def web(background):
    made = echoing(background, ServerLimits(max_body_memory=1 << 20))
    yield made
    made.close()


@pytest.fixture
def connect(web):
    made = []

    def open_socket(**options):
        made.append(RawSocket(web, **options))
        return made[-1]

    yield open_socket
    for client in made:
        client.close()


def is_served(connect):
    """Whether another client is answered."""
    client = connect().send(framed(TEXT, b"hello"))
    return client.event() == TextMessage("hello")


# --- the handshake --------------------------------------------------------------------------------

WRONG = {
    "no key": (handshake(Sec_WebSocket_Key=None), 400),
    "a short key": (handshake(Sec_WebSocket_Key="YQ=="), 400),
    "a key that is no base64": (handshake(Sec_WebSocket_Key="!" * 24), 400),
    "an old version": (handshake(Sec_WebSocket_Version="8"), 426),
    "no version": (handshake(Sec_WebSocket_Version=None), 426),
    "no upgrade": (handshake(Upgrade=None), 426),
    "another upgrade": (handshake(Upgrade="h2c"), 426),
    "no connection": (handshake(Connection=None), 426),
    "a body": (handshake(Content_Length="5") + b"hello", 426),
    "HTTP/1.0": (handshake().replace(b"HTTP/1.1", b"HTTP/1.0"), 426),
    "POST": (handshake().replace(b"GET", b"POST"), 405),
    "another path": (handshake().replace(b"/v1/realtime", b"/v1/realtimes"), 404),
}


@pytest.mark.parametrize(("head", "status"), WRONG.values(), ids=WRONG)
def test_a_wrong_handshake_is_refused_in_http(connect, head, status):
    client = connect(head=head)
    assert client.status == status
    assert (b"sec-websocket-version: 13" in client.head) == (status == 426)
    assert is_served(connect)


def test_the_accepting_answer_is_that_of_the_rfc(connect):
    client = connect(head=handshake(Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ=="))
    lines = client.head.decode().lower().split("\r\n")
    assert client.status == 101
    assert "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in lines  # RFC 6455, 1.3
    assert {"upgrade: websocket", "connection: upgrade"} <= {*lines}
    assert not any(line.startswith(("content-length", "transfer-encoding")) for line in lines)
    assert not any(line.startswith("sec-websocket-ext") for line in lines)


def test_frames_with_the_handshake_and_after_an_answer_are_read(connect, web):
    client = connect(after=framed(TEXT, b"early"))
    assert client.event() == TextMessage("early")
    raw = web.connect().stream
    raw.sendall(GET + handshake() + framed(TEXT, b"second"))
    data = b""
    while b"second" not in data:
        data += raw.recv(65536)
    assert data.index(b"HTTP/1.1 200") < data.index(b"HTTP/1.1 101") < data.index(b"second")


def test_compression_is_not_accepted(connect):
    client = connect(head=handshake(Sec_WebSocket_Extensions="permessage-deflate"))
    assert b"extensions" not in client.head.lower()
    assert client.send(framed(TEXT, b"\xcbH\xcd", bits=4)).closing().code == 1002


# --- frames ---------------------------------------------------------------------------------------

ENDED = {
    "an unmasked frame": ([framed(TEXT, b"hi", mask=None)], 1002),
    "a reserved bit": ([framed(TEXT, b"hi", bits=1)], 1002),
    "an unknown opcode": ([framed(3, b"hi")], 1002),
    "an unknown control opcode": ([framed(11)], 1002),
    "a length of 2^63": ([framed(BINARY, size=1 << 63)], 1002),
    "a length that is not the shortest": ([b"\x82\xfe\x00\x05\0\0\0\0hello"], 1002),
    "a long control frame": ([framed(PING, bytes(126))], 1002),
    "a fragmented ping": ([framed(PING, b"x", is_last=False)], 1002),
    "a fragmented close": ([framed(CLOSE, b"\x03\xe8", is_last=False)], 1002),
    "a continuation of nothing": ([framed(CONTINUED, b"x")], 1002),
    "a text inside a text": ([framed(TEXT, b"a", is_last=False), framed(TEXT, b"b")], 1002),
    "text that is no UTF-8": ([framed(TEXT, b"\xff\xfe")], 1007),
    "text that ends inside a character": ([framed(TEXT, "é".encode()[:1])], 1007),
    "a close of one byte": ([framed(CLOSE, b"\x03")], 1002),
    "a close with a forbidden code": ([framed(CLOSE, (1005).to_bytes(2, "big"))], 1002),
    "a close whose reason is no UTF-8": ([framed(CLOSE, b"\x03\xe8\xff")], 1007),
    "a large message": ([framed(TEXT, b"x" * (MAX_MESSAGE + 1))], 1009),
    "a large message in parts": (
        [framed(TEXT, b"x" * 60_000, is_last=False), framed(CONTINUED, b"x" * 60_000)],
        1009,
    ),
    "a long frame that is not sent": (
        [framed(BINARY, b"x" * (MAX_MESSAGE + 1), size=1 << 40)],
        1009,
    ),
    "fragments without end": (
        [framed(TEXT, is_last=False), framed(CONTINUED, is_last=False) * (MAX_FRAMES + 1)],
        1008,
    ),
    "a flood of pings": ([framed(PING, b"x") * (MAX_FRAMES + 1)], 1008),
    "a flood of pongs": ([framed(PONG) * (MAX_FRAMES + 1)], 1008),
}


@pytest.mark.parametrize(("frames", "code"), ENDED.values(), ids=ENDED)
def test_a_wrong_frame_ends_the_connection(connect, frames, code, web):
    client = connect().send(*frames)
    ended = client.closing()
    assert (ended.code, bool(ended.reason)) == (code, True)
    assert client.event() is None
    assert is_served(connect)
    eventually(lambda: web.held == 0)


def test_messages_may_be_cut_anywhere(connect):
    client, whole = connect(), framed(TEXT, "größer".encode())
    for cut in range(1, len(whole)):
        client.send(whole[:cut], whole[cut:])
        assert client.event().data == "größer"
    parts = [framed(TEXT, b"a", is_last=False), framed(PING, b"?"), framed(CONTINUED, b"b")]
    client.send(*parts)
    assert client.event() == Pong(bytearray(b"?"))
    assert client.event().data == "ab"
    client.send(framed(BINARY, bytes(1000)))
    assert client.event().data == "bytes 1000"


def test_the_largest_message_is_taken(connect):
    client = connect().send(framed(TEXT, b"x" * MAX_MESSAGE))
    text = ""
    while len(text) < MAX_MESSAGE:
        text += client.event().data
    assert text == "x" * MAX_MESSAGE


def test_a_closing_handshake_has_the_code_of_the_client(connect):
    for payload, code in ((b"", 1005), (b"\x03\xe8bye", 1000), (b"\x0f\xa0", 4000)):
        client = connect().send(framed(CLOSE, payload))
        assert client.closing().code == code
        assert client.event() is None


def test_a_client_that_leaves_is_forgotten(connect, web):
    client = connect().send(framed(TEXT, b"x" * 50_000, is_last=False))
    eventually(lambda: web.held >= 50_000)
    client.close()
    counts = web.server.shared.responses.counts
    eventually(lambda: counts["openai", 499])
    assert (web.held, counts["openai", 499]) == (0, 1)


# --- the application, and limits ------------------------------------------------------------------


def test_a_failure_of_the_application_is_told(connect):
    assert connect().send(framed(TEXT, b"fail")).closing().code == 1011
    assert connect().send(framed(TEXT, b"end")).closing().code == 1000
    assert is_served(connect)


def test_messages_count_in_the_memory_of_all_clients(connect, web):
    part = framed(TEXT, b"x" * 90_000, is_last=False)
    counts = web.server.shared.responses.counts
    clients = [connect().send(part) for _ in range(12)]
    for client in clients[4:]:  # the quota of an address has no room for them all
        client.send(framed(CLOSE))
    codes = [client.closing().code for client in clients[4:]]
    assert 1013 in codes
    assert {*codes} <= {1005, 1013}
    assert web.held <= 1 << 20
    eventually(lambda: counts["openai", 101] == len(codes))


@contextmanager
def alone(background, *options, **keepalive):
    """A server and its only client."""
    with (
        closing(echoing(background, *options, **keepalive)) as web,
        closing(RawSocket(web)) as client,
    ):
        yield web, client


def test_a_client_that_does_not_read_is_disconnected(background):
    with alone(background, ServerLimits(linger_timeout=0.1)) as (web, client):
        client.send(framed(TEXT, b"flood"))
        (connection,) = web.server.shared.connections
        eventually(lambda: connection.transport.is_closing())
        assert connection.num_unsent > 0
        web.sweep(1.0, 200.0)  # as long as an answer may stay unread
        eventually(lambda: not web.server.shared.connections)
        assert web.server.shared.responses.counts["openai", 101] == 1


def test_a_silent_client_is_pinged_and_disconnected(background):
    with alone(background, keepalive=(0.01, 0.01)) as (_, client):
        assert isinstance(client.event(), Ping)
        ended = client.closing()
        assert ended.code == 1011
        assert "no answer to a ping" in ended.reason


def test_a_client_that_answers_pings_stays(background):
    with alone(background, keepalive=(0.01, 1000.0)) as (_, client):
        for _ in range(3):
            assert isinstance(client.event(), Ping)
            client.send(framed(PONG))


def test_a_client_without_a_message_is_disconnected(background):
    with alone(background, ServerLimits(stream_idle_timeout=0.2)) as (_, client):
        ended = client.closing()
        assert (ended.code, ended.reason) == (1008, "no message within 0.2 seconds")


def test_a_websocket_may_last_as_long_as_a_request(background):
    with alone(background) as (web, client):
        for times in ((1.0, 700.0), ()):  # longer than a body may take, or a client be silent
            client.send(framed(TEXT, b"a"))
            assert client.event() == TextMessage("a")
            web.sweep(*times)
        web.sweep(1.0, 3700.0)
        ended = client.closing()
        assert (ended.code, ended.reason) == (1001, "no answer within 3600 seconds")


def test_a_stopping_server_closes_with_1001(background):
    with alone(background) as (web, client):
        stopping = Thread(target=lambda: background.run(web.server.stop(grace=PATIENCE)))
        stopping.start()
        ended = client.closing()
        assert (ended.code, ended.reason) == (1001, "the server is stopping")
        client.send(framed(CLOSE, b"\x03\xe9"))
        assert client.event() is None
        client.close()
        stopping.join()
        assert not web.server.shared.connections
