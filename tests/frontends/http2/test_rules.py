"""Rules of RFC 9113 and RFC 7541 that a client can see, beside those of test_hostile.py.

rules.md has all of them, each with its test.
"""

import ast
import re
import struct
from pathlib import Path

import hpack
import pytest
from starlette.responses import Response
from starlette.routing import Route

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.frontends.http2.fields import FieldReader
from mindspore_serving.frontends.http2.frames import (
    MAX_WINDOW,
    PREFACE,
    ConnectionFault,
    ErrorCode,
    FrameType,
)
from tests.frontends.http2.peer import Peer
from tests.frontends.http2.test_hostile import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    LIMIT,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW,
    RawClient,
    block_of,
    framed,
    post,
    request,
)
from tests.frontends.http_serving import Web
from tests.waiting import eventually

ROUTES = [
    Route("/wide", lambda _: Response(b"", headers={"x-wide": "v" * 40_000})),
    Route("/large", lambda _: Response(b"x" * 3_000_000)),
]


@pytest.fixture
def web(background):
    made = Web(background, routes=ROUTES)
    yield made
    made.close()


@pytest.fixture
def client(web):
    made = RawClient(web)
    yield made
    made.socket.close()


def setting(name, value):
    return framed(SETTINGS, 0, 0, struct.pack(">HI", name, value))


# --- RFC 9113: frames and streams -----------------------------------------------------------------


def test_unknown_frames_flags_and_reserved_bits_are_ignored(client):
    client.send(framed(200, 0xFF, 2**31, b"x"), framed(PING, 0xFE, 2**31, b"12345678"))
    assert client.read(lambda frame: frame[0] == PING) == (PING, 1, 0, b"12345678")
    client.send(request(1, flags=END_HEADERS | END_STREAM | 0xC2))
    assert client.read(lambda frame: frame[0] == HEADERS)[2] == 1


def test_an_unknown_frame_in_a_field_block_ends_the_connection(client):
    client.send(framed(HEADERS, 0, 1, block_of((":method", "GET"))), framed(200, 0, 1, b""))
    assert client.code_of_goaway() == "PROTOCOL_ERROR"


def test_a_ping_is_answered_with_its_payload_and_an_answer_is_not(client):
    client.send(framed(PING, 1, 0, b"answered"), framed(PING, 0, 0, b"12345678"))
    assert client.read(lambda frame: frame[0] == PING) == (PING, 1, 0, b"12345678")


def test_settings_are_acknowledged_and_unknown_settings_ignored(client):
    client.send(setting(99, 7), setting(3, 0))
    for _ in range(3):  # those of the greeting, too
        assert client.read(lambda frame: frame[:2] == (SETTINGS, 1))[3] == b""
    assert client.is_served(1)


def test_the_server_begins_with_its_settings(web):
    client = RawClient(web, greets=False)
    client.send(PREFACE)
    kind, flags, stream, payload = client.read(lambda _: True)
    assert (kind, flags, stream) == (SETTINGS, 0, 0)
    pairs = dict(struct.iter_unpack(">HI", payload))
    assert pairs[3] == ServerLimits().max_streams
    assert (2 in pairs, pairs[8]) == (False, 1)  # no push, but WebSockets by CONNECT
    client.socket.close()


def test_late_frames_of_a_closed_stream_are_ignored(client):
    assert client.is_served(1)
    late = [framed(WINDOW, 0, 1, b"\0\0\0\x01"), framed(RST_STREAM, 0, 1, bytes(4))]
    client.send(*late, framed(PRIORITY, 0, 1, b"\0\0\0\0\x01"))
    assert client.is_served(3)


def test_numbers_of_streams_may_be_left_out_but_not_go_back(client):
    assert client.is_served(7)
    client.send(request(5))
    assert client.code_of_goaway() == "STREAM_CLOSED"


