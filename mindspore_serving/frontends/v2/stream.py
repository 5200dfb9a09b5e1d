"""ModelStreamInfer: concurrent requests in one call, whose responses have their ids.

The error of a request is a response, and does not end other requests.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import TypeAlias

from mindspore_serving.errors import Overloaded, ServingError
from mindspore_serving.frontends.grpc.calls import CallGate, OpenCalls, abort, add_trailing
from mindspore_serving.frontends.memory import MemoryPeer, Quota
from mindspore_serving.frontends.message_reader import Context
from mindspore_serving.frontends.request_options import RequestOptions
from mindspore_serving.frontends.v2.errors import to_serving_error
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.frontends.v2.models import V2Model
from mindspore_serving.frontends.v2.stream_sequences import StreamSequences
from mindspore_serving.wire.v2 import messages
from mindspore_serving.wire.v2.messages import ModelTarget
from mindspore_serving.wire.v2.request import ENABLE_FINAL, FINAL, InferRequest

MAX_CALLS = 256  # at once, of which no client has all: each can hold an incomplete message
MAX_REQUESTS = 128  # unanswered requests of a call; more are not read
_MAX_UNSENT = 64  # responses
_SMALL = 4096  # bytes of a response that does not count: the call itself uses more
_Response: TypeAlias = tuple[bytes, int]  # and the number of its bytes that count as unsent


class UnsentReplies:
    """Responses that wait for their clients, of at most `limit` bytes, not all of one client."""

    def __init__(self, limit: int) -> None:
        self._quota = Quota(limit)

    @property
    def num_bytes(self) -> int:
        """Bytes that wait."""
        return self._quota.used

    def take(self, peer: MemoryPeer, num_bytes: int) -> None:
        """Count a response to `peer` until `end`.  Raises Overloaded if there is no room."""
        if num_bytes > _SMALL and not self._quota.take(peer, num_bytes):
            text = f"no memory for an answer of {num_bytes} bytes, as clients do not read others"
            raise Overloaded(f"{text} (max_unsent_memory)")

    def end(self, peer: MemoryPeer, num_bytes: int) -> None:
        """Release a response that is sent or dropped."""
        if num_bytes > _SMALL:
            self._quota.give_back(peer, num_bytes)


class Stream:
    """Calls of one method."""

    def __init__(self, v2: V2, gate: CallGate, unsent: UnsentReplies, name: str) -> None:
        """Create the handler of method `name`; `unsent` counts responses until they are sent."""
        self._v2 = v2
        self._gate = gate
        self._unsent = unsent
        self._name = name
        self._calls = OpenCalls(MAX_CALLS)

    async def answer(self, _: object, context: Context) -> AsyncIterator[bytes]:
        """Iterate over the responses to a call until all its requests are answered."""
        self._gate.name(context, self._name)
        try:
            tenant = await self._gate.admit_tenant(context, self._name)
        except ServingError as error:
            await abort(context, error)
        try:
            async with self._calls.holding(context) as peer:
                call = _Call(self._v2, self._gate, self._unsent, (context, peer))
                try:
                    async for response in call.responses():
                        yield response
                finally:
                    call.close()
        finally:
            if tenant is not None:
                tenant.release()


class _Call:
    """A call: one task reads its requests, and one task per request answers."""

    def __init__(
        self, v2: V2, gate: CallGate, unsent: UnsentReplies, caller: tuple[Context, MemoryPeer]
    ) -> None:
        self._v2 = v2
        self._gate = gate
        self._unsent = unsent
        self._context, self._peer = caller
        self._responses: asyncio.Queue[_Response | None] = asyncio.Queue(_MAX_UNSENT)
        self._room = asyncio.Semaphore(MAX_REQUESTS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._bound = StreamSequences(v2.state.inference)
        self._reader = asyncio.create_task(self._read())

    async def responses(self) -> AsyncIterator[bytes]:
        while (queued := await self._next()) is not None:
            response, size = queued
            try:
                yield response  # resumes when it is sent
            finally:
                self._unsent.end(self._peer, size)

    async def _next(self) -> _Response | None:
        """Return the next response; None after the last.  Raises errors of the reader."""
        getting = asyncio.ensure_future(self._responses.get())
        try:
            await asyncio.wait((getting, self._reader), return_when=asyncio.FIRST_COMPLETED)
            if self._reader.done() and not getting.done():
                self._reader.result()  # without an error, None was queued before the reader ended
            return await getting
        finally:
            getting.cancel()

    def close(self) -> None:
        """Cancel all tasks, and release queued responses."""
        for task in (self._reader, *self._tasks):
            task.cancel()
        self._bound.end()
        while not self._responses.empty():
            response = self._responses.get_nowait()
            if response is not None:
                self._unsent.end(self._peer, response[1])

    async def _read(self) -> None:
        """Read requests until the client has sent all, and wait until they are answered."""
        while True:
            await self._room.acquire()
            body = await self._context.read()
            if not isinstance(body, bytes):
                break
            task = asyncio.create_task(self._answer(body))
            self._tasks.add(task)
            task.add_done_callback(self._on_answered)
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._responses.put(None)

    def _on_answered(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._room.release()

    async def _answer(self, body: bytes) -> None:
        """Answer a request; errors are responses."""
        request_id, failure = "", None
        try:
            with self._gate.holding(self._peer, len(body)):
                message, raw = messages.read(body)
                request_id = message.id
                target = messages.target_of(message)
                model = self._v2.models.find(target.model, target.version)
                request = messages.parse(
                    message, raw, self._v2.memory.read, signature=model.signature
                )
                request = self._bound.bind(model, request)
                try:
                    await self._stream(model, request)
                except Exception:
                    self._bound.failed(model, request)
                    raise
        except Exception as error:
            failure = str(to_serving_error(error))
        if failure is not None:  # outside the except block: the error refers to the message
            await self._responses.put((messages.failure(failure, request_id), 0))

    async def _stream(self, model: V2Model, request: InferRequest) -> None:
        version = model.version
        is_decoupled, has_final = model.streams, request.parameters.get(ENABLE_FINAL) is True
        options = RequestOptions(self._gate.timeout_of(self._context))
        headers = partial(add_trailing, self._context)
        async with aclosing(self._v2.stream(model, request, options, headers)) as answers:
            async for outputs in answers:
                version = outputs.version or model.version
                target = ModelTarget(model.name, version)
                flags = {FINAL: not is_decoupled} if has_final else None
                await self._put(messages.chunk(messages.answer(target, request.id, outputs, flags)))
        if is_decoupled and has_final:
            target = ModelTarget(model.name, version)
            response = messages.answer(target, request.id, (), {FINAL: True})
            await self._put(messages.chunk(response))

    async def _put(self, response: bytes) -> None:
        """Queue a response, which counts as unsent until it is sent.  Raises Overloaded."""
        size = len(response)
        self._unsent.take(self._peer, size)
        try:
            await self._responses.put((response, size))
        except BaseException:
            self._unsent.end(self._peer, size)
            raise
