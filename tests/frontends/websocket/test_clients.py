"""WebSockets by clients of other libraries: `websockets`, `aiohttp`, and h2 over HTTP/2.

Keys, origins, TLS, metrics and the access log are those of all requests.
"""

import json
import ssl
from contextlib import closing

import aiohttp
import pytest
import websockets.sync.client
from websockets.exceptions import ConnectionClosed, InvalidStatus
from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection, TextMessage

from mindspore_serving import log
from mindspore_serving.frontends.access import ResponseCounter
from mindspore_serving.frontends.keys import ApiKey
from mindspore_serving.frontends.openai.realtime import REALTIME
from mindspore_serving.frontends.origins import OriginPolicy
from mindspore_serving.frontends.tenants.limits import Limits
from tests.frontends.grpc.interop.service import certificates_of
from tests.frontends.http2.peer import Answer, Peer
from tests.frontends.websocket.serving import MAX_MESSAGE, echoing
from tests.waiting import PATIENCE, eventually

KEY = "a-key-that-is-long-enough"
EVIL = "https://evil.example"


@pytest.fixture
def web(background):
    with closing(echoing(background)) as running:
        yield running


@pytest.fixture
def locked(background):
    """A server with keys, one of them with one request at a time, and a policy of origins."""
    keys = [KEY, ApiKey("another-key-long-enough", limits=Limits(max_requests=1))]
    origins = OriginPolicy("127.0.0.1", allow_origins=["https://friend.example"])
    with closing(echoing(background, api_keys=keys, origins=origins)) as running:
        yield running


def connect(web, scheme="ws", **options):
    url = f"{scheme}://127.0.0.1:{web.port}{REALTIME}"
    return websockets.sync.client.connect(url, open_timeout=PATIENCE, **options)


def status_of(web, **options):
    """The status with which the server refuses."""
    with pytest.raises(InvalidStatus) as raised:
        connect(web, **options)
    return raised.value.response.status_code


def bearer(key):
    return {"additional_headers": {"Authorization": f"Bearer {key}"}}


def test_websockets_sends_and_receives(web):
    with connect(web) as socket:
        assert socket.ping().wait(PATIENCE)
        for text in ("hello", "größer", "x" * MAX_MESSAGE, ""):
            socket.send(text)
            assert socket.recv() == text
        socket.send([b"one", b"two", b"three"])  # in fragments
        assert socket.recv() == "bytes 11"
        assert socket.response.headers.get("Sec-WebSocket-Extensions") is None
        socket.close(4321, "bye")
        assert socket.protocol.close_rcvd.code == 4321
    eventually(lambda: web.server.shared.responses.counts["openai", 101] == 1)


def test_websockets_gets_the_reason_of_the_end(web):
    with connect(web, max_size=None) as socket:
        socket.send("x" * (MAX_MESSAGE + 1))
        with pytest.raises(ConnectionClosed) as raised:
            socket.recv()
    assert raised.value.rcvd.code == 1009
    assert f"bigger than {MAX_MESSAGE} bytes" in raised.value.rcvd.reason


async def test_aiohttp_sends_and_receives(web):
    url = f"http://127.0.0.1:{web.port}{REALTIME}"
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, compress=15, protocols=("other", "realtime")) as socket,
    ):
        assert (socket.protocol, socket.compress) == ("realtime", 0)
        for text in ("hello", "x" * MAX_MESSAGE):
            await socket.send_str(text)
            assert await socket.receive_str() == text
        await socket.ping(b"?")
        await socket.send_bytes(bytes(5))
        assert await socket.receive_str() == "bytes 5"
        await socket.close()
        assert socket.close_code == 1000


def test_tls_is_that_of_the_server(background, tmp_path):
    authority, certificates = certificates_of(tmp_path)
    context = ssl.create_default_context(cafile=str(authority))
    with closing(echoing(background, tls=certificates)) as web:
        context.check_hostname = False
        with connect(web, "wss", ssl=context) as socket:
            socket.send("hello")
            assert socket.recv() == "hello"


# --- access ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        bearer(KEY),
        {"subprotocols": ["realtime", f"openai-insecure-api-key.{KEY}"]},
        {"additional_headers": {"X-Api-Key": KEY}},
        {**bearer(KEY), "origin": "https://friend.example"},
    ],
)
def test_a_key_opens_a_websocket(locked, options):
    with connect(locked, **options) as socket:
        socket.send("hello")
        assert socket.recv() == "hello"
        assert KEY not in str(socket.response.headers)
        assert (socket.subprotocol == "realtime") == ("subprotocols" in options)


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({}, 401),
        (bearer(KEY[:-1]), 401),
        ({"subprotocols": ["realtime", "openai-insecure-api-key.x"]}, 401),
        ({"subprotocols": [KEY]}, 401),
        ({**bearer(KEY), "origin": EVIL}, 403),
        ({"subprotocols": [f"openai-insecure-api-key.{KEY}"], "origin": EVIL}, 403),
        ({**bearer(KEY), "origin": "null"}, 403),
    ],
)
def test_no_key_and_pages_of_other_sites_are_refused(locked, options, status):
    assert status_of(locked, **options) == status


