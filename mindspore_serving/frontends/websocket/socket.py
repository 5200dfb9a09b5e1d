"""A WebSocket: messages in both directions, within limits, by the frames of wsproto.

Nothing is compressed, as no extension is accepted: a small frame cannot become large.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.types import Receive, Send
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.frame_protocol import CloseReason

from mindspore_serving import log
from mindspore_serving.aio import is_set_within, within
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.frontends import access
from mindspore_serving.frontends.http.upgraded import IS_READ, STOP
from mindspore_serving.frontends.memory import Allowance

MAX_FRAMES = 1024  # of a message, with the control frames before its end
MAX_UNSENT = 1 << 20  # bytes of frames that the client has not read


class SocketClosed(Exception):
    """A WebSocket that is closed, or is to be closed with `code` and `reason`."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class WebSocket:
    """A WebSocket of a client.

    A message may have `max_message` bytes, which count in the quota `memory` until the next one is
    read.  A client that sends nothing for `keepalive_time` is pinged, and has `keepalive_timeout`
    to answer; without a message for `stream_idle_timeout` it is disconnected, as is a client that
    leaves over MAX_UNSENT bytes unread.
    """

    def __init__(
        self,
        receive: Receive,
        send: Send,
        memory: Allowance,
        limits: ServerLimits,
        max_message: int,
    ) -> None:
        self._receive, self._send_bytes = receive, send
        self._memory, self._limits, self._max_message = memory, limits, max_message
        self._frames = Connection(ConnectionType.SERVER)
        self._events: list[Event] = []  # read, in reverse order
        self._num_held = 0  # bytes of the message, in the quota
        self._num_frames = 0  # since the last message
        self._outbox = bytearray()
        self._has_output = asyncio.Event()
        self._has_input = asyncio.Event()  # since the last look
        self._is_reading = self._is_closing = self._has_closed = False
        self._failure: asyncio.Future[SocketClosed]

    async def run(self, serve: "Callable[[WebSocket], Awaitable[None]]") -> None:
        """Run `serve` until it ends or the client has to leave, and close the WebSocket."""
        self._failure = asyncio.get_running_loop().create_future()
        writing = asyncio.ensure_future(self._write())
        serving = asyncio.ensure_future(self._serve(serve))
        keeping = asyncio.ensure_future(self._keep_alive())
        try:
            await asyncio.wait((self._failure, serving), return_when=asyncio.FIRST_COMPLETED)
            closing = (self._failure if self._failure.done() else serving).result()
        finally:
            serving.cancel()
            keeping.cancel()
            await asyncio.wait((serving, keeping))
            self._release()
        try:
            with suppress(asyncio.TimeoutError):
                await within(self._limits.linger_timeout, self._close(closing, writing))
        finally:
            writing.cancel()
            await asyncio.wait((writing,))
        if not self._outbox:  # else the client reads nothing: the exchange is cut
            last = {"body": b"", "more_body": False, IS_READ: self._has_closed}
            await self._send_bytes({"type": "http.response.body", **last})

    async def receive(self) -> str | bytes:
        """Return the next message.

        Raises SocketClosed when the client has closed, or has to be disconnected.
        """
        self._release()
        self._is_reading = True
        try:
            return await within(self._limits.stream_idle_timeout, self._read_message())
        except asyncio.TimeoutError:
            seconds = self._limits.stream_idle_timeout
            reason = f"no message within {seconds:g} seconds"
            raise SocketClosed(CloseReason.POLICY_VIOLATION, reason) from None
        finally:
            self._is_reading = False

    def send(self, text: str) -> None:
        """Queue a message; if the client has left too much unread, it is disconnected."""
        self._put(TextMessage(text))

    # --- reading ---

    async def _read_message(self) -> str | bytes:
        parts: list[Any] = []
        while True:
            event = await self._next_event()
            if isinstance(event, TextMessage | BytesMessage):
                parts.append(event.data)
                self._hold(event)
                if event.message_finished:
                    self._num_frames = 0
                    access.note_received(self._num_held)
                    empty: Any = "" if isinstance(event, TextMessage) else b""
                    return empty.join(parts)  # type: ignore[no-any-return]
            self._answer(event)

    def _hold(self, event: TextMessage | BytesMessage) -> None:
        """Count a part of a message."""
        data = event.data
        size = len(data.encode()) if isinstance(data, str) else len(data)
        if self._num_held + size > self._max_message:
            reason = f"a message is bigger than {self._max_message} bytes"
            raise SocketClosed(CloseReason.MESSAGE_TOO_BIG, reason)
        if not self._memory.take(size):
            reason = "the messages of other clients use all the memory (max_body_memory)"
            raise SocketClosed(CloseReason.TRY_AGAIN_LATER, reason)
        self._num_held += size

    def _release(self) -> None:
        self._memory.give_back(self._num_held)
        self._num_held = 0

    def _answer(self, event: Event) -> None:
        """Answer a control frame, and count frames.  Raises SocketClosed."""
        if isinstance(event, CloseConnection):
            if self._frames.state is ConnectionState.OPEN:  # the library refuses a frame
                raise SocketClosed(event.code, event.reason or "the frames are wrong")
            raise SocketClosed(event.code, event.reason or "")
        if isinstance(event, Ping):
            self._put(event.response())
        is_part = isinstance(event, TextMessage | BytesMessage) and not event.frame_finished
        self._num_frames += not is_part
        if self._num_frames > MAX_FRAMES:
            reason = f"over {MAX_FRAMES} frames without a whole message"
            raise SocketClosed(CloseReason.POLICY_VIOLATION, reason)

    async def _next_event(self) -> Event:
        while not self._events:
            message = await self._receive()
            if message["type"] == STOP:
                raise SocketClosed(CloseReason.GOING_AWAY, str(message["error"]))
            if message["type"] == "http.disconnect":
                raise SocketClosed(CloseReason.ABNORMAL_CLOSURE, "")
            self._has_input.set()
            if message["body"]:
                self._frames.receive_data(bytes(message["body"]))
                self._events = [*self._frames.events()][::-1]
            elif not message["more_body"]:
                raise SocketClosed(CloseReason.ABNORMAL_CLOSURE, "")
        return self._events.pop()

    # --- writing ---

    def _put(self, event: Event) -> None:
        if self._frames.state is not ConnectionState.OPEN:
            return
        if len(self._outbox) > MAX_UNSENT:
            self._fail(CloseReason.POLICY_VIOLATION, f"over {MAX_UNSENT >> 20} MiB are unread")
            return
        self._outbox += self._frames.send(event)
        self._has_output.set()

    def _fail(self, code: int, reason: str) -> None:
        if not self._failure.done():
            self._failure.set_result(SocketClosed(code, reason))

    async def _write(self) -> None:
        while self._outbox or not self._is_closing:
            await self._has_output.wait()
            self._has_output.clear()
            data = bytes(self._outbox)
            await self._send_bytes({"type": "http.response.body", "body": data, "more_body": True})
            del self._outbox[: len(data)]
            if self._outbox:
                self._has_output.set()

    # --- the end ---

    async def _serve(self, serve: "Callable[[WebSocket], Awaitable[None]]") -> SocketClosed:
        try:
            await serve(self)
        except SocketClosed as closed:
            return closed
        except Exception:
            log.error("a WebSocket failed", exc_info=True)
            return SocketClosed(CloseReason.INTERNAL_ERROR, "the server failed; its log says why")
        return SocketClosed(CloseReason.NORMAL_CLOSURE, "")

    async def _keep_alive(self) -> None:
        """Send pings to a silent client, which is disconnected without an answer."""
        limits = self._limits
        while True:
            self._has_input.clear()
            await asyncio.sleep(limits.keepalive_time)
            if self._has_input.is_set() or not self._is_reading:
                continue
            self._put(Ping())
            has_input = await is_set_within(limits.keepalive_timeout, self._has_input)
            if not has_input and self._is_reading:
                reason = f"no answer to a ping within {limits.keepalive_timeout:g} seconds"
                self._fail(CloseReason.INTERNAL_ERROR, reason)

    async def _close(self, closing: SocketClosed, writing: "asyncio.Task[None]") -> None:
        """Send a close frame, and wait until it is written and the client has closed."""
        if closing.code == CloseReason.ABNORMAL_CLOSURE:
            return
        self._has_closed = self._frames.state is ConnectionState.REMOTE_CLOSING
        self._outbox += self._frames.send(CloseConnection(closing.code, closing.reason))
        self._is_closing = True
        self._has_output.set()
        await asyncio.wait((writing,))
        is_fault = closing.code in _FAULTS
        with suppress(SocketClosed):
            while not (self._has_closed or is_fault):
                self._has_closed = isinstance(await self._next_event(), CloseConnection)


_FAULTS = frozenset(
    {
        CloseReason.PROTOCOL_ERROR,
        CloseReason.INVALID_FRAME_PAYLOAD_DATA,
        CloseReason.MESSAGE_TOO_BIG,
        CloseReason.POLICY_VIOLATION,
    }
)
"""Reasons for which nothing more is read: what follows may be no frames."""
