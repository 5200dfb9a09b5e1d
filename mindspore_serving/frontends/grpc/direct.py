"""Calls of one message and one answer that need no task: the message goes to the master as it is.

A task, its future and a context cost more than all the rest of a small call.
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from typing import Any

from mindspore_serving import log
from mindspore_serving.aio import on_thread
from mindspore_serving.core.buffers import Buffer
from mindspore_serving.core.service import Call, Reply, Request, header_of_task, tenant_of_task
from mindspore_serving.errors import DeadlineExceeded, InvalidInputs, Overloaded, ServingError
from mindspore_serving.frontends import access, answer_headers
from mindspore_serving.frontends.access import Entry
from mindspore_serving.frontends.grpc.calls import metadata_of, sequence_of
from mindspore_serving.frontends.grpc.messages import (
    HEAD,
    HEADERS,
    OK,
    PREFIX,
    SMALL,
    WINDOWS,
    CallFault,
    CallHead,
    Code,
    Metadata,
    check_prefix,
    encode_metadata,
    encode_status,
    frame_response,
    inflate,
)
from mindspore_serving.frontends.grpc.unary import DirectMethod, Parts
from mindspore_serving.frontends.http.exchange import Exchange
from mindspore_serving.frontends.http.parser import LARGE_BODY
from mindspore_serving.frontends.http2.fields import encode_fields
from mindspore_serving.frontends.http2.stream import Http2Stream
from mindspore_serving.frontends.keys import Tenant
from mindspore_serving.frontends.memory import NO_MEMORY
from mindspore_serving.frontends.request_id import NAME, id_of
from mindspore_serving.frontends.spans import fail_span, start_rpc
from mindspore_serving.tracing.request_span import RequestSpan, current
from mindspore_serving.wire import status as statuses

_ID, _OK = NAME.decode(), Code.OK.name  # an enumeration's name costs a call
_SLOW = "the request arrived too slowly"


class DirectCall(Exchange):
    """A call of a direct method.

    Made for each call: what most calls leave as it is has its default here, in place of a slot.
    """

    entry: Entry | None = None
    span: RequestSpan | None = None  # that of HTTP; calls have one of RPC
    is_complete = has_responded = is_cut = False
    keep_alive = True
    num_sent = 0
    request_id = b""
    output: Http2Stream
    _trace: RequestSpan | None = None
    _tenant: Tenant | None = None
    _timer: asyncio.TimerHandle | None = None
    _task: asyncio.Task[None] | None = None  # of a call that needs one
    _call: Call | None = None
    _state: Any = None  # of the protocol
    _trailing: Metadata = ()
    _is_over = False
    _has_message = False
    _is_compressed = False
    _size: int | None = None  # bytes of the message, by its prefix
    _prefix = b""  # the beginning of it
    _body: Buffer = b""  # the beginning of the message, or memory for all of it
    _count = 0  # bytes of the message that have arrived
    _num_counted = 0  # bytes that count in the memory quota

    def __init__(
        self, method: DirectMethod, head: CallHead, output: Http2Stream, limit: int
    ) -> None:
        """Create a call with messages of at most `limit` bytes."""
        self.output, self.protocol = output, head.protocol
        self._method, self._head, self._max_message = method, head, limit

    def route_path(self) -> str:
        return f"/{self._method.name}"

    # --- by the stream ---

    def start(self) -> None:
        head, gate = self._head, self._method.gate
        self.request_id = id_of(head.request_id)
        if head.fault is not None:
            self._end(head.fault.code, str(head.fault), head.trailing)
            return
        if gate.tracer is not None:
            name, number = self._method.name, self.request_id.decode()
            self._trace = start_rpc(gate.tracer, head.metadata, name, number)
        if head.timeout is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(head.timeout, self._stop, Code.DEADLINE_EXCEEDED)
        if gate.keys:
            try:
                self._tenant = gate.keys.find(head.authorization).admit()
            except ServingError as error:
                self._abort(error)

    def feed(self, data: bytes) -> None:
        if self._is_over or self._has_message:
            return  # a further message is not read
        try:
            if self._size is None:
                data = self._prefix + data
                if len(data) < PREFIX:
                    self._prefix = data
                    return
                self._size = check_prefix(data, self._max_message, self._head.encoding)
                self._is_compressed, data = bool(data[0]), data[PREFIX:]
                if len(data) == self._size <= SMALL:
                    self._take_message(data)
                    return
                self._make_room(self._size)
            self._put(data[: self._size - self._count])
        except CallFault as fault:
            self._end(fault.code, str(fault))

    def _make_room(self, size: int) -> None:
        """Take memory for a message, which pages of it are used of when it is written."""
        if size < LARGE_BODY:
            self._body = bytearray()
            return
        try:
            self._body = self.output.pool.take(size)
        except OSError:
            raise CallFault(Code.RESOURCE_EXHAUSTED, "no memory for the message") from None

    def _put(self, part: bytes) -> None:
        body, count = self._body, self._count
        if isinstance(body, bytearray):
            body += part
        else:
            assert isinstance(body, memoryview)
            body[count : count + len(part)] = part
            self.output.receive_into(body[count + len(part) :])
        self.filled(len(part))

    def filled(self, num_bytes: int) -> bool:
        if self._is_over:
            return False
        self._count += num_bytes
        if self._count > SMALL:
            amount = self._count - self._num_counted
            if not self.output.memory.take(amount):
                self._abort(Overloaded(NO_MEMORY))
                return False
            self._num_counted += amount
        if self._count == self._size:
            self._take_message(self._body)
        return True

    def end(self) -> None:
        self.is_complete = True
        if not (self._has_message or self._is_over):
            self._abort(InvalidInputs("the call has no request message"))

    def disconnect(self) -> None:
        self._is_over = self.is_cut = True
        self.status = Code.CANCELLED.name
        self._finish()

    def expire(self, error: ServingError) -> None:
        self._abort(error)

    def expire_body(self) -> bool:
        if not self._has_message:
            self._abort(DeadlineExceeded(_SLOW))
        return True

    def complete_entry(self, entry: Entry) -> None:
        super().complete_entry(entry)
        entry.verb = ""
        entry.num_received = self._count

    # --- the request ---

    def _take_message(self, body: Buffer) -> None:
        self._has_message, self._count, self._body = True, len(body), b""
        if self._is_compressed:
            self._start_task(self._inflate(body))
        else:
            self._submit(body)

    async def _inflate(self, body: Buffer) -> None:
        window = WINDOWS[self._head.encoding]
        try:
            body = await on_thread("inflate", inflate, body, window, self._max_message)
        except Exception as error:
            self._refuse(error)
        else:
            if not self._is_over:
                self._submit(body)

    def _submit(self, body: Buffer) -> None:
        method = self._method
        try:
            begun, self._state = method.protocol.begin(body, self._timeout(), self._add_trailing)
            if not isinstance(begun, Request):
                self._start_task(self._answer_soon(begun))
                return
            begun.id, begun.span = self.request_id.decode(), self._trace
            begun.sequence = begun.sequence or sequence_of(self._head.metadata)
            begun.find_header = self._head.find
            if self._tenant is not None:
                begun.tenant = self._tenant.owner
            if self.entry is not None:
                self.entry.servable, self.entry.method = begun.servable, begun.method
            self._call = method.inference.submit(begun, self._on_reply)
        except Exception as error:
            self._refuse(error)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)

    def _add_trailing(self, headers: Mapping[str, str]) -> None:
        self._trailing = (*self._trailing, *headers.items())

    def _timeout(self) -> float:
        limit = self._method.gate.limits.request_timeout
        if self._timer is None:
            return limit
        remaining = self._timer.when() - asyncio.get_running_loop().time()
        return max(0.0, min(remaining, limit))

    # --- the answer ---

    def _on_reply(self, reply: Reply) -> None:
        self._call = None  # breaks a reference cycle
        if self._is_over:
            return
        if reply.cache or reply.version:
            self._add_trailing(answer_headers.headers_of(reply))
        if reply.failure is not None:
            self._refuse(reply.failure)
            return
        try:
            parts = self._method.protocol.answer(self._state, reply)
            if isinstance(parts, list):
                self._answer(parts)
            else:
                self._start_task(self._answer_soon(parts))
        except Exception as error:
            self._refuse(error)

    async def _answer_soon(self, response: Awaitable[Parts]) -> None:
        """Answer with a response that is awaited."""
        log.request_id.set(self.request_id.decode())  # in the context of this task
        access.current.set(self.entry)
        answer_headers.current.set(self._add_trailing)
        header_of_task.set(self._head.find)
        current.set(self._trace)
        if self._tenant is not None:
            tenant_of_task.set(self._tenant.owner)
        try:
            self._answer(await response)
        except Exception as error:
            self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        """Answer with an error, in the message or as status."""
        if self._is_over:
            return
        if isinstance(error, CallFault):
            self._end(error.code, str(error))
            return
        with log.of_request(self.request_id.decode()):
            response = self._method.protocol.refuse(self._state, error)
        if isinstance(response, ServingError):
            self._abort(response)
        else:
            fail_span(self._trace, error)
            self._answer([response], error if isinstance(error, ServingError) else None)

    def _answer(self, parts: Parts, error: ServingError | None = None) -> None:
        """Write the response, and its status; `error` is the one that the response tells of.

        Raises CallFault.
        """
        if self._is_over:
            return
        size, framed = frame_response(parts, self._max_message)
        self._is_over, self.status, self.num_sent = True, _OK, size
        trailers = OK
        has_id = self._head.request_id is not None or self._trace is not None
        if has_id or error is not None or self._trailing:
            trailers = OK + encode_fields(encode_metadata(self._metadata(error)))
        self._finish()
        self.output.answer_block(HEAD, framed, trailers)

    def _metadata(self, error: ServingError | None) -> Metadata:
        return (*self._trailing, (_ID, self.request_id.decode()), *metadata_of(error))

    def _abort(self, error: ServingError) -> None:
        """End the call with the status of `error`."""
        if not self._is_over:
            fail_span(self._trace, error)
            code = getattr(Code, statuses.of(error.code).grpc)
            self._end(code, str(error), self._metadata(error))

    def _stop(self, code: Code) -> None:
        self._end(code, "deadline")

    def _end(self, code: Code, text: str, metadata: Metadata = ()) -> None:
        """Write a status in place of an answer."""
        if self._is_over:
            return
        self._is_over, self.status = True, code.name
        fields = [*HEADERS, *encode_status(code, text), *encode_metadata(metadata)]
        self._finish()
        self.output.answer_fields(200, fields)

    def _finish(self) -> None:
        """Release what the call holds, and cancel its request."""
        if self._timer is not None:
            self._timer.cancel()
        if self._call is not None:
            self._call.cancel()
            self._call = None
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._body, self._state = b"", None
        if self._num_counted:
            self.output.memory.give_back(self._num_counted)
            self._num_counted = 0
        if self._tenant is not None:
            self._tenant.release()
            self._tenant = None
        if self._trace is not None:
            self._trace.attributes["rpc.response.status_code"] = self.status
            self._trace.end()
