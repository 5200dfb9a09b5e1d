"""A WebSocket that echoes, at the path of the only route that has one, and a raw client of it."""

import asyncio
import base64
import socket
from types import SimpleNamespace

from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection

from mindspore_serving.core.server_limits import LIMITS, ServerLimits
from mindspore_serving.frontends.openai.realtime import REALTIME, ask_for_upgrade
from mindspore_serving.frontends.openai.routes import PROTOCOL
from mindspore_serving.frontends.routes import HttpRoute, bind
from mindspore_serving.frontends.websocket.answer import NoWebSocket, WebSocketAnswer
from tests.frontends.http_serving import Web
from tests.waiting import PATIENCE

MAX_MESSAGE, FLOOD = 100_000, 100_000
KEY = base64.b64encode(bytes(16)).decode()
HEADERS = {
    "Host": "127.0.0.1",
    "Connection": "keep-alive, Upgrade",
    "Upgrade": "WebSocket",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
}


async def echo(websocket):
    """Send each message back; some have the server do something else."""
    while True:
        message = await websocket.receive()
        text = message if isinstance(message, str) else f"bytes {len(message)}"
        if text == "fail":
            raise ValueError("a failure of the application")
        if text == "end":
            return
        for _ in range(FLOOD if text == "flood" else 0):
            websocket.send("x" * 1000)
            await asyncio.sleep(0)
        websocket.send(text)


async def open_echo(limits, http):
    try:
        answer = WebSocketAnswer(http, limits, max_message=MAX_MESSAGE, subprotocols=("realtime",))
    except NoWebSocket as error:
        return ask_for_upgrade(error)
    answer.serve = echo
    return answer


def echoing(background, limits=None, keepalive=(60.0, 20.0), **options):
    """A server of the echo; `keepalive` may be shorter than the limits allow."""
    limits = limits or ServerLimits()
    of_socket = SimpleNamespace(**{name: getattr(limits, name) for name in LIMITS})
    of_socket.keepalive_time, of_socket.keepalive_timeout = keepalive
    row = HttpRoute(
        "GET", REALTIME, lambda context, http: open_echo(of_socket, http), protocol=PROTOCOL
    )
    return Web(background, limits=limits, routes=bind([row], None), **options)


def handshake(**changes):
    """The head of a request; None leaves a header out."""
    headers = {**HEADERS, **{name.replace("_", "-"): value for name, value in changes.items()}}
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([f"GET {REALTIME} HTTP/1.1", *lines, "", ""]).encode()


def framed(opcode, payload=b"", *, is_last=True, mask=b"\1\2\3\4", size=None, bits=0):
    """A frame of a client, however wrong."""
    size = len(payload) if size is None else size
    head = bytes([is_last << 7 | bits << 4 | opcode])
    flag = 0x80 if mask is not None else 0
    if size < 126:
        head += bytes([flag | size])
    elif size < 1 << 16:
        head += bytes([flag | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([flag | 127]) + size.to_bytes(8, "big")
    if mask is None:
        return head + payload
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


class RawSocket:
    """A connection that sends bytes as they are told, and reads frames by wsproto."""

    def __init__(self, web, *, head=None, after=b""):
        self.socket = socket.create_connection(("127.0.0.1", web.port), PATIENCE)
        self.socket.sendall((handshake() if head is None else head) + after)
        data = b""
        while b"\r\n\r\n" not in data:
            part = self.socket.recv(65536)
            assert part, data
            data += part
        self.head, _, rest = data.partition(b"\r\n\r\n")
        self.status = int(self.head.split()[1])
        self.frames = Connection(ConnectionType.CLIENT)
        self._events = []
        self._take(rest)

    def send(self, *frames):
        for frame in frames:
            try:
                self.socket.sendall(frame)
            except OSError:
                return self  # the server has closed; what it said is there to be read
        return self

    def event(self):
        """The next frame of the server; None at the end."""
        while not self._events:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._take(data)
        return self._events.pop(0)

    def _take(self, data):
        if data:
            self.frames.receive_data(data)
            self._events += self.frames.events()

    def closing(self):
        """The close frame that follows, perhaps after other frames."""
        while (event := self.event()) is not None:
            if isinstance(event, CloseConnection):
                return event
        return None

    def close(self):
        self.socket.close()
