"""What every gRPC method does before its work: admit the caller, then read the request.

Methods are declared as taking a stream of requests, which makes no difference to clients: a message
is then read when the code asks for it, and what a caller without a key sends is not read at all.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import NoReturn

import grpc
import grpc.aio

from mindspore_serving import log
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.errors import Overloaded, ServableUnavailable, ServingError
from mindspore_serving.frontends import access
from mindspore_serving.frontends.keys import KeyHolder, Keys
from mindspore_serving.frontends.memory import NOBODY, MemoryPeer, Quota, peer_of
from mindspore_serving.frontends.message_reader import Context, MessageReader
from mindspore_serving.frontends.request_id import NAME, id_of
from mindspore_serving.frontends.spans import begin_rpc, fail
from mindspore_serving.tracing.request_span import Tracer
from mindspore_serving.wire import status

HALF_SENT_GRACE = 0.5  # seconds that clients have to send the rest of a message when we stop
_ID = NAME.decode()
SLOW = 10.0  # seconds after which a message that still comes gives way to all others
LEAST = 64 << 10  # bytes of messages that each connection may have in any case


class AdmittedCall:
    """A call whose message was read; `leave` at its end.  `timeout` is in seconds."""

    __slots__ = ("_holder", "_peer", "_reader", "body", "timeout")

    def __init__(self, holder: KeyHolder | None, reader: MessageReader) -> None:
        self._holder = holder
        self._reader = reader
        self._peer = NOBODY
        self.body = b""
        self.timeout = 0.0

    async def read(self, context: Context) -> None:
        """Raises ServingError."""
        self._peer, self.body = await self._reader.read(context)

    def leave(self) -> None:
        self._reader.give_back(self._peer, len(self.body))
        if self._holder is not None:
            self._holder.release()


class OpenCalls:
    """Calls that may stay open for long: at most `most` at once, of which no client has all."""

    def __init__(self, most: int) -> None:
        self._quota = Quota(most)

    @asynccontextmanager
    async def holding(self, context: Context) -> AsyncIterator[MemoryPeer]:
        """While a call is open, of the peer that this gives.  Ends it if it is one too many."""
        peer = peer_of(context.peer())
        if not self._quota.take(peer, 1):
            text = (
                f"{self._quota.held} calls like this are open, of the {self._quota.most} that may"
            )
            await abort(context, Overloaded(text))
        try:
            yield peer
        finally:
            self._quota.give_back(peer, 1)


class CallGate:
    """Lets calls in that have one of `keys`, and reads their messages, of at most `max_message`
    bytes, within `limits`.
    """

    def __init__(
        self, keys: Keys, limits: ServerLimits, max_message: int, tracer: Tracer | None = None
    ) -> None:
        self.limits = limits
        self._keys = keys
        self._tracer = tracer
        memory = Quota(limits.max_body_memory, largest=max_message, least=LEAST)
        self.reader = MessageReader(memory, max_message, limits.body_timeout, SLOW)

    async def admit(self, context: Context, method: str) -> AdmittedCall:
        """Ends the call of `method` (package.Service/Method) if it may not come in."""
        self.name(context, method)
        try:
            call = AdmittedCall(self.hold(context), self.reader)
            try:
                await call.read(context)
            except BaseException:
                call.leave()
                raise
            access.note_received(len(call.body))
        except ServingError as error:
            await abort(context, error)
        call.timeout = self.timeout_of(context)
        return call

    def name(self, context: Context, method: str) -> None:
        """Give the call, whose task this is, its id, and its span if calls are traced.

        The caller gets the id as trailing metadata if it gave it, if calls are traced, or if the
        call fails: that of every call would cost 5 % of what the server can answer.
        """
        given = _find(context, _ID)
        log.request_id.set(id_of(given).decode())
        if given is not None or self._tracer is not None:
            context.set_trailing_metadata(trailing())
        if self._tracer is not None:
            begin_rpc(self._tracer, context, method)

    def hold(self, context: Context) -> KeyHolder | None:
        """Whose call it is, who is to be released at its end.  Raises Unauthorized, Overloaded."""
        if not self._keys:
            return None
        return self._keys.find(_find(context, "authorization")).admit()

    @contextmanager
    def holding(self, peer: MemoryPeer, num_bytes: int) -> Iterator[None]:
        """While a message that was read otherwise is held.  Raises Overloaded."""
        self.reader.take(peer, num_bytes)
        try:
            yield
        finally:
            self.reader.give_back(peer, num_bytes)

    def close(self) -> None:
        """The server stops: refuse, a little later, calls whose messages are not complete."""
        error = ServableUnavailable("the server is stopping")
        asyncio.get_running_loop().call_later(HALF_SENT_GRACE, self.reader.end_all, error)

    def timeout_of(self, context: Context) -> float:
        """The seconds that the caller and the server allow."""
        remaining = context.time_remaining()
        most = self.limits.request_timeout
        return most if remaining is None else max(0.0, min(remaining, most))


async def abort(context: Context, error: ServingError) -> NoReturn:
    """End the call with the status of `error`."""
    code = grpc.StatusCode[status.of(error.code).grpc]
    fail(error)
    try:
        await context.abort(code, str(error), trailing(error))
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError:
        raise asyncio.CancelledError from None  # the caller has left
    raise AssertionError("abort raises")


def trailing(error: ServingError | None = None) -> tuple[tuple[str, str], ...]:
    """The trailing metadata of this task's call: its id, and when it may be sent again if it failed
    with `error`.
    """
    name = ((_ID, log.request_id.get()),)
    seconds = status.retry_after(error)
    return name if seconds is None else (*name, ("retry-after", seconds))


def add_trailing(context: Context, headers: Mapping[str, str]) -> None:
    """Give the caller `headers` as trailing metadata, beside what it gets already."""
    if headers:
        before = dict(context.trailing_metadata() or ())
        context.set_trailing_metadata(tuple({**before, **headers}.items()))


def _find(context: Context, wanted: str) -> bytes | None:
    for name, value in context.invocation_metadata() or ():
        if name == wanted:
            return value if isinstance(value, bytes) else value.encode()
    return None