def test_goaway_names_the_last_stream(client):
    assert client.is_served(5)
    client.send(framed(SETTINGS, 0, 1))
    kind, _, _, payload = client.read()
    assert (kind, int.from_bytes(payload[:4], "big")) == (GOAWAY, 5)


def test_goaway_of_a_client_ends_no_request(web, client):
    web.inference.holds = True
    client.send(post(1), framed(DATA, END_STREAM, 1, b"{}"), framed(GOAWAY, 0, 0, bytes(8)))
    web.inference.wait_for(1)
    assert not web.inference.calls[0].is_cancelled


def test_the_text_of_goaway_is_short(client):
    client.send(framed(HEADERS, END_HEADERS | END_STREAM, 1, b"\0\x7f" + b"\xff" * 60_000))
    kind, _, _, payload = client.read()
    assert (kind, len(payload) <= 208) == (GOAWAY, True)


# --- RFC 9113: windows ----------------------------------------------------------------------------


def test_a_changed_window_counts_for_open_streams_and_may_be_negative(client):
    """RFC 9113, 6.9.2: 100 bytes are sent, then the window is 40, which leaves -60."""
    client.send(setting(4, 100), request(1, path="/large"))
    read = client.read(lambda frame: frame[0] == DATA)
    assert len(read[3]) == 100
    client.send(setting(4, 40), framed(WINDOW, 0, 1, struct.pack(">I", 60)))
    client.send(framed(PING, 0, 0, bytes(8)))
    assert client.read(lambda frame: frame[0] in (DATA, PING))[0] == PING
    client.send(framed(WINDOW, 0, 1, struct.pack(">I", 7)))
    assert len(client.read(lambda frame: frame[0] == DATA)[3]) == 7
    client.send(setting(4, 45))
    assert len(client.read(lambda frame: frame[0] == DATA)[3]) == 5


def test_a_changed_window_beyond_the_limit_ends_the_connection(client):
    client.send(request(1, path="/large"), framed(WINDOW, 0, 1, struct.pack(">I", 1)))
    client.send(framed(WINDOW, 0, 1, struct.pack(">I", 60_000)), setting(4, MAX_WINDOW))
    assert client.code_of_goaway() == "FLOW_CONTROL_ERROR"


def test_the_window_of_the_connection_holds_all_streams(client):
    client.send(setting(4, MAX_WINDOW), request(1, path="/large"), request(3, path="/large"))
    client.send(framed(PING, 0, 0, bytes(8)))
    client.read(lambda frame: frame[0] == PING)
    assert sum(len(frame[3]) for frame in client.frames if frame[0] == DATA) <= 65_535


def test_frames_are_as_large_as_the_client_allows(client):
    client.send(setting(4, MAX_WINDOW), setting(5, 50_000))
    client.send(framed(WINDOW, 0, 0, struct.pack(">I", MAX_WINDOW - 65_535)))
    client.send(request(1, path="/large"))
    client.read(lambda frame: frame[0] == DATA and frame[1] & END_STREAM)
    sizes = [len(frame[3]) for frame in client.frames if frame[0] == DATA]
    assert (max(sizes), sum(sizes)) == (50_000, 3_000_000)


def test_a_large_head_is_continued(web):
    peer = Peer(web.port)
    answer = peer.read(peer.ask(path="/wide"))
    assert dict(answer.fields)["x-wide"] == "v" * 40_000
    peer.close()
    client = RawClient(web)
    client.send(request(1, path="/wide"))
    client.read(lambda frame: frame[0] in (HEADERS, CONTINUATION) and frame[1] & END_HEADERS)
    assert [frame[0] for frame in client.frames].count(CONTINUATION) == 2
    assert max(len(frame[3]) for frame in client.frames) == 16_384
    client.socket.close()


# --- RFC 9113: requests ---------------------------------------------------------------------------

MALFORMED = {
    "a host that is not the authority": request(1, ("host", "other")),
    "a protocol without CONNECT": request(1, (":protocol", "websocket")),
    "keep-alive": request(1, ("keep-alive", "5")),
    "proxy-connection": request(1, ("proxy-connection", "x")),
}


