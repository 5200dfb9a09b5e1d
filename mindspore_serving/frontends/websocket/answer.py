"""Answer to a request that goes on with a WebSocket: the handshake of RFC 6455, 4.2.

Knows no frame and no message.  The frames are those of the library wsproto, of the extra
`realtime`.
"""

import base64
import binascii
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.errors import InvalidInputs, Unsupported
from mindspore_serving.extras import missing
from mindspore_serving.frontends.http.head import UPGRADE, subprotocols_of

if TYPE_CHECKING:
    from mindspore_serving.frontends.websocket.socket import WebSocket

VERSION = "13"  # of the protocol
UPGRADE_REQUIRED = 426
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
_KEY_SIZE = 16


class NoWebSocket(InvalidInputs):
    """A request that offers no WebSocket which this server speaks; it is answered 426."""

    headers = {"upgrade": "websocket", "sec-websocket-version": VERSION}


class WebSocketAnswer(Response):
    """An answer that switches to a WebSocket and runs `serve` with it, which the caller sets.

    `subprotocols` are those that the server speaks; the client's first of them is chosen.

    Raises:
        NoWebSocket: the client offers none, or another version.
        InvalidInputs: the handshake is wrong.
        Unsupported: wsproto is not installed.
    """

    serve: "Callable[[WebSocket], Awaitable[None]]"

    def __init__(
        self,
        http: Request,
        limits: ServerLimits,
        *,
        max_message: int,
        subprotocols: Iterable[str] = (),
    ) -> None:
        super().__init__(status_code=101)
        self._limits, self._max_message = limits, max_message
        self.headers.update(_handshake(http))
        del self.headers["content-length"]
        offered = [name.decode("latin-1") for name in subprotocols_of(http.scope)]
        known = set(subprotocols)
        chosen = next((name for name in offered if name in known), "")
        if chosen:
            self.headers["sec-websocket-protocol"] = chosen
        try:
            from mindspore_serving.frontends.websocket.socket import WebSocket
        except ModuleNotFoundError as error:
            raise Unsupported(missing(error, "a WebSocket")) from None
        self._kind = WebSocket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        memory = scope["extensions"][UPGRADE]
        socket = self._kind(receive, send, memory, self._limits, self._max_message)
        await socket.run(self.serve)


def _handshake(http: Request) -> dict[str, str]:
    """Return the headers that accept a WebSocket; over HTTP/2 there are none."""
    if UPGRADE not in http.scope.get("extensions", ()):
        raise NoWebSocket(
            f"{http.url.path} is a WebSocket: connect by ws:// or wss://, as GET with the headers "
            "Connection: Upgrade and Upgrade: websocket"
        )
    version = http.headers.get("sec-websocket-version", "")
    if version != VERSION:
        raise NoWebSocket(f"Sec-WebSocket-Version is {version[:20]!r}, expected {VERSION}")
    if http.scope["http_version"] == "2":
        return {}
    keys = http.headers.getlist("sec-websocket-key")
    try:
        size = len(base64.b64decode(keys[0], validate=True)) if len(keys) == 1 else 0
    except (binascii.Error, ValueError):
        size = 0
    if size != _KEY_SIZE:
        raise InvalidInputs(f"Sec-WebSocket-Key is wrong, expected {_KEY_SIZE} bytes in base64")
    digest = hashlib.sha1(keys[0].encode() + _GUID, usedforsecurity=False).digest()
    return {"sec-websocket-accept": base64.b64encode(digest).decode()}
