"""Clients that break the rules of HTTP/2 or flood the server, frame by frame.

Each is answered with the error code that RFC 9113 names, and costs no other connection.
"""

import socket
import struct
from contextlib import ExitStack

import hpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.frontends.http2.budget import LIMIT
from mindspore_serving.frontends.http2.connection import MAX_FRAME
from mindspore_serving.frontends.http2.frames import PREFACE, ErrorCode, FrameType
from mindspore_serving.frontends.http2.stream import RECEIVE_WINDOW
from tests.frontends.http_serving import GET, Web
from tests.waiting import PATIENCE, eventually

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PROMISE, PING, GOAWAY, WINDOW, CONTINUATION = range(
    10
)
END_STREAM, END_HEADERS, PADDED, HAS_PRIORITY = 1, 4, 8, 32
MAX_HEAD = 4096


def framed(kind, flags=0, stream=0, payload=b"", size=None):
    size = len(payload) if size is None else size
    return struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def request(stream=1, *more, path="/health", method="GET", flags=END_HEADERS | END_STREAM):
    fields = [(":method", method), (":scheme", "http"), (":authority", "x"), (":path", path), *more]
    return framed(HEADERS, flags, stream, block_of(*fields))


def block_of(*fields):
    return hpack.Encoder().encode(fields)


def post(stream=1, *more):
    return request(stream, *more, path="/model/add:m", method="POST", flags=END_HEADERS)


