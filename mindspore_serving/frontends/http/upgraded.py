"""An exchange that may go on with a WebSocket, whose bytes are its body in both directions.

The application answers 101, over HTTP/2 too, or refuses as any request.  It knows the frames; this
exchange does not.
"""

from collections.abc import Iterable
from urllib.parse import unquote

from starlette.types import ASGIApp, Message

from mindspore_serving.errors import ServableUnavailable, ServingError
from mindspore_serving.frontends.http.asgi import MAX_UNREAD, Application
from mindspore_serving.frontends.http.exchange import ExchangeOutput
from mindspore_serving.frontends.http.head import UPGRADE, HeadRefusal, RequestHead
from mindspore_serving.frontends.protocols import PATHS

SWITCHING = 101
STOP = "http.stop"
"""Type of the message that ends an exchange: `error` says why."""
IS_READ = "is_read"
"""Key of the last message: the client has ended as well, so the connection closes at once."""
_UPGRADED = ((b"connection", b"Upgrade"), (b"upgrade", b"websocket"))


def accepts_upgrade(head: RequestHead) -> bool:
    """Return whether a client may go on with a WebSocket, as it offers."""
    path = unquote(head.target.partition(b"?")[0].decode("latin-1"))
    return head.offers_websocket and PATHS.find(path.rstrip("/") or "/").is_websocket


class Upgraded(Application):
    """An exchange of bytes in both directions, once `app` has answered 101."""

    is_timed = False
    _ending: ServingError | None = None  # why the application is to end
    _is_ending = False

    def __init__(self, app: ASGIApp, head: RequestHead, output: ExchangeOutput) -> None:
        if not accepts_upgrade(head):  # over HTTP/2 alone: HTTP/1.1 ignores an offer
            raise HeadRefusal(404, "There is no WebSocket at this path.")
        super().__init__(app, head, output)
        self._scope["extensions"] = {UPGRADE: output.memory}

    def feed(self, data: bytes) -> None:
        """Take bytes of the client, which the application counts while it keeps them."""
        if self._is_over:
            return
        self._body += data
        if len(self._body) > MAX_UNREAD:
            self.output.flow.pause_reading()
        self._changed.set()

    def body_buffer(self, size: int) -> None:
        return None

    def stop(self) -> None:
        if self.has_responded and not self._is_ending:
            self._end_with(ServableUnavailable("the server is stopping"))

    def expire(self, error: ServingError) -> None:
        """Let the application end; if it was told before, end the exchange."""
        if self.has_responded and not self._is_ending:
            self._end_with(error)
        else:
            super().expire(error)

    def _end_with(self, error: ServingError) -> None:
        self._is_ending, self._ending = True, error
        self._changed.set()

    async def _send(self, message: Message) -> None:
        self.is_complete = self.is_complete or message.get(IS_READ, False)
        await super()._send(message)

    async def _receive(self) -> Message:
        message = await super()._receive() if self._ending is None else None
        if message is not None:
            return message
        error, self._ending = self._ending, None
        return {"type": STOP, "error": error}

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if status != SWITCHING:
            super()._begin(status, headers)
            return
        fields, is_http2 = self._complete(headers), self._scope["http_version"] == "2"
        self.has_responded, self.status, self.keep_alive = True, status, False
        shown = 200 if is_http2 else status  # RFC 8441, 5
        self.output.begin(shown, [*fields, *_UPGRADED], keep_alive=True, is_chunked=False)

    def _cut(self, status: int) -> None:
        super()._cut(self.status if self.status == SWITCHING else status)
