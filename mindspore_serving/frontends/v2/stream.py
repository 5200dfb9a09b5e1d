"""ModelStreamInfer: requests of one call run at the same time, and their responses are matched by
ids.  The error of one request is a response and ends no other.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import TypeAlias

from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.grpc.calls import CallGate, OpenCalls, abort, add_trailing
from mindspore_serving.frontends.grpc.unsent import UnsentReplies
from mindspore_serving.frontends.memory import MemoryPeer
from mindspore_serving.frontends.message_reader import Context
from mindspore_serving.frontends.terms import Terms
from mindspore_serving.frontends.v2.errors import to_serving_error
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.frontends.v2.models import V2Model
from mindspore_serving.wire.v2 import messages
from mindspore_serving.wire.v2.messages import ModelTarget
from mindspore_serving.wire.v2.request import ENABLE_FINAL, FINAL, InferRequest

MAX_CALLS = 256  # of a server at once, of which none has all: each may hold a message that comes
MAX_REQUESTS = 128  # of one call that are not answered; further ones are not read
_MAX_UNSENT = 64  # responses
_Response: TypeAlias = tuple[bytes, int]  # and how many bytes of it count as unsent


class Stream:
    """The calls of one server, of the method called `name`."""

    def __init__(self, v2: V2, gate: CallGate, unsent: UnsentReplies, name: str) -> None:
        """`unsent` counts responses from when there is room for them until they are sent."""
        unsent.counted_by_method.add(f"/{name}")
        self._v2 = v2
        self._gate = gate
        self._unsent = unsent
        self._name = name
        self._calls = OpenCalls(MAX_CALLS)

    async def answer(self, _: object, context: Context) -> AsyncIterator[bytes]:
        """The responses to one call, until the client has sent all and each is answered."""
        self._gate.name(context, self._name)
        try:
            holder = self._gate.hold(context)
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
            if holder is not None:
                holder.release()


class _Call:
    """One call: a task reads, a task for each request answers."""

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
        self._reader = asyncio.create_task(self._read())

    async def responses(self) -> AsyncIterator[bytes]:
        while (found := await self._next()) is not None:
            response, size = found
            try:
                yield response  # comes back when it is sent
            finally:
                self._unsent.end(self._peer, size)

    async def _next(self) -> _Response | None:
        """None behind the last.  Raises what reading has raised."""
        getting = asyncio.ensure_future(self._responses.get())
        try:
            await asyncio.wait((getting, self._reader), return_when=asyncio.FIRST_COMPLETED)
            if self._reader.done() and not getting.done():
                self._reader.result()  # else the end was put before the reader ended
            return await getting
        finally:
            getting.cancel()

    def close(self) -> None:
        """Nobody waits for responses any more."""
        for task in (self._reader, *self._tasks):
            task.cancel()
        while not self._responses.empty():
            response = self._responses.get_nowait()
            if response is not None:
                self._unsent.end(self._peer, response[1])

    async def _read(self) -> None:
        """Until the client has sent all, and everything is answered."""
        while True:
            await self._room.acquire()
            body = await self._context.read()
            if not isinstance(body, bytes):
                break
            task = asyncio.create_task(self._answer(body))
            self._tasks.add(task)
            task.add_done_callback(self._forget)
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._responses.put(None)

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._room.release()

    async def _answer(self, body: bytes) -> None:
        """Never raises for anything about the request."""
        request_id, failure = "", None
        try:
            with self._gate.holding(self._peer, len(body)):
                message, raw = messages.read(body)
                request_id = message.id
                target = messages.target_of(message)
                model = self._v2.models.find(target.model, target.version)
                await self._stream(model, messages.parse(message, raw, self._v2.memory.read))
        except Exception as error:
            failure = str(to_serving_error(error))
        if failure is not None:  # outside: the error refers to what there was no room for
            await self._responses.put((messages.failure(failure, request_id), 0))

    async def _stream(self, model: V2Model, request: InferRequest) -> None:
        target = ModelTarget(model.name, model.version)
        is_decoupled, wants_final = model.streams, request.parameters.get(ENABLE_FINAL) is True
        terms = Terms(self._gate.timeout_of(self._context))
        headers = partial(add_trailing, self._context)
        async with aclosing(self._v2.stream(model, request, terms, headers)) as answers:
            async for found in answers:
                flags = {FINAL: not is_decoupled} if wants_final else None
                await self._put(messages.piece(messages.answer(target, request.id, found, flags)))
        if is_decoupled and wants_final:
            response = messages.answer(target, request.id, (), {FINAL: True})
            await self._put(messages.piece(response))

    async def _put(self, response: bytes) -> None:
        """Until it is sent it counts as unsent.  Raises Overloaded."""
        size = len(response)
        self._unsent.take(self._peer, size)
        try:
            await self._responses.put((response, size))
        except BaseException:
            self._unsent.end(self._peer, size)
            raise
