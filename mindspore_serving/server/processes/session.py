"""The master's side of one front-end process: its requests, its calls, its connections."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
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
from mindspore_serving.server.processes.asked import AskedCall
from mindspore_serving.server.processes.messages import Ask, ControlAnswer, Submit, Synced, ToMaster
from mindspore_serving.server.processes.pipe import Ends, Pipe
from mindspore_serving.tracing.request_span import RequestSpan
from mindspore_serving.tracing.span import SpanRecorder, from_traceparent
from mindspore_serving.wire import splitting

# Without an answer for so long, a front end gets no connections, and after MAX_TIMEOUTS as long it
# is ended: its connections would hang.
HEARTBEAT_SECONDS = 3.0


@dataclass(slots=True)
class Desk:
    """What all front ends share.  `app` answers what they do not; `sync` brings them up to date."""

    inference: Inference
    responses: ResponseCounter
    sync: Callable[[], Awaitable[None]]
    app: ASGIApp | None = None
    recorder: SpanRecorder | None = None

    def span_of(self, message: Submit | Ask) -> RequestSpan | None:
        """The span that a front end has begun, and will end."""
        if self.recorder is None or not message.traceparent:
            return None
        context = from_traceparent(message.traceparent, message.tracestate)
        return RequestSpan(self.recorder, "", context, 0)


class Session:
    """`closed` is done at its end, with which everything of it is cancelled."""

    def __init__(self, ends: Ends, desk: Desk) -> None:
        self._desk = desk
        self.pipe: Pipe[ToMaster] = Pipe(ends, ToMaster, self._take, self._end)
        self.pulse = HeartbeatMonitor(HEARTBEAT_SECONDS)
        self._num_syncs = 0
        self._version_mismatch = ""  # it cannot be understood
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listening: list[asyncio.Future[None]] = []  # of what it was asked to serve
        self._synced: dict[int, asyncio.Future[None]] = {}
        self._calls: dict[int, Call] = {}
        self._asked: dict[int, AskedCall] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._connections: dict[int, Callable[[], None]] = {}
        self._last_connection = 0

    # --- what the pool wants ------------------------------------------------------------------

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    async def begin(self, state: messages.State) -> None:
        """As `sync`, for the first time.  Raises StartError if the process is of another version
        of this package.
        """
        await self.sync(state)
        if self._version_mismatch:
            raise StartError(self._version_mismatch)

    async def serve(self, message: messages.ServeHttp | messages.ServeGrpc) -> None:
        """Raises StartError."""
        listening = asyncio.get_running_loop().create_future()
        self._listening.append(listening)
        self.pipe.send(message)
        await listening

    async def sync(self, state: messages.State) -> None:
        """Returns when `state` is in force there, and all that it has counted is counted here."""
        synced = self._synced[state.serial] = asyncio.get_running_loop().create_future()
        self.pipe.send(state)
        await synced

    def look(self, elapsed: float) -> None:
        """Note whether it has answered since the last look, so many seconds ago."""
        self.pulse.update(self._num_syncs, elapsed)

    def add_connection(self, on_closed: Callable[[], None]) -> int:
        """The number of a connection that it gets."""
        self._last_connection += 1
        self._connections[self._last_connection] = on_closed
        return self._last_connection

    def remove_connection(self, number: int) -> None:
        self._connections.pop(number)()

    # --- what the front end wants -------------------------------------------------------------

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
            self._desk.span_of(message),
        )
        answer = partial(self._answer, message.id)
        self._calls[message.id] = self._desk.inference.submit(request, answer)

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
            )
        )

    def _abandon(self, message: messages.Abandon) -> None:
        call = self._calls.pop(message.id, None)
        if call is not None:
            call.cancel()
        task = self._tasks.get(message.id)
        if task is not None:
            task.cancel()

    def _ask(self, message: Ask) -> None:
        assert self._desk.app is not None
        call = AskedCall(message, self.pipe, self._desk.app, self._desk.sync)
        task = asyncio.get_running_loop().create_task(call.run(self._desk.span_of(message)))
        self._asked[message.id], self._tasks[message.id] = call, task
        task.add_done_callback(partial(self._forget, message.id))

    def _forget(self, number: int, _: object) -> None:
        del self._asked[number], self._tasks[number]

    def _give(self, message: messages.Given) -> None:
        if message.id in self._asked:
            self._asked[message.id].give(message)
        else:
            self.pipe.view(message.body)  # nobody's: it is given back at once

    def _go_on(self, message: messages.Taken) -> None:
        if message.id in self._asked:
            self._asked[message.id].go_on()

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
            self._desk.responses.counts[protocol, code] += count
        synced = self._synced.pop(message.serial, None)
        if synced is not None and not synced.done():
            synced.set_result(None)

    def _refresh(self, message: messages.Refresh) -> None:
        task = asyncio.ensure_future(self._desk.sync())
        answer = messages.Refreshed(message.id)
        task.add_done_callback(lambda _: self.pipe.send(answer))

    # msgspec has checked what came: a message has the type of its row.
    _ACTIONS: "dict[type, Callable[[Session, Any], None]]" = {
        Submit: _submit,
        messages.Abandon: _abandon,
        Ask: _ask,
        messages.Given: _give,
        messages.Taken: _go_on,
        Hello: _on_hello,
        Ready: _on_listening,
        Failed: _on_listening,
        messages.Closed: _on_closed,
        Synced: _on_synced,
        messages.Refresh: _refresh,
    }

    def _end(self) -> None:
        """The process has ended, or is to be."""
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
