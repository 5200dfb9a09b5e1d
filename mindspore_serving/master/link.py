"""Master's end of the channel to one worker: sends messages, reports what the worker sent.

It lives on the event loop and decides nothing: `batched` and `streamed` count a worker's parts.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import msgspec

from mindspore_serving import log
from mindspore_serving.cluster.base import Launched
from mindspore_serving.core.service import Reply
from mindspore_serving.errors import StartError
from mindspore_serving.ipc import arena, messages, status
from mindspore_serving.ipc.messages import (
    AdaptersSet,
    AgentAddress,
    CallReply,
    Cancel,
    Done,
    DropCall,
    EndSequences,
    EngineMetrics,
    LogLevel,
    PartReply,
    Payload,
    RequestPart,
    Setup,
    ShareMemory,
    Slice,
    ToMaster,
    Work,
    WorkerCall,
    WorkerReady,
    to_fault,
    to_faults,
)
from mindspore_serving.master import storing
from mindspore_serving.master.adapter_calls import AdapterCalls
from mindspore_serving.master.payload_lender import ZERO_COPY_CODECS, PayloadLender
from mindspore_serving.master.request import Answer, DispatchStrategy, PendingPart
from mindspore_serving.process.async_channel import AsyncChannel
from mindspore_serving.process.vocabulary import Exit, Failed, Hello, Leaving, version_mismatch

TELL_SECONDS = 3.0  # for a worker to tell its agents that the servable is stopped
MAX_FREED = 16  # offsets kept for the next `Work` before a message of their own


class LinkOwner(Protocol):
    """Receiver of the events of a link.

    Replies go to the strategies that sent the parts instead.
    """

    def on_call(self, link: "Link", call: WorkerCall) -> None: ...

    def on_dropped_call(self, link: "Link", call_id: int) -> None: ...

    def on_leaving(self, link: "Link") -> None: ...

    def on_lost(self, link: "Link") -> None: ...


class Link:
    """Worker as the master sees it: its process, its parts, and the socket to it."""

    def __init__(
        self,
        launched: Launched,
        name: str,
        owner: LinkOwner,
        *,
        owns_models: bool = True,
        has_agents: bool = False,
    ) -> None:
        self.name = name
        self._has_agents = has_agents  # which it tells that the servable is stopped
        self.process = launched.process
        self.location = launched.location
        self.python = launched.python
        self.placement = launched.placement
        self.is_left = launched.is_left
        self.owns_models = owns_models  # else it calls other workers for them
        self.parts: dict[int, PendingPart] = {}
        self.engine_metrics = EngineMetrics({})  # of its language model, as last reported
        self.agents: list[AgentAddress] = []  # of a distributed servable
        self.role = ""  # see `core.roles`
        self.is_ready = False
        self.is_silent = False  # its heartbeats have stopped
        self.end_reason = ""  # why the master killed its process
        self.overdue: status.Running | None = None  # the stage that took too long, if that is why
        self.has_reported = False  # whether loading succeeded
        self._loop = asyncio.get_running_loop()
        self.loaded: asyncio.Future[WorkerReady] = self._loop.create_future()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._owner = owner
        self._launched = launched
        self.status = launched.view.reserved  # see `ipc.status`; a copy once the link is closed
        self._channel = AsyncChannel[ToMaster](
            launched.stream,
            ToMaster,
            on_message=self._handle,
            on_closed=self._on_closed,
            on_problem=self.end,
        )
        self._send = self._channel.send
        self.adapter_calls = AdapterCalls(self._send)
        self._next_id = 0
        self._num_sharing = 1  # workers whose caches share the memory, as this one knows
        self._log_level: str | None = None
        self._lender = PayloadLender(launched.view)
        self._slices: dict[int, list[int]] = {}  # part id -> offsets of its chunks
        self._sender = storing.LargePartSender(launched.arena, self._send_stored, self.cancel)

    # --- messages to the worker -------------------------------------------------------------

    def setup(self, setup: Setup) -> None:
        self._send(setup)

    def share_memory(self, count: int) -> None:
        """Tell the worker that it is one of `count` whose caches share its machine's memory."""
        if count != self._num_sharing:
            self._num_sharing = count
            self._send(ShareMemory(count))

    def send_work(
        self, parts: Sequence[PendingPart], now: float, strategy: DispatchStrategy
    ) -> None:
        """Send `parts` to the worker; `strategy` gets the replies.

        Small parts share a message; a large one has a message of its own, once it is stored.
        """
        small = []
        for part in parts:
            self._begin(part, now, strategy)
            if not self._sender.begin(part, now):
                small.append(self._message(part, storing.store(self._launched.arena, part), now))
        if small:
            self._send(Work(small, self._lender.take_freed()))

    def cancel(self, part: PendingPart) -> None:
        """Ask the worker to drop `part`, which it still has to answer."""
        if not self._sender.cancel(part):
            self._send(Cancel([part.id]))

    def end_sequences(self, method: str, numbers: Sequence[int]) -> None:
        """Have the worker drop the states of sequences."""
        if not self.closed.done():
            self._send(EndSequences(method, list(numbers)))

    def take_parts(self) -> list[PendingPart]:
        """Return the worker's parts, after the link is closed."""
        parts, self.parts = list(self.parts.values()), {}
        return parts

    def answer_call(self, call_id: int, reply: Reply, failed_at: Sequence[int] = ()) -> None:
        if self.closed.done():
            return
        rejected = None if reply.failure is None else to_fault(reply.failure)
        payloads = [self._launched.arena.put(instance) for instance in reply.instances]
        faults = to_faults(reply.faults)
        self._free_soon()
        message = PartReply(call_id, payloads, faults, rejected, reply.is_last)
        self._send(CallReply(message, list(failed_at) if faults else []))

    def trim(self) -> float:
        """Return unused shared memory to the kernel, some at a time.

        Returns the seconds until the next call is due.
        """
        if not self.closed.done():
            self._send_freed()
            return self._launched.arena.trim()
        return arena.TRIM_SECONDS

    def set_log_level(self, level: str | None) -> None:
        """Set the worker's log level, if it differs from the last one sent."""
        if level != self._log_level:
            self._log_level = level
            self._send(LogLevel(level))

    def ask_to_exit(self) -> None:
        self._send(Exit())

    def running(self) -> list[status.Running]:
        """Return the stages that the worker runs, or was running when the link was closed."""
        return list(status.read(self.status))

    # --- end of the worker ----------------------------------------------------------------------

    def end(self, reason: str, overdue: status.Running | None = None) -> None:
        """Kill the process.

        `reason` says why; `overdue` is the stage that took too long, if that is why.
        """
        log.error("worker %s: %s; killing it", self.name, reason)
        self.end_reason, self.overdue = reason, overdue
        self.process.kill()

    def end_unused(self) -> None:
        """End a worker that has got no work: at once, unless it has agents that it has to tell."""
        if not self._has_agents:
            self.process.kill()
            return
        self.ask_to_exit()
        self._loop.call_later(TELL_SECONDS, self.process.kill)

    def close(self) -> None:
        """Close the socket and the arenas.  The owner is notified once."""
        self._channel.close()

    def _on_closed(self) -> None:
        self.is_ready = False
        self.status = memoryview(bytes(self.status))
        self._launched.arena.close()
        self._launched.view.close()
        self.closed.set_result(None)
        self.adapter_calls.end()
        if not self.loaded.done():
            self.loaded.set_exception(StartError("the worker process ended while loading"))
            self.loaded.exception()  # mark as read: nobody may await it any more
        self._owner.on_lost(self)

    # --- sending ----------------------------------------------------------------------------

    def _begin(self, part: PendingPart, now: float, strategy: DispatchStrategy) -> None:
        self._next_id += 1
        part.mark_sent(self, self._next_id, strategy, now)
        self.parts[part.id] = part

    def _message(self, part: PendingPart, chunks: Sequence[Payload], now: float) -> RequestPart:
        slices = [chunk.offset for chunk in chunks if type(chunk) is Slice]
        if slices:
            self._slices[part.id] = slices
        return storing.message(part, chunks, self.name, now)

    def _send_stored(self, part: PendingPart, chunks: Sequence[Payload], now: float) -> None:
        if not self.closed.done():
            self._send(Work([self._message(part, chunks, now)], self._lender.take_freed()))

    # --- receiving --------------------------------------------------------------------------

    def _handle(self, message: ToMaster) -> None:
        if isinstance(message, Done):
            self._on_done(message)
        elif isinstance(message, WorkerCall):
            self._owner.on_call(self, self._with_views(message))
        elif isinstance(message, DropCall):
            self._owner.on_dropped_call(self, message.id)
        elif isinstance(message, Leaving):
            self._owner.on_leaving(self)
        elif isinstance(message, EngineMetrics):
            self.engine_metrics = message
        elif isinstance(message, AdaptersSet):
            self.adapter_calls.take(message)
        elif isinstance(message, Hello):
            self._on_hello(message)
        else:
            self._on_loaded(message)

    def _on_hello(self, message: Hello) -> None:
        if why := version_mismatch(message, messages, "worker"):
            self._on_loaded(Failed(why))
            self.process.kill()

    def _on_loaded(self, message: WorkerReady | Failed) -> None:
        if self.is_ready and isinstance(message, Failed):
            self.end(message.text)
            return
        if self.loaded.done():
            raise ValueError("it reported the result of loading twice")
        self.has_reported = True
        if isinstance(message, WorkerReady):
            self.is_ready = True
            self.agents = message.agents
            self.loaded.set_result(message)
        else:
            where = f"node {self.location.node}: " if self.location.node else ""
            self.loaded.set_exception(StartError(where + message.text))

    def _on_done(self, message: Done) -> None:
        for offset in message.freed:
            self._launched.arena.free(offset)
        answers: dict[DispatchStrategy, list[Answer]] = {}
        try:
            for reply in message.replies:
                part = self.parts[reply.id]
                assert part.strategy is not None
                if reply.state is not None:
                    part.new_state = self._take(reply.state)
                answers.setdefault(part.strategy, []).append((part, self._reply(part, reply)))
                if part.request.trace is not None:
                    part.request.trace.answered(part, reply)
                if reply.is_last:
                    del self.parts[reply.id]
                    for offset in self._slices.pop(reply.id, ()):
                        if offset not in reply.kept:
                            self._launched.arena.free(offset)
        finally:  # replies before an invalid one count
            for strategy, its_answers in answers.items():
                strategy.on_answers(self, its_answers)

    def _reply(self, part: PendingPart, reply: PartReply) -> Reply:
        if reply.rejected is not None:
            return Reply(failure=reply.rejected.to_error())
        take = self._lender.lend if part.codec in ZERO_COPY_CODECS else self._take
        instances = [data if type(data) is bytes else take(data) for data in reply.instances]
        if reply.faults is None:
            return Reply(instances, None, None, reply.is_last, reply.has_output)
        faults = [None if fault is None else fault.to_error() for fault in reply.faults]
        return Reply(instances, faults, is_last=reply.is_last)

    def _take(self, payload: Payload) -> bytes:
        """Return a copy of `payload`, and free its shared memory."""
        self._free_soon()
        return self._lender.copy(payload)

    def _free_soon(self) -> None:
        """Return the worker's memory even if no `Work` is sent, as while a stage calls models."""
        if self._lender.num_freed >= MAX_FREED:
            self._loop.call_soon(self._send_freed)

    def _send_freed(self) -> None:
        freed = self._lender.take_freed()
        if freed:
            self._send(Work([], freed))

    def _with_views(self, call: WorkerCall) -> WorkerCall:
        """Return `call` with views of its chunks, which are copied to another worker's arena."""
        chunks = [self._lender.lend(chunk) for chunk in call.part.chunks]
        part = msgspec.structs.replace(call.part, chunks=chunks)
        return msgspec.structs.replace(call, part=part)
