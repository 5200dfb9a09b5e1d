"""A gRPC call on a stream of HTTP/2: its messages in both directions, and the context of methods.

Methods are those of grpcio's handlers, and see the part of its context that they use.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, NoReturn

import grpc.aio

from mindspore_serving import log
from mindspore_serving.aio import on_thread
from mindspore_serving.core.buffers import Buffer
from mindspore_serving.errors import ServingError
from mindspore_serving.frontends import access
from mindspore_serving.frontends.access import Entry
from mindspore_serving.frontends.grpc.messages import (
    HEAD,
    HEADERS,
    OK,
    PREFIX,
    SMALL,
    WINDOWS,
    CallFault,
    Code,
    Metadata,
    call_head,
    check_prefix,
    encode_metadata,
    encode_status,
    frame_response,
    inflate,
    parse,
)
from mindspore_serving.frontends.http.exchange import Exchange
from mindspore_serving.frontends.http.head import RequestHead
from mindspore_serving.frontends.http2.fields import encode_fields
from mindspore_serving.frontends.http2.stream import Http2Stream
from mindspore_serving.frontends.memory import NO_MEMORY, name_of
from mindspore_serving.wire import status as statuses

_FEW, _OVERHEAD = 16, 128  # unread messages that do not count; bytes that a further one costs more


class GrpcCall(Exchange):
    """A call of a method, which sees it as its context."""

    is_timed = False  # a call may send its messages as long as it likes
    __slots__ = (
        "_code",
        "_count",
        "_details",
        "_encoding",
        "_error",
        "_facts",
        "_head",
        "_initial",
        "_is_cancelled",
        "_is_over",
        "_max_message",
        "_messages",
        "_method",
        "_num_counted",
        "_on_done",
        "_parts",
        "_prefix",
        "_size",
        "_task",
        "_timer",
        "_trailing",
        "_waiter",
        "is_cut",
        "output",
        "protocol",
    )
    output: Http2Stream

    def __init__(self, method: Any, head: RequestHead, output: Http2Stream, limit: int) -> None:
        """Create a call of a grpcio method handler, with messages of at most `limit` bytes."""
        super().__init__(output, keep_alive=True)
        self._head, self._facts = head, call_head(head)
        self._method, self._max_message = method, limit
        self.protocol, self._encoding = self._facts.protocol, self._facts.encoding
        self.is_cut = self._is_over = self._is_cancelled = False
        self._messages: deque[tuple[bool, bytes]] = deque()  # whether it is compressed, and itself
        self._prefix = b""  # of the message that arrives
        self._size: int | None = None  # bytes of it, by its prefix
        self._parts: list[bytes] = []  # the beginning of it
        self._count = 0  # bytes of them
        self._num_counted = 0  # bytes that count in the memory quota
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._code: Code | None = None
        self._details = ""
        self._initial: Metadata = ()
        self._trailing: Metadata = ()
        self._error: ServingError | None = None
        self._on_done: list[Callable[[Any], None]] = []

    # --- by the stream ---

    def start(self) -> None:
        facts = self._facts
        if facts.fault is not None:
            self._trailing = facts.trailing
            self._end(facts.fault.code, str(facts.fault))
            return
        self._launch(facts.timeout)

    def _launch(self, seconds: float | None) -> None:
        """Run the method; its deadline is `seconds` from now, None for no deadline."""
        loop = asyncio.get_running_loop()
        if seconds is not None:
            self._timer = loop.call_later(seconds, self._stop, Code.DEADLINE_EXCEEDED, "deadline")
        self._task = loop.create_task(self._run())

    def feed(self, data: bytes) -> None:
        if self._is_over:
            return
        try:
            while data:
                data = self._take(data)
        except CallFault as fault:
            self._stop(fault.code, str(fault))

    def _take(self, data: bytes) -> bytes:
        """Take a part of a prefix or of a message, and return the rest of `data`."""
        if self._size is None:
            missing = PREFIX - len(self._prefix)
            self._prefix += data[:missing]
            if len(self._prefix) == PREFIX:
                self._begin_message()
            data = data[missing:]
        if self._size is None or (not data and self._size):
            return b""
        missing = self._size - self._count
        part = data if len(data) <= missing else data[:missing]
        self._parts.append(part)
        self._count += len(part)
        if self._count > SMALL:
            self._hold(len(part))
        if self._count == self._size:
            self._end_message()
        return data[missing:]

    def _begin_message(self) -> None:
        self._size = check_prefix(self._prefix, self._max_message, self._encoding)

    def _end_message(self) -> None:
        message = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._messages.append((bool(self._prefix[0]), message))
        if len(self._messages) > _FEW:
            self._hold(len(message) + _OVERHEAD)
        self._parts, self._count, self._size, self._prefix = [], 0, None, b""
        self._wake()
        if len(self._messages) > 1:
            self.output.flow.pause_reading()

    def _hold(self, size: int) -> None:
        if not self.output.memory.take(size):
            raise CallFault(Code.RESOURCE_EXHAUSTED, NO_MEMORY)
        self._num_counted += size

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self) -> None:
        self.is_complete = True
        self._wake()

    def disconnect(self) -> None:
        self._is_cancelled = self._is_over = self.is_cut = True
        self.status = Code.CANCELLED.name
        self._finish()

    def expire(self, error: ServingError) -> None:
        self._stop(getattr(Code, statuses.of(error.code).grpc), str(error))

    def route_path(self) -> str:
        return self._facts.path

    # --- the method ---

    async def _run(self) -> None:
        if self.entry is not None:
            access.current.set(self.entry)
        code, text = Code.OK, ""
        try:
            if self._method.response_streaming:
                await self._answer_stream()
            else:
                self._answer(await self._method.stream_unary(self._requests(), self))
                return
        except grpc.aio.AbortError:
            code, text = self._code or Code.UNKNOWN, self._details
        except CallFault as fault:
            code, text = fault.code, str(fault)
        except asyncio.CancelledError:
            code, text = self._code or Code.UNAVAILABLE, self._details or "the server is stopping"
        except Exception:
            log.error("answering a call", exc_info=True)
            code, text = Code.UNKNOWN, "the call failed"
        self.request_id = log.request_id.get().encode()
        self._end(code, text)

    async def _answer_stream(self) -> None:
        async with aclosing(self._method.stream_stream(self._requests(), self)) as responses:
            async for response in responses:
                self._send(response)
                if self.output.flow.is_full:
                    await self.output.flow.drain()

    def _answer(self, response: Any) -> None:
        """Write the only response of a call, and its status."""
        parts = self._framed(response)
        if self._is_over:
            return
        self._is_over, self._code, self.status = True, Code.OK, Code.OK.name
        self.request_id = log.request_id.get().encode()
        trailers = OK + encode_fields(encode_metadata(self._trailing)) if self._trailing else OK
        self._finish()
        head = HEAD + encode_fields(encode_metadata(self._initial)) if self._initial else HEAD
        self.output.answer_block(head, parts, trailers)

    def _framed(self, response: Any) -> Sequence[Buffer]:
        """Return a response with its prefix, in a part of its own if the response is large."""
        serialize = self._method.response_serializer
        data = response if serialize is None else serialize(response)
        size, parts = frame_response((data,), self._max_message)
        self.num_sent += size
        return parts

    def _send(self, response: Any) -> None:
        """Write a response of a stream."""
        parts = self._framed(response)
        if self._is_over:
            return
        if not self.has_responded:
            self.has_responded = True
            head = [*HEADERS, *encode_metadata(self._initial)]
            self.output.begin(200, head, keep_alive=True, is_chunked=False)
        for part in parts:
            self.output.write(part)

    def _stop(self, code: Code, text: str) -> None:
        """End the call from outside its method, which is cancelled."""
        self._end(code, text)

    def _end(self, code: Code, text: str) -> None:
        """Write the status; the call is over, and its method cancelled if it still runs."""
        if self._is_over:
            return
        self._is_over, self.status = True, code.name
        self._code, self._details = code, text
        self._finish()
        self._write_end(code, text)

    def _write_end(self, code: Code, text: str) -> None:
        """Write the status and the trailing metadata, after the head or with it."""
        fields = [*encode_status(code, text), *encode_metadata(self._trailing)]
        if self.has_responded:
            self.output.finish_with(fields)
        else:
            self.output.answer_fields(200, [*HEADERS, *encode_metadata(self._initial), *fields])

    def _finish(self) -> None:
        """Release what the call holds, and cancel its method unless that has ended the call."""
        task, timer = self._task, self._timer
        if timer is not None:
            timer.cancel()
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        self._parts.clear()
        self._messages.clear()
        self._give_back()
        for call in self._on_done:
            call(self)
        self._on_done.clear()

    def _give_back(self) -> None:
        if self._num_counted:
            self.output.memory.give_back(self._num_counted)
            self._num_counted = 0

    def complete_entry(self, entry: Entry) -> None:
        super().complete_entry(entry)
        entry.verb = ""

    # --- the context, by the method ---

    async def read(self) -> Any:
        """Return the next message of the client; None after the last."""
        while not self._messages:
            if self.is_complete or self._is_over:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        is_compressed, message = self._messages.popleft()
        if not self._messages:
            self._give_back()
            self.output.resume_reading()
        if is_compressed:
            message = await self._decompress(message)
        deserialize = self._method.request_deserializer
        return message if deserialize is None else parse(message, deserialize)

    async def _requests(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not None:
            yield message

    async def _decompress(self, message: bytes) -> bytes:
        arguments = message, WINDOWS[self._encoding], self._max_message
        if len(message) < SMALL and self._max_message < SMALL:
            return inflate(*arguments)
        return await on_thread("inflate", inflate, *arguments)

    def invocation_metadata(self) -> Metadata:
        return self._facts.read_metadata()

    async def send_initial_metadata(self, initial: Iterable[tuple[str, str | bytes]]) -> None:
        """Send metadata with the head, which is written with the first response."""
        self._initial = tuple(initial)

    def set_trailing_metadata(self, trailing: Iterable[tuple[str, str | bytes]]) -> None:
        self._trailing = tuple(trailing)

    def trailing_metadata(self) -> Metadata:
        return self._trailing

    def peer(self) -> str:
        return name_of(self.output.describe("peername"))

    def time_remaining(self) -> float | None:
        """Return the seconds until the client's deadline, None without a deadline."""
        if self._timer is None:
            return None
        return max(0.0, self._timer.when() - asyncio.get_running_loop().time())

    def code(self) -> Code | None:
        return self._code

    async def abort(
        self, code: Code, details: str = "", trailing_metadata: Metadata = ()
    ) -> NoReturn:
        self._code, self._details = code, details
        if trailing_metadata:
            self._trailing = tuple(trailing_metadata)
        raise grpc.aio.AbortError(details)

    def cancelled(self) -> bool:
        """Return whether the client has disconnected or cancelled the call."""
        return self._is_cancelled

    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        self._on_done.append(call)


class RefusedMethod:
    """A method whose calls all end with a status."""

    response_streaming = False
    request_deserializer = response_serializer = None

    def __init__(self, code: Code, text: str) -> None:
        self._code, self._text = code, text

    async def stream_unary(self, _: object, context: GrpcCall) -> bytes:
        """Abort the call."""
        await context.abort(self._code, self._text)