def test_a_page_of_the_server_itself_may_connect(locked):
    origin = f"http://127.0.0.1:{locked.port}"
    with connect(locked, origin=origin, **bearer(KEY)) as socket:
        socket.send("hello")
        assert socket.recv() == "hello"


def test_a_websocket_is_a_request_of_its_tenant(locked):
    limited = bearer("another-key-long-enough")
    with connect(locked, **limited):
        assert status_of(locked, **limited) == 429
    eventually(lambda: _opens(locked, limited))


def _opens(web, options):
    try:
        with connect(web, **options):
            return True
    except InvalidStatus:
        return False


def test_the_access_log_has_a_line_for_a_websocket(background, monkeypatch):
    lines = []
    monkeypatch.setattr(log, "event", lambda name, fields: lines.append(fields))
    with closing(echoing(background, responses=ResponseCounter(is_logged=True))) as web:
        with connect(web, additional_headers={"X-Request-Id": "mine"}) as socket:
            socket.send("hello")
            assert socket.recv() == "hello"
        eventually(lambda: lines)
    line = lines[0]
    assert (line["protocol"], line["verb"], line["path"]) == ("openai", "GET", REALTIME)
    assert (line["code"], line["request_id"], line["bytes_received"]) == (101, "mine", 5)
    assert line["bytes_sent"] == 7 + 4  # a text, and the close frame


def test_a_plain_request_is_told_to_upgrade(web):
    client = web.connect()
    client.send(f"GET {REALTIME} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    status, headers, body = client.read()
    assert (status, headers["upgrade"]) == (426, "websocket")
    assert "is a WebSocket: connect by ws:// or wss://" in json.loads(body)["error"]["message"]


# --- HTTP/2, RFC 8441 -----------------------------------------------------------------------------


class Tunnel:
    """A WebSocket in a stream of HTTP/2, by h2 and wsproto."""

    def __init__(self, web, *headers, path=REALTIME):
        self.peer = Peer(web.port)
        self.peer.read(until=lambda: self.peer.h2.remote_settings.enable_connect_protocol)
        fields = ((":protocol", "websocket"), ("sec-websocket-version", "13"), *headers)
        pseudo = [field for field in fields if field[0].startswith(":")]
        self.number = self.peer.h2.get_next_available_stream_id()
        self.answer = self.peer.answers[self.number] = Answer()
        head = [(":method", "CONNECT"), *pseudo, (":scheme", "http"), (":path", path)]
        rest = [field for field in fields if not field[0].startswith(":")]
        self.peer.h2.send_headers(self.number, [*head, (":authority", "127.0.0.1"), *rest])
        self.peer.read(until=lambda: self.answer.fields or self.answer.has_ended)
        self.frames = Connection(ConnectionType.CLIENT)
        self.num_read = 0

    def send(self, event):
        self.peer.h2.send_data(self.number, self.frames.send(event))
        self.peer.send()

    def event(self):
        while True:
            data, self.num_read = self.answer.body[self.num_read :], len(self.answer.body)
            if data:
                self.frames.receive_data(data)
            for event in self.frames.events():
                return event
            self.peer.read(until=lambda: len(self.answer.body) > self.num_read)

    def close(self):
        self.peer.close()


def test_a_websocket_runs_in_a_stream_of_http2(web):
    with closing(Tunnel(web, ("sec-websocket-protocol", "realtime"))) as tunnel:
        fields = dict(tunnel.answer.fields)
        assert (fields[":status"], fields["sec-websocket-protocol"]) == ("200", "realtime")
        assert not {"upgrade", "connection", "sec-websocket-accept"} & fields.keys()
        for text in ("hello", "x" * 40_000):
            tunnel.send(TextMessage(text))
            received = ""
            while len(received) < len(text):
                received += tunnel.event().data
            assert received == text
        number = tunnel.peer.ask(path="/health")  # beside it
        assert tunnel.peer.read(number).body == b"ready"
        tunnel.send(CloseConnection(1000, "bye"))
        assert tunnel.event().code == 1000
        tunnel.peer.read(tunnel.number)
    eventually(lambda: web.server.shared.responses.counts["openai", 101] == 1)


def test_a_tunnel_elsewhere_and_without_a_key_is_refused(web, locked):
    for server, path, status in ((web, "/health", 404), (locked, REALTIME, 401)):
        with closing(Tunnel(server, path=path)) as tunnel:
            assert tunnel.answer.status == status
            number = tunnel.peer.ask(path="/livez")
            assert tunnel.peer.read(number).status == 200
    with closing(Tunnel(locked, ("authorization", f"Bearer {KEY}"), ("origin", EVIL))) as tunnel:
        assert tunnel.answer.status == 403


def test_a_client_that_resets_its_stream_has_left(web):
    with closing(Tunnel(web)) as tunnel:
        tunnel.send(TextMessage("hello"))
        assert tunnel.event().data == "hello"
        tunnel.peer.h2.reset_stream(tunnel.number)
        tunnel.peer.send()
        eventually(lambda: web.server.shared.responses.counts["openai", 499] == 1)