class RawClient:
    """A connection that sends frames as they are told, and reads those of the server."""

    def __init__(self, web, greets=True):
        self.socket = socket.create_connection(("127.0.0.1", web.port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frames, self.is_open, self._rest = [], True, b""
        if greets:
            self.send(PREFACE + framed(SETTINGS))

    def send(self, *frames):
        for frame in frames:
            try:
                self.socket.sendall(frame)
            except OSError:
                return  # the server has closed; what it said is there to be read
        return

    def read(self, until=None):
        """Read frames until `until(frame)`, or to the end, and return the last."""
        while True:
            while len(self._rest) >= 9:
                size = int.from_bytes(self._rest[:3], "big")
                if len(self._rest) < 9 + size:
                    break
                kind, flags, stream = struct.unpack(">BBI", self._rest[3:9])
                frame = (kind, flags, stream, self._rest[9 : 9 + size])
                self._rest = self._rest[9 + size :]
                self.frames.append(frame)
                if until is not None and until(frame):
                    return frame
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return self.frames[-1] if self.frames else None
            self._rest += data

    def code_of_goaway(self):
        """The reason that the server gives for the end of the connection."""
        kind, _, _, payload = self.read()
        assert kind == GOAWAY
        return ErrorCode(int.from_bytes(payload[4:8], "big")).name

    def code_of_reset(self, stream=1):
        frame = self.read(lambda frame: frame[0] in (RST_STREAM, GOAWAY))
        assert (frame[0], frame[2]) == (RST_STREAM, stream)
        return ErrorCode(int.from_bytes(frame[3], "big")).name

    def is_served(self, stream):
        """Whether a request on this connection is answered."""
        self.send(request(stream))
        frame = self.read(lambda frame: frame[0] == GOAWAY or frame[:3:2] == (HEADERS, stream))
        return frame[0] == HEADERS


@pytest.fixture
def small(background):
    """A server with small limits."""
    limits = ServerLimits(max_head=MAX_HEAD, max_headers=10, max_streams=4)
    made = Web(background, limits=limits, use_status_codes=True)
    yield made
    made.close()


@pytest.fixture
def connect():
    """A function that connects to a server, until the test ends."""
    with ExitStack() as closing:

        def make(web, greets=True):
            made = RawClient(web, greets)
            closing.callback(made.socket.close)
            return made

        yield make


@pytest.fixture
def client(small, connect):
    return connect(small)


# --- the beginning --------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, len(PREFACE)))
def test_the_preface_may_be_cut_anywhere(small, cut, connect):
    client = connect(small, greets=False)
    client.send(PREFACE[:cut])
    small.turn()
    client.send(PREFACE[cut:] + framed(SETTINGS))
    assert client.is_served(1)


def test_a_request_that_begins_like_the_preface_is_http1(small):
    answer = small.connect().send(b"P", b"UT /nothing HTTP/1.1\r\nHost: x\r\n\r\n").read()
    assert answer[0] == 404


def test_http1_is_served_beside(small, client):
    assert client.is_served(1)
    assert small.connect().send(GET).read()[0] == 200


@pytest.mark.parametrize("first", [framed(PING, payload=bytes(8)), framed(SETTINGS, 1), request()])
def test_the_first_frame_has_to_be_settings(small, first, connect):
    client = connect(small, greets=False)
    client.send(PREFACE + first)
    assert client.code_of_goaway() == "PROTOCOL_ERROR"


# --- violations that end the connection -----------------------------------------------------------

VIOLATIONS = {
    "DATA without a stream": (framed(DATA, 0, 0, b"x"), "PROTOCOL_ERROR"),
    "DATA of an idle stream": (framed(DATA, 0, 1, b"x"), "PROTOCOL_ERROR"),
    "DATA with too much padding": (post() + framed(DATA, PADDED, 1, b"\x05ab"), "PROTOCOL_ERROR"),
    "DATA of a closed stream": (
        request() + framed(RST_STREAM, 0, 1, bytes(4)) + framed(DATA, 0, 1, b"x"),
        "STREAM_CLOSED",
    ),
    "HEADERS without a stream": (request(0), "PROTOCOL_ERROR"),
    "HEADERS of an even stream": (request(2), "PROTOCOL_ERROR"),
    "HEADERS that depend on their stream": (
        framed(HEADERS, END_HEADERS | HAS_PRIORITY, 1, b"\0\0\0\x01\0"),
        "PROTOCOL_ERROR",
    ),
    "HEADERS with a cut priority": (
        framed(HEADERS, END_HEADERS | HAS_PRIORITY, 1, b"\0\0"),
        "FRAME_SIZE_ERROR",
    ),
    "HEADERS of a closed stream": (
        request(3) + framed(RST_STREAM, 0, 3, bytes(4)) + request(1),
        "STREAM_CLOSED",
    ),
    "a block that no table explains": (
        framed(HEADERS, END_HEADERS | END_STREAM, 1, b"\xff\xff\xff\xff"),
        "COMPRESSION_ERROR",
    ),
    "a table that is larger than agreed": (
        framed(HEADERS, END_HEADERS | END_STREAM, 1, b"\x3f\xe1\xff\x03"),
        "COMPRESSION_ERROR",
    ),
    "a block that another frame interrupts": (
        framed(HEADERS, 0, 1, block_of((":method", "GET"))) + framed(PING, 0, 0, bytes(8)),
        "PROTOCOL_ERROR",
    ),
    "a block that DATA interrupts": (
        framed(HEADERS, 0, 1, block_of((":method", "GET"))) + framed(DATA, 0, 1, b"x"),
        "PROTOCOL_ERROR",
    ),
    "CONTINUATION of another stream": (
        framed(HEADERS, 0, 1, b"") + framed(CONTINUATION, END_HEADERS, 3, b""),
        "PROTOCOL_ERROR",
    ),
    "CONTINUATION of no block": (framed(CONTINUATION, END_HEADERS, 1, b""), "PROTOCOL_ERROR"),
    "PRIORITY without a stream": (framed(PRIORITY, 0, 0, bytes(5)), "PROTOCOL_ERROR"),
    "PRIORITY that is cut": (framed(PRIORITY, 0, 1, bytes(4)), "FRAME_SIZE_ERROR"),
    "RST_STREAM of an idle stream": (framed(RST_STREAM, 0, 1, bytes(4)), "PROTOCOL_ERROR"),
    "RST_STREAM that is cut": (framed(RST_STREAM, 0, 1, bytes(3)), "FRAME_SIZE_ERROR"),
    "SETTINGS of a stream": (framed(SETTINGS, 0, 1), "PROTOCOL_ERROR"),
    "SETTINGS that are cut": (framed(SETTINGS, 0, 0, bytes(5)), "FRAME_SIZE_ERROR"),
    "an acknowledgement with settings": (framed(SETTINGS, 1, 0, bytes(6)), "FRAME_SIZE_ERROR"),
    "ENABLE_PUSH of 2": (framed(SETTINGS, 0, 0, b"\0\x02\0\0\0\x02"), "PROTOCOL_ERROR"),
    "a window over 2^31-1": (
        framed(SETTINGS, 0, 0, b"\0\x04\x80\0\0\0"),
        "FLOW_CONTROL_ERROR",
    ),
    "MAX_FRAME_SIZE below 2^14": (framed(SETTINGS, 0, 0, b"\0\x05\0\0\0\x01"), "PROTOCOL_ERROR"),
    "PUSH_PROMISE": (framed(PROMISE, END_HEADERS, 1, bytes(4)), "PROTOCOL_ERROR"),
    "PING of a stream": (framed(PING, 0, 1, bytes(8)), "PROTOCOL_ERROR"),
    "PING that is cut": (framed(PING, 0, 0, bytes(7)), "FRAME_SIZE_ERROR"),
    "GOAWAY of a stream": (framed(GOAWAY, 0, 1, bytes(8)), "PROTOCOL_ERROR"),
    "GOAWAY that is cut": (framed(GOAWAY, 0, 0, bytes(7)), "FRAME_SIZE_ERROR"),
    "WINDOW_UPDATE of 0": (framed(WINDOW, 0, 0, bytes(4)), "PROTOCOL_ERROR"),
    "WINDOW_UPDATE beyond 2^31-1": (
        framed(WINDOW, 0, 0, b"\x7f\xff\xff\xff"),
        "FLOW_CONTROL_ERROR",
    ),
    "WINDOW_UPDATE of an idle stream": (framed(WINDOW, 0, 1, b"\0\0\0\x01"), "PROTOCOL_ERROR"),
    "WINDOW_UPDATE that is cut": (framed(WINDOW, 0, 0, bytes(3)), "FRAME_SIZE_ERROR"),
    "a frame over the limit": (framed(DATA, 0, 1, b"", MAX_FRAME + 1), "FRAME_SIZE_ERROR"),
}


@pytest.mark.parametrize(("frames", "code"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_violation_ends_the_connection_with_its_code(client, frames, code):
    client.send(frames)
    assert client.code_of_goaway() == code


# --- violations that end a stream -----------------------------------------------------------------

LENGTH = ("content-length", "5")
MALFORMED = {
    "no method": framed(HEADERS, 5, 1, block_of((":scheme", "http"), (":path", "/"))),
    "no path": framed(HEADERS, 5, 1, block_of((":method", "GET"), (":scheme", "http"))),
    "an empty path": request(path=""),
    "a method twice": request(1, (":method", "GET")),
    "an unknown pseudo-header": request(1, (":protocol", "websocket")),
    "a pseudo-header of answers": request(1, (":status", "200")),
    "a pseudo-header after a header": request(1, ("x", "y"), (":scheme", "http")),
    "a name in upper case": request(1, ("X-Name", "y")),
    "a name with a space": request(1, ("x name", "y")),
    "an empty name": request(1, ("", "y")),
    "a value with a line end": request(1, ("x", "a\r\nb: c")),
    "a value with NUL": request(1, ("x", "a\0b")),
    "a path with a line end": request(path="/a\r\nb"),
    "connection": request(1, ("connection", "close")),
    "transfer-encoding": request(1, ("transfer-encoding", "chunked")),
    "upgrade": request(1, ("upgrade", "h2c")),
    "te": request(1, ("te", "gzip")),
    "a content-length that is no number": request(1, ("content-length", "five")),
    "two lengths": request(1, LENGTH, ("content-length", "6")),
    "a body that is too long": post(1, LENGTH) + framed(DATA, 0, 1, b"123456"),
    "a body that is cut": post(1, LENGTH) + framed(DATA, END_STREAM, 1, b"1234"),
    "no body where one is announced": request(1, LENGTH),
    "trailers that end nothing": post() + framed(HEADERS, END_HEADERS, 1, block_of(("x", "y"))),
    "trailers with a pseudo-header": post() + framed(HEADERS, 5, 1, block_of((":path", "/"))),
    "a window of 0 more": post() + framed(WINDOW, 0, 1, bytes(4)),
}


@pytest.mark.parametrize("frames", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_is_reset_and_the_next_is_served(client, frames):
    client.send(frames)
    assert client.code_of_reset() == "PROTOCOL_ERROR"
    assert client.is_served(3)


def test_a_window_that_overflows_ends_its_stream(client):
    client.send(post(), framed(WINDOW, 0, 1, b"\x7f\xff\xff\xff"))
    assert client.code_of_reset() == "FLOW_CONTROL_ERROR"


def test_data_after_the_end_of_a_request_ends_its_stream(small, client):
    small.inference.holds = True
    client.send(post(), framed(DATA, END_STREAM, 1, b"{}"), framed(DATA, 0, 1, b"x"))
    assert client.code_of_reset() == "STREAM_CLOSED"


def test_a_client_that_ignores_the_window_of_a_stream_is_stopped(background, connect):
    web = Web(background, max_body=4 * RECEIVE_WINDOW)
    client = connect(web)
    client.send(request(1, path="/model/add:m", method="POST", flags=END_HEADERS))
    part = framed(DATA, 0, 1, bytes(MAX_FRAME))
    client.read(lambda frame: frame[0] == SETTINGS)
    web.turn()
    for connection in web.server.shared.connections:
        web.background.run(hold_credit(connection))
    client.send(*[part] * (RECEIVE_WINDOW // MAX_FRAME + 1))
    assert client.code_of_reset() == "FLOW_CONTROL_ERROR"
    web.close()


async def hold_credit(connection):
    for stream in connection.streams:
        stream.flow.pause_reading()


# --- limits ---------------------------------------------------------------------------------------


def test_more_streams_than_allowed_are_refused(small, client):
    small.inference.holds = True
    client.send(*[post(n) + framed(DATA, END_STREAM, n, b"{}") for n in (1, 3, 5, 7, 9)])
    assert client.code_of_reset(9) == "REFUSED_STREAM"
    assert len(small.inference.calls) == 4


def test_beginnings_of_many_bodies_count_in_the_memory_limit(background, connect):
    """Each stream has 64 KiB that its exchange does not count; 1,024 of them would be 64 MB."""
    limits = ServerLimits(max_body_memory=2 << 20)
    web = Web(background, limits=limits, max_body=1 << 20)
    client = connect(web)
    body = framed(DATA, 0, 0, bytes(16_000))[9:]
    for stream in range(1, 401, 2):
        head = request(stream, path="/model/add:m", method="POST", flags=END_HEADERS)
        client.send(head + framed(DATA, 0, stream, body))
    frame = client.read(lambda frame: frame[0] in (RST_STREAM, GOAWAY))
    assert ErrorCode(int.from_bytes(frame[3][:4], "big")).name == "ENHANCE_YOUR_CALM"
    assert frame[0] == RST_STREAM
    client.socket.close()
    eventually(lambda: not web.server.shared.connections)
    assert (web.held, web.server.shared.streams.used) == (0, 0)
    web.close()


def test_streams_of_all_connections_have_a_limit(background, connect, monkeypatch):
    monkeypatch.setattr("mindspore_serving.frontends.http.shared.MAX_STREAMS", 8)
    web = Web(background)
    client = connect(web)
    client.send(*[post(stream) for stream in range(1, 19, 2)])
    frame = client.read(lambda frame: frame[0] in (RST_STREAM, GOAWAY))
    assert (frame[0], int.from_bytes(frame[3], "big")) == (RST_STREAM, ErrorCode.REFUSED_STREAM)
    other = connect(web)
    assert other.is_served(1)
    web.close()


def test_a_head_over_the_limit_is_answered_431(client):
    large = [(f"x-{n}", "y" * 800) for n in range(6)]
    client.send(request(1, *large))
    frame = client.read(lambda frame: frame[0] in (HEADERS, GOAWAY))
    assert frame[0] == GOAWAY or b"431" in frame[3]


def test_more_headers_than_allowed_are_answered_431(client):
    client.send(request(1, *[(f"x{n}", "y") for n in range(11)]))
    assert b"431" in client.read(lambda frame: frame[0] == HEADERS)[3]
    assert client.is_served(3)


def test_a_small_block_that_swells_is_refused_while_decoded(client):
    """An entry of the table of 3 KB, which one byte repeats (CVE-2016-6581)."""
    first = hpack.Encoder()
    fields = [(":method", "GET"), (":scheme", "http"), (":path", "/health"), ("x", "y" * 3000)]
    block = first.encode(fields)
    client.send(framed(HEADERS, 5, 1, block))
    client.read(lambda frame: frame[0] == HEADERS)
    client.send(framed(HEADERS, 5, 3, b"\xbe" * 3000))
    assert client.code_of_goaway() == "ENHANCE_YOUR_CALM"


def test_continuations_without_end_are_refused(client):
    """CVE-2024-27316 and its kin: the block of a head that never ends."""
    part = framed(CONTINUATION, 0, 1, b"\0\x01x\x01y" * 100)
    client.send(framed(HEADERS, 0, 1, b""), *[part] * 20)
    assert client.code_of_goaway() == "ENHANCE_YOUR_CALM"


# --- floods ---------------------------------------------------------------------------------------

FLOODS = {
    "resets (CVE-2023-44487)": [
        post(n) + framed(RST_STREAM, 0, n, bytes(4)) for n in range(1, LIMIT, 2)
    ],
    "resets of our own (CVE-2025-8671)": [
        post(n) + framed(WINDOW, 0, n, bytes(4)) for n in range(1, LIMIT, 2)
    ],
    "pings (CVE-2019-9512)": [framed(PING, 0, 0, bytes(8))] * (LIMIT + 1),
    "settings (CVE-2019-9515)": [framed(SETTINGS)] * (LIMIT + 1),
    "empty data (CVE-2019-9518)": [post(), *[framed(DATA, 0, 1)] * (LIMIT + 1)],
    "empty continuations (CVE-2019-9518)": [
        framed(HEADERS, 0, 1),
        *[framed(CONTINUATION, 0, 1)] * (LIMIT + 1),
    ],
    "priorities (CVE-2019-9513)": [framed(PRIORITY, 0, 1, bytes(5))] * (LIMIT + 1),
    "unknown frames": [framed(200, 0, 0, b"x")] * (LIMIT + 1),
    "padding alone": [post(), *[framed(DATA, PADDED, 1, b"\x01\0")] * (LIMIT + 1)],
    "window updates": [framed(WINDOW, 0, 0, b"\0\0\0\x01")] * (LIMIT + 1),
}


@pytest.mark.parametrize("frames", FLOODS.values(), ids=FLOODS)
def test_a_flood_ends_its_connection(small, frames, connect):
    client = connect(small)
    client.send(b"".join(frames))
    assert client.code_of_goaway() == "ENHANCE_YOUR_CALM"
    eventually(lambda: not any(each.streams for each in small.server.shared.connections))


def test_a_window_of_single_bytes_ends_its_connection(background, connect):
    """CVE-2019-9511: an answer that is read byte by byte."""
    web = Web(background)
    client = connect(web)
    client.send(framed(SETTINGS, 0, 0, b"\0\x04\0\0\0\0"), request(1, path="/openapi.json"))
    client.send(request(3, path="/page/app.css"))
    client.send(b"".join([framed(WINDOW, 0, 3, b"\0\0\0\x01")] * (LIMIT + 100)))
    assert client.code_of_goaway() == "ENHANCE_YOUR_CALM"
    web.close()


def test_a_client_that_cancels_now_and_then_is_served(small, client):
    small.inference.holds = True
    for stream in range(1, 200, 4):
        client.send(post(stream), framed(RST_STREAM, 0, stream, b"\0\0\0\x08"))
        assert client.is_served(stream + 2)


def test_the_budget_is_filled_again_with_time(small, client):
    for _ in range(3):
        client.send(b"".join([framed(PING, 0, 0, bytes(8))] * 300))
        small.turn()
        small.sweep(0.0)
    assert client.is_served(1)


# --- anything -------------------------------------------------------------------------------------

KINDS = st.sampled_from([*FrameType, 200])
STREAMS = st.sampled_from([0, 1, 2, 3, 5, 2**31 - 1])
PAYLOADS = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([request()[9:], post()[9:], bytes(4), bytes(5), bytes(6), bytes(8)]),
)
FRAMES = st.builds(framed, KINDS, st.integers(0, 255), STREAMS, PAYLOADS)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.one_of(FRAMES, st.just(request(1)), st.binary(max_size=30)), max_size=12))
def test_any_frames_leave_the_server_whole(small, connect, frames):
    client = connect(small)
    client.send(b"".join(frames))
    client.socket.shutdown(socket.SHUT_WR)
    client.read()
    client.socket.close()
    eventually(lambda: not small.server.shared.connections)
    assert small.held == 0
    beside = small.connect()
    assert beside.send(GET).read()[0] == 200
    beside.stream.close()
