"""Steps of every gRPC call before its method runs: check the key, then read the request.

Methods are declared with streams of requests, which clients do not notice: a message is then read
only when the code reads it, and not at all from a caller without a key.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import NoReturn

import grpc

from mindspore_serving import log
from mindspore_serving.core.sequences import SequenceStep, step_of_texts
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import header_of_task, tenant_of_task
from mindspore_serving.errors import (
    Code,
    Overloaded,
    ServableUnavailable,
    ServingError,
    Unauthorized,
)
from mindspore_serving.frontends import access, answer_headers
from mindspore_serving.frontends.keys import Keys, Tenant
from mindspore_serving.frontends.memory import ANONYMOUS, MemoryPeer, Quota, peer_of
from mindspore_serving.frontends.message_reader import Context, MessageReader
from mindspore_serving.frontends.request_id import NAME, id_of
from mindspore_serving.frontends.spans import begin_rpc, fail
from mindspore_serving.frontends.tenants.audit import AuditLog
from mindspore_serving.frontends.tenants.limits import Headers, LimitReached
from mindspore_serving.tracing.request_span import Tracer
from mindspore_serving.wire import status

HALF_SENT_GRACE = 0.5  # seconds for clients to send the rest of a message when the server stops
_ID = NAME.decode()
RESERVED = 64 << 10  # bytes of messages that each connection can always have


class AdmittedCall:
    """A call whose message was read; `leave` at its end.  `timeout` is in seconds."""

    __slots__ = ("_tenant", "_peer", "_reader", "body", "timeout")

    def __init__(self, tenant: Tenant | None, reader: MessageReader) -> None:
        self._tenant = tenant
        self._reader = reader
        self._peer = ANONYMOUS
        self.body = b""
        self.timeout = 0.0

    async def read(self, context: Context) -> None:
        """Read the message of the call.  Raises ServingError."""
        self._peer, self.body = await self._reader.read(context)

    def leave(self) -> None:
        """Release the memory of the message, and the tenant."""
        self._reader.give_back(self._peer, len(self.body))
        if self._tenant is not None:
            self._tenant.release()


class OpenCalls:
    """Calls that can stay open for long: at most `limit` at once, of which no client has all."""

    def __init__(self, limit: int) -> None:
        self._quota = Quota(limit)

    @asynccontextmanager
    async def holding(self, context: Context) -> AsyncIterator[MemoryPeer]:
        """Count an open call, and yield its peer.  Aborts the call if the limit is reached."""
        peer = peer_of(context.peer())
        if not self._quota.take(peer, 1):
            text = (
                f"{self._quota.used} calls like this are open, and the limit is {self._quota.limit}"
            )
            await abort(context, Overloaded(text))
        try:
            yield peer
        finally:
            self._quota.give_back(peer, 1)


class CallGate:
    """Access control of gRPC: checks keys, and reads messages of at most `max_message` bytes."""

    def __init__(
        self,
        keys: Keys,
        limits: ServerLimits,
        max_message: int,
        tracer: Tracer | None = None,
        audit: Callable[[], AuditLog | None] = lambda: None,
    ) -> None:
        self.limits = limits
        self.keys = keys
        self.tracer = tracer
        self._audit = audit
        memory = Quota(limits.max_body_memory, largest=max_message, reserved=RESERVED)
        self.reader = MessageReader(memory, limits.body_timeout)

    async def admit(self, context: Context, method: str) -> AdmittedCall:
        """Check the key of a call and read its message; abort the call if it is refused.

        `method` is package.Service/Method.
        """
        self.name(context, method)
        try:
            call = AdmittedCall(await self.admit_tenant(context, method), self.reader)
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

    def _note(
        self,
        context: Context,
        method: str,
        tenant: Tenant | None,
        error: ServingError | None = None,
    ) -> None:
        """Add the call to the audit log, if there is one."""
        audit = self._audit()
        if audit is not None:
            name = Code.OK.name if error is None else error.code.name
            client, request_id = context.peer(), log.request_id.get()
            fields = {"client": client, "request_id": request_id}
            audit.add("call", tenant, path=method, admitted=name, **fields)

    def name(self, context: Context, method: str) -> None:
        """Set the id of this task's call, and begin its span if calls are traced.

        The id is sent as trailing metadata if the caller set it, if calls are traced, or if the
        call fails: sending it always would cost 5 % of the throughput.
        """
        client_id = _find(context, _ID)
        log.request_id.set(id_of(client_id).decode())
        answer_headers.current.set(partial(add_trailing, context))
        header_of_task.set(partial(_text_of, context))
        if client_id is not None or self.tracer is not None:
            context.set_trailing_metadata(trailing())
        if self.tracer is not None:
            begin_rpc(self.tracer, context, method)

    async def admit_tenant(self, context: Context, method: str) -> Tenant | None:
        """Return the tenant of a call, to be released at its end; None without keys.

        Raises Unauthorized and Overloaded.
        """
        if not self.keys:
            self._note(context, method, None)
            return None
        authorization = _find(context, "authorization") or b""
        await self.keys.prepare(self.keys.token_in({b"authorization": authorization}))
        try:
            tenant = self.keys.find(authorization).admit()
        except Unauthorized as error:
            self._note(context, method, None, error)
            raise
        tenant_of_task.set(tenant.owner)
        self._note(context, method, tenant)
        return tenant

    @contextmanager
    def holding(self, peer: MemoryPeer, num_bytes: int) -> Iterator[None]:
        """Hold memory for a message that was read elsewhere.  Raises Overloaded."""
        self.reader.take(peer, num_bytes)
        try:
            yield
        finally:
            self.reader.give_back(peer, num_bytes)

    def close(self) -> None:
        """Refuse calls with incomplete messages after HALF_SENT_GRACE: the server stops."""
        error = ServableUnavailable("the server is stopping")
        asyncio.get_running_loop().call_later(HALF_SENT_GRACE, self.reader.end_all, error)

    def timeout_of(self, context: Context) -> float:
        """Return the seconds until the deadline of the caller or the server."""
        remaining = context.time_remaining()
        limit = self.limits.request_timeout
        return limit if remaining is None else max(0.0, min(remaining, limit))


async def abort(context: Context, error: ServingError) -> NoReturn:
    """End the call with the status of `error`."""
    code = grpc.StatusCode[status.of(error.code).grpc]
    fail(error)
    await context.abort(code, str(error), trailing(error))
    raise AssertionError("abort raises")


def trailing(error: ServingError | None = None) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata of this task's call: its id, and that of an error."""
    return ((_ID, log.request_id.get()), *metadata_of(error))


