"""The master's side of a front-end process: its requests, forwarded calls and connections."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.types import ASGIApp

from mindspore_serving import log
from mindspore_serving.core.service import Call, Inference, Reply, Request
from mindspore_serving.errors import StartError
from mindspore_serving.frontends.access import ResponseCounter
from mindspore_serving.ipc.messages import to_fault, to_faults
from mindspore_serving.master.liveness import HeartbeatMonitor
from mindspore_serving.process.vocabulary import Failed, Hello, Ready, version_mismatch
from mindspore_serving.server.processes import messages
from mindspore_serving.server.processes.forwarded_call import ForwardedCall
from mindspore_serving.server.processes.messages import (
    AsgiCall,
    ControlAnswer,
    Submit,
    Synced,
    ToMaster,
)
from mindspore_serving.server.processes.pipe import Ends, Pipe
from mindspore_serving.tracing.request_span import RequestSpan
from mindspore_serving.tracing.span import SpanRecorder, from_traceparent
from mindspore_serving.wire import splitting

# A front end that is silent for so long gets no connections.  After several times as long (see
# `HeartbeatMonitor`) it is killed, as its connections would hang.
HEARTBEAT_SECONDS = 3.0


@dataclass(slots=True)
class SharedServices:
    """Services of the master for all front ends.

    `apps` answer forwarded requests, one for each server; `sync` sends the current state to all
    front ends.
    """

    inference: Inference
    responses: ResponseCounter
    sync: Callable[[], Awaitable[None]]
    apps: list[ASGIApp] = field(default_factory=list)
    recorder: SpanRecorder | None = None

    def span_of(self, message: Submit | AsgiCall) -> RequestSpan | None:
        """Return the span that a front end has started, and will end; None if not traced."""
        if self.recorder is None or not message.traceparent:
            return None
        context = from_traceparent(message.traceparent, message.tracestate)
        return RequestSpan(self.recorder, "", context, 0)


class Session:
    """The session of a front-end process; `closed` is done at its end.

    At the end all requests and calls of the front end are cancelled.
    """

    def __init__(self, ends: Ends, services: SharedServices) -> None:
        self._services = services
        self.pipe: Pipe[ToMaster] = Pipe(ends, ToMaster, self._take, self._end)
        self.pulse = HeartbeatMonitor(HEARTBEAT_SECONDS)
        self._num_syncs = 0
        self._version_mismatch = ""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listening: list[asyncio.Future[None]] = []  # done when a server is ready, in order
        self._synced: dict[int, asyncio.Future[None]] = {}
        self._calls: dict[int, Call] = {}
        self._forwarded: dict[int, ForwardedCall] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._connections: dict[int, Callable[[], None]] = {}
        self._last_connection = 0

    # --- requests of the pool -----------------------------------------------------------------

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    async def begin(self, state: messages.ServedState) -> None:
        """Send the first state and wait as `sync`.

        Raises StartError if the process runs another version of this package.
        """
        await self.sync(state)
        if self._version_mismatch:
            raise StartError(self._version_mismatch)

    async def serve(self, message: messages.Serve) -> None:
        """Start a server in the front end and wait until it is ready.  Raises StartError."""
        listening = asyncio.get_running_loop().create_future()
        self._listening.append(listening)
        self.pipe.send(message)
        await listening

    async def sync(self, state: messages.ServedState) -> None:
        """Send `state` and wait until it is in use there, and its counts were added here."""
        synced = self._synced[state.serial] = asyncio.get_running_loop().create_future()
        self.pipe.send(state)
        await synced

    def check_heartbeat(self, elapsed: float) -> None:
        """Record whether it has answered since the last call, `elapsed` seconds ago."""
        self.pulse.update(self._num_syncs, elapsed)

    def add_connection(self, on_closed: Callable[[], None]) -> int:
        """Add a connection that is passed to the front end; return its number."""
        self._last_connection += 1
        self._connections[self._last_connection] = on_closed
        return self._last_connection

    def remove_connection(self, number: int) -> None:
        """Remove a connection that has ended, and call its `on_closed`."""
        self._connections.pop(number)()

    # --- messages of the front end ------------------------------------------------------------

    def _take(self, message: ToMaster) -> None:
        self._ACTIONS[type(message)](self, message)

    def _submit(self, message: Submit) -> None:
        take = self.pipe.view if splitting.accepts_views(message.codec) else self.pipe.take
        body = splitting.unpack(message.codec, list(map(take, message.body)))
        request = Request(
            message.servable,
            message.method,
            message.version,
            message.codec,
            body,
            message.timeout,
            message.is_stream,
            message.prefix,
            message.request_id,
            self._services.span_of(message),
            sequence=message.sequence,
            tenant=message.tenant,
            priority=message.priority,
            find_header=lambda _: message.sticky,
        )
        answer = partial(self._answer, message.id)
        self._calls[message.id] = self._services.inference.submit(request, answer)

    def _answer(self, number: int, reply: Reply) -> None:
        if reply.is_last:
            self._calls.pop(number, None)
        self.pipe.send(
            ControlAnswer(
                number,
                list(map(self.pipe.put, reply.instances)),
                to_faults(reply.faults),
                None if reply.failure is None else to_fault(reply.failure),
                reply.is_last,
                reply.has_output,
                reply.cache,
                reply.version,
            )
        )

    def _cancel(self, message: messages.CancelRequest) -> None:
        call = self._calls.pop(message.id, None)
        if call is not None:
            call.cancel()
        task = self._tasks.get(message.id)
        if task is not None:
            task.cancel()

    def _on_call(self, message: AsgiCall) -> None:
        app = self._services.apps[message.server]
        call = ForwardedCall(message, self.pipe, app, self._services.sync)
        task = asyncio.get_running_loop().create_task(call.run(self._services.span_of(message)))
        self._forwarded[message.id], self._tasks[message.id] = call, task
        task.add_done_callback(partial(self._forget, message.id))

    def _forget(self, number: int, _: object) -> None:
        del self._forwarded[number], self._tasks[number]

    def _on_body(self, message: messages.BodyChunk) -> None:
        if message.id in self._forwarded:
            self._forwarded[message.id].on_body(message)
        else:
            self.pipe.view(message.body)  # frees its memory at once

    def _on_ack(self, message: messages.ChunkAck) -> None:
        if message.id in self._forwarded:
            self._forwarded[message.id].on_ack()

    def _on_hello(self, message: Hello) -> None:
        if why := version_mismatch(message, messages, "front end"):
            self._version_mismatch = why
            self.pipe.close()

    def _on_listening(self, message: Ready | Failed) -> None:
        listening = self._listening.pop(0)
        if not listening.cancelled():
            if isinstance(message, Failed):
                listening.set_exception(StartError(message.text))
            else:
                listening.set_result(None)

    def _on_closed(self, message: messages.Closed) -> None:
        self.remove_connection(message.connection)

    def _on_synced(self, message: Synced) -> None:
        self._num_syncs += 1
        for protocol, code, count in message.responses:
            self._services.responses.counts[protocol, code] += count
        synced = self._synced.pop(message.serial, None)
        if synced is not None and not synced.done():
            synced.set_result(None)

    # msgspec has checked the message, so it has the type of its row.
    _ACTIONS: "dict[type, Callable[[Session, Any], None]]" = {
        Submit: _submit,
        messages.CancelRequest: _cancel,
        AsgiCall: _on_call,
        messages.BodyChunk: _on_body,
        messages.ChunkAck: _on_ack,
        Hello: _on_hello,
        Ready: _on_listening,
        Failed: _on_listening,
        messages.Closed: _on_closed,
        Synced: _on_synced,
    }

    def _end(self) -> None:
        """Cancel everything, as the channel is closed."""
        calls: Sequence[Call] = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call.cancel()
        for task in self._tasks.values():
            task.cancel()
        for listening in self._listening:
            if not listening.done():
                listening.set_exception(StartError("the front-end process has ended"))
        for synced in self._synced.values():
            if not synced.done():
                synced.set_result(None)
        for number in list(self._connections):
            self.remove_connection(number)
        if not self.closed.done():
            self.closed.set_result(None)
        log.debug("a front-end process has closed its channel")
