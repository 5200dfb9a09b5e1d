"""The master's end of the channel to one worker: sends messages, reports what the worker sent.

Lives on the event loop.  Decides nothing: `batched` and `streamed` count what a worker has.
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
    EngineMetrics,
    LogLevel,
    PartReply,
    Payload,
    RequestPart,
    Setup,
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
from mindspore_serving.master.lent import LENT, Lent
from mindspore_serving.master.request import Answer, DispatchStrategy, PendingPart
from mindspore_serving.process.async_channel import AsyncChannel
from mindspore_serving.process.vocabulary import Exit, Failed, Hello, Leaving, version_mismatch

MOST_FREED = 16  # offsets kept until the next work takes them along


class LinkOwner(Protocol):
    """Gets what happens on a link, except for answers: they go to who sent the parts."""

    def on_call(self, link: "Link", call: WorkerCall) -> None: ...

    def on_leaving(self, link: "Link") -> None: ...

    def on_lost(self, link: "Link") -> None: ...


class Link:
    """A worker: its process, the parts it has, and the socket to it."""

    def __init__(
        self, launched: Launched, name: str, owner: LinkOwner, *, owns_models: bool = True
    ) -> None:
        self.name = name
        self.process = launched.process
        self.place = launched.place
        self.python = launched.python
        self.owns_models = owns_models  # else other workers run them
        self.parts: dict[int, PendingPart] = {}
        self.numbers = EngineMetrics({})  # of its language-model engine, as it reported last
        self.agents: list[AgentAddress] = []  # of a distributed servable
        self.is_ready = False
        self.is_silent = False  # it gives no heartbeat
        self.why_ended = ""  # if we ended its process
        self.overdue: status.Running | None = None  # if we did because that took too long
        self.has_reported = False  # how loading went
        self._loop = asyncio.get_running_loop()
        self.loaded: asyncio.Future[WorkerReady] = self._loop.create_future()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._owner = owner
        self._launched = launched
        self.status = launched.view.reserved  # what it says of itself; a copy once it is closed
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
        self._log_level: str | None = None
        self._lent = Lent(launched.view)
        self._slices: dict[int, list[int]] = {}  # part id -> offsets of its chunks
        self._storing = storing.Storing(launched.arena, self._send_stored, self.cancel)

    # --- messages to the worker -------------------------------------------------------------

    def setup(self, setup: Setup) -> None:
        self._send(setup)

    def send_work(
        self, parts: Sequence[PendingPart], now: float, strategy: DispatchStrategy
    ) -> None:
        """Give `parts` to the worker, in one message but for large ones; `strategy` gets the
        answers.
        """
        small = []
        for part in parts:
            self._begin(part, now, strategy)
            if not self._storing.begin(part, now):
                small.append(self._message(part, storing.store(self._launched.arena, part), now))
        if small:
            self._send(Work(small, self._lent.take_freed()))

    def cancel(self, part: PendingPart) -> None:
        """Nobody waits for `part`.  The worker has it until it has answered."""
        if not self._storing.cancel(part):
            self._send(Cancel([part.id]))

    def take_parts(self) -> list[PendingPart]:
        """What the worker had, once the link is closed."""
        parts, self.parts = list(self.parts.values()), {}
        return parts

    def answer_call(self, call_id: int, reply: Reply) -> None:
        if self.closed.done():
            return
        rejected = None if reply.failure is None else to_fault(reply.failure)
        payloads = [self._launched.arena.put(instance) for instance in reply.instances]
        self._send(CallReply(PartReply(call_id, payloads, to_faults(reply.faults), rejected)))

    def trim(self) -> float:
        """Give unused shared memory back, some at a time.  The seconds until the next call."""
        if not self.closed.done():
            self._send_freed()
            return self._launched.arena.trim()
        return arena.TRIM_SECONDS

    def set_log_level(self, level: str | None) -> None:
        """The level that `log.set_level` was given here is to be the worker's."""
        if level != self._log_level:
            self._log_level = level
            self._send(LogLevel(level))

    def ask_to_exit(self) -> None:
        self._send(Exit())

    def running(self) -> list[status.Running]:
        """What it runs now; once the link is closed, what it ran then."""
        return list(status.read(self.status))

    # --- its end ------------------------------------------------------------------------------

    def end(self, reason: str, overdue: status.Running | None = None) -> None:
        """Kill the process, for `reason`; because `overdue` took too long, if it is given."""
        log.error("worker %s: %s; ending it", self.name, reason)
        self.why_ended, self.overdue = reason, overdue
        self.process.kill()

    def close(self) -> None:
        """Close the socket and the arenas.  Reported to the owner once."""
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
            self.loaded.exception()  # it may have no reader any more
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
            self._send(Work([self._message(part, chunks, now)], self._lent.take_freed()))

    # --- receiving --------------------------------------------------------------------------

    def _handle(self, message: ToMaster) -> None:
        if isinstance(message, Done):
            self._on_done(message)
        elif isinstance(message, WorkerCall):
            self._owner.on_call(self, self._copied(message))
        elif isinstance(message, Leaving):
            self._owner.on_leaving(self)
        elif isinstance(message, EngineMetrics):
            self.numbers = message
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
            raise ValueError("it reported twice how loading went")
        self.has_reported = True
        if isinstance(message, WorkerReady):
            self.is_ready = True
            self.agents = message.agents
            self.loaded.set_result(message)
        else:
            where = f"node {self.place.node}: " if self.place.node else ""
            self.loaded.set_exception(StartError(where + message.text))

    def _on_done(self, message: Done) -> None:
        for offset in message.freed:
            self._launched.arena.free(offset)
        answers: dict[DispatchStrategy, list[Answer]] = {}
        try:
            for reply in message.replies:
                part = self.parts[reply.id]
                assert part.strategy is not None
                answers.setdefault(part.strategy, []).append((part, self._reply(part, reply)))
                if part.request.trace is not None:
                    part.request.trace.answered(part, reply)
                if reply.is_last:
                    del self.parts[reply.id]
                    for offset in self._slices.pop(reply.id, ()):
                        if offset not in reply.kept:
                            self._launched.arena.free(offset)
        finally:  # what came before a wrong reply counts
            for strategy, its_answers in answers.items():
                strategy.on_answers(self, its_answers)

    def _reply(self, part: PendingPart, reply: PartReply) -> Reply:
        if reply.rejected is not None:
            return Reply(failure=reply.rejected.to_error())
        take = self._lent.lend if part.codec in LENT else self._take
        instances = [one if type(one) is bytes else take(one) for one in reply.instances]
        if reply.faults is None:
            return Reply(instances, None, None, reply.is_last, reply.has_output)
        faults = [None if fault is None else fault.to_error() for fault in reply.faults]
        return Reply(instances, faults, is_last=reply.is_last)

    def _take(self, payload: Payload) -> bytes:
        """The bytes of `payload`; what lies in shared memory is copied and given back."""
        if self._lent.num_freed >= MOST_FREED:  # while a stage calls models, no work goes there
            self._loop.call_soon(self._send_freed)
        return self._lent.copy(payload)

    def _send_freed(self) -> None:
        freed = self._lent.take_freed()
        if freed:
            self._send(Work([], freed))

    def _copied(self, call: WorkerCall) -> WorkerCall:
        chunks: list[Payload] = [self._take(chunk) for chunk in call.part.chunks]
        part = msgspec.structs.replace(call.part, chunks=chunks)
        return WorkerCall(call.servable, call.version, part)