def metadata_of(error: ServingError | None) -> Headers:
    """Return the trailing metadata of an error: retry-after, and the limits of the key."""
    seconds = status.retry_after(error)
    limits = error.headers if isinstance(error, LimitReached) else ()
    return limits if seconds is None else (("retry-after", seconds), *limits)


def add_trailing(context: Context, headers: Mapping[str, str]) -> None:
    """Add `headers` to the trailing metadata of a call."""
    if headers:
        before = dict(context.trailing_metadata() or ())
        context.set_trailing_metadata(tuple({**before, **headers}.items()))


def sequence_of(metadata: Iterable[tuple[str, str | bytes]]) -> SequenceStep | None:
    """Return the sequence that the metadata of a call names, if any.  Raises InvalidInputs."""
    texts = {name: text for name, text in metadata if name.startswith("sequence-")}
    if "sequence-id" not in texts:
        return None
    values = (texts.get(f"sequence-{name}", "") for name in ("id", "start", "end"))
    return step_of_texts(*(text if isinstance(text, str) else "" for text in values))


def _text_of(context: Context, key: str) -> str:
    return (_find(context, key) or b"").decode("latin-1")


def _find(context: Context, key: str) -> bytes | None:
    for name, value in context.invocation_metadata() or ():
        if name == key:
            return value if isinstance(value, bytes) else value.encode()
    return None