@pytest.mark.parametrize("frames", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_is_reset(client, frames):
    client.send(frames)
    assert client.code_of_reset() == "PROTOCOL_ERROR"
    assert client.is_served(3)


def test_a_tunnel_is_refused(client):
    client.send(request(1, method="CONNECT"))
    assert b"\x03400" in client.read(lambda frame: frame[0] == HEADERS)[3] or (
        client.frames[-1][3].startswith((b" \x8c", b"\x8c"))
    )


def test_te_may_be_trailers(client):
    client.send(request(1, ("te", "trailers")))
    assert client.read(lambda frame: frame[0] in (HEADERS, RST_STREAM))[0] == HEADERS


# --- floods ---------------------------------------------------------------------------------------


def test_many_settings_in_a_frame_end_the_connection(client):
    """CVE-2020-11080: each of them could change the windows of all streams."""
    client.send(framed(SETTINGS, 0, 0, struct.pack(">HI", 4, 65_535) * 33))
    assert client.code_of_goaway() == "ENHANCE_YOUR_CALM"


FLOODS = {
    "resets that the server sends (CVE-2019-9514)": [
        request(n, ("X-Upper", "y")) for n in range(1, LIMIT, 2)
    ],
    "empty names (CVE-2019-9516)": [request(n, ("", "")) for n in range(1, LIMIT, 2)],
    "windows that overflow (CVE-2025-8671)": [
        post(n) + framed(WINDOW, 0, n, b"\x7f\xff\xff\xff") for n in range(1, LIMIT, 2)
    ],
    "data after the end (CVE-2025-8671)": [
        post(n) + framed(DATA, END_STREAM, n, b"{}") + framed(DATA, 0, n, b"x")
        for n in range(1, LIMIT, 2)
    ],
}


@pytest.mark.parametrize("frames", FLOODS.values(), ids=FLOODS)
def test_a_flood_ends_its_connection(web, client, frames):
    web.inference.holds = True
    client.send(b"".join(frames))
    assert client.code_of_goaway() == "ENHANCE_YOUR_CALM"


def test_answers_that_nobody_reads_have_a_limit(background):
    """CVE-2019-9517: windows are open, but the client reads nothing from its socket."""
    web = Web(background, limits=ServerLimits(max_unsent_memory=2 << 20), routes=ROUTES)
    clients = [RawClient(web) for _ in range(2)]
    for client in clients:
        client.send(setting(4, MAX_WINDOW))
        client.send(framed(WINDOW, 0, 0, struct.pack(">I", MAX_WINDOW - 65_535)))
    for stream in range(1, 21, 2):
        for client in clients:
            client.send(request(stream, path="/large"))
        web.turn()
    web.background.run(end_oldest(web))
    connections = web.server.shared.connections
    eventually(lambda: len(connections) < 2)
    assert len(connections) == 1, "one of the clients had to go, the other stays"
    for client in clients:
        client.socket.close()
    web.close()


async def end_oldest(web):
    web.server.shared.unsent.end_oldest()


# --- RFC 7541 -------------------------------------------------------------------------------------

GET = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")]
EXAMPLES = {  # of the RFC's appendix C: three requests in order, plain and by Huffman's code
    "C.3": (
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ),
    "C.4": (
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ),
}


@pytest.mark.parametrize("blocks", EXAMPLES.values(), ids=EXAMPLES)
def test_the_examples_of_the_rfc_are_decoded(blocks):
    reader = FieldReader(ServerLimits())
    heads = [reader.read_head(bytes.fromhex(block)) for block in blocks]
    assert [(head.method, head.target) for head in heads] == [
        (b"GET", b"/"),
        (b"GET", b"/"),
        (b"GET", b"/index.html"),
    ]
    host = (b"host", b"www.example.com")
    assert [head.headers for head in heads] == [
        [host],
        [host, (b"cache-control", b"no-cache")],
        [host, (b"custom-key", b"custom-value")],
    ]


UNREADABLE = {
    "index 0": b"\x80",
    "an index beyond the table": b"\xbe",
    "an integer without end": b"\xff" * 20,
    "a text that is cut": b"\0\x05abc",
    "padding that is not of ones": b"\0\x01x\x81\x18",
    "padding of 8 bits": b"\0\x01x\x82\x1f\xff",
    "EOS in a text": b"\0\x01x\x84\xff\xff\xff\xff",
    "a table over the limit": b"\x3f\xe1\xff\x03",
    "a size of the table behind a field": b"\x82\x20",
    "three sizes of the table": b"\x20\x3f\xe1\x1f\x20\x82\x86\x84",
}


@pytest.mark.parametrize("block", UNREADABLE.values(), ids=UNREADABLE)
def test_a_block_that_breaks_a_rule_is_a_compression_error(block):
    with pytest.raises(ConnectionFault) as caught:
        FieldReader(ServerLimits()).read_head(block)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


def test_sizes_of_the_table_come_first_in_a_block():
    reader, encoder = FieldReader(ServerLimits()), hpack.Encoder()
    reader.read_head(encoder.encode([*GET, (b"x-name", b"value")]))
    assert reader._decoder.header_table.dynamic_entries
    reader.read_head(b"\x20\x3f\xe1\x1f" + b"\x82\x86\x84")
    assert not reader._decoder.header_table.dynamic_entries


def test_an_entry_larger_than_the_table_empties_the_table():
    reader, encoder = FieldReader(ServerLimits()), hpack.Encoder()
    reader.read_head(encoder.encode([*GET, (b"x-name", b"value")]))
    large = b"\x40\x01x\x7f" + b"\xe1\x1f" + b"v" * 4192  # 4,192 bytes in a table of 4,096
    head = reader.read_head(b"\x82\x86\x84" + large)
    assert head.fields[b"x"] == b"v" * 4192
    assert not reader._decoder.header_table.dynamic_entries


def test_fields_that_are_never_indexed_stay_out_of_the_table():
    reader = FieldReader(ServerLimits())
    for kind in (b"\x10", b"\x00"):  # never indexed, and not indexed here
        head = reader.read_head(b"\x82\x86\x84" + kind + b"\x06x-name\x05value")
        assert head.fields[b"x-name"] == b"value"
    assert not reader._decoder.header_table.dynamic_entries


# --- the table ------------------------------------------------------------------------------------

HERE = Path(__file__).parent
NAMED = re.compile(r"`(\w+\.py)::(\w+)(?:\[([^\]]+)\])?`")


def test_every_rule_of_the_table_has_its_test():
    named = NAMED.findall((HERE / "rules.md").read_text())
    assert len(named) > 60
    for file, function, case in named:
        text = (HERE / file).read_text()
        functions = {each.name for each in ast.walk(ast.parse(text)) if hasattr(each, "name")}
        assert function in functions, f"{file}::{function}"
        assert f'"{case}"' in text or not case, f"{file} has no case {case}"


def test_the_table_names_every_case_of_hostile_clients():
    named = {case for _, _, case in NAMED.findall((HERE / "rules.md").read_text())}
    for tables in ("test_hostile.py", "test_rules.py"):
        for node in ast.parse((HERE / tables).read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
                name = node.targets[0].id
                keys = {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
                if name in ("VIOLATIONS", "MALFORMED", "FLOODS", "UNREADABLE"):
                    assert keys <= named, keys - named


def test_the_types_of_frames_are_those_of_the_rfc():
    names = "DATA HEADERS PRIORITY RST_STREAM SETTINGS PUSH_PROMISE PING GOAWAY WINDOW_UPDATE"
    assert [each.name for each in FrameType] == [*names.split(), "CONTINUATION"]
