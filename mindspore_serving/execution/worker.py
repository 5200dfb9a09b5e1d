"""The worker's loop: receive work, run stages, send answers.  One thread does everything.

Knows channels and messages; what a stage does is the executor's business.
"""

import socket
import time
from collections import deque

from mindspore_serving import log, wire
from mindspore_serving.errors import Code, NotFound, ServingError
from mindspore_serving.execution.executor import Executor
from mindspore_serving.execution.host import Host, load
from mindspore_serving.execution.job import Part
from mindspore_serving.execution.remote import RemoteCaller
from mindspore_serving.ipc.arena import Arena, ArenaView, NoArena
from mindspore_serving.ipc.channel import BlockingChannel
from mindspore_serving.ipc.messages import (
    CallReply,
    Cancel,
    Done,
    Exit,
    Failed,
    Fault,
    Leaving,
    Ready,
    Setup,
    Slice,
    ToWorker,
    Work,
    WorkItem,
    WorkReply,
)


class Worker:
    """Serves one servable over one channel until it is told to leave."""

    def __init__(
        self, stream: socket.socket, arena: Arena | NoArena, view: ArenaView | NoArena
    ) -> None:
        self._channel: BlockingChannel[ToWorker] = BlockingChannel(stream, ToWorker)
        self._arena = arena
        self._view = view
        self._inbox: deque[ToWorker] = deque()
        self._parts: dict[int, Part] = {}
        self._is_leaving = False
        self._remote = RemoteCaller(self._channel.send, self._wait_for, arena, view, self._release)

    def serve(self) -> int:
        """Until the end; returns the exit status.  Raises EOFError if the master is gone."""
        setup, *later = self._channel.receive(wait=True)
        assert isinstance(setup, Setup)
        self._inbox.extend(later)
        host = self._load(setup)
        if host is None:
            return 1
        executor = Executor(host.programs)
        while not (self._is_leaving and not executor.has_work and not self._parts):
            self._receive(executor, wait=not executor.has_work)
            if executor.has_work:
                executor.run_next(time.monotonic())
            self._send_finished(executor)
        host.close()
        return 0

    def _load(self, setup: Setup) -> Host | None:
        self._remote.servable = setup.servable_name
        try:
            host = load(setup, self._remote)
        except Exception as error:
            if not isinstance(error, ServingError):
                log.error("loading servable %s", setup.servable_name, exc_info=True)
            self._channel.send(Failed(str(error) or repr(error)))
            return None
        self._remote.version = host.version
        self._channel.send(Ready(host.version, host.method_reports(), host.models))
        return host

    def announce_leaving(self) -> None:
        """From any thread: ask the master to send no more work and then `Exit`."""
        self._channel.send(Leaving())

    def _receive(self, executor: Executor, *, wait: bool) -> None:
        if not self._inbox:
            self._inbox.extend(self._channel.receive(wait=wait))
        while self._inbox:
            self._handle(executor, self._inbox.popleft())

    def _handle(self, executor: Executor, message: ToWorker) -> None:
        if isinstance(message, Work):
            self._free(message)
            for item in message.items:
                self._accept(executor, item)
        elif isinstance(message, Cancel):
            for part_id in message.ids:
                if part_id in self._parts:
                    self._parts[part_id].is_cancelled = True
        elif isinstance(message, CallReply):
            executor.resume(*self._remote.take(message.reply))
            self._release(message.reply)
        elif isinstance(message, Exit):
            self._is_leaving = True

    def _free(self, work: Work) -> None:
        for offset in work.freed:
            self._arena.free(offset)

    def _accept(self, executor: Executor, item: WorkItem) -> None:
        program = executor.programs.get(item.method)
        deadline = None if item.timeout is None else time.monotonic() + item.timeout
        try:
            if program is None:
                raise NotFound(f"method {item.method} is not available")
            codec = wire.worker_codec(item.codec)
            chunks = [self._view.get(chunk) for chunk in item.chunks]
            instances = codec.decode(chunks, program.method, program.label)
            part = Part(item.id, program, codec, deadline)
            executor.add(part, instances)
        except Exception as error:
            self._reject(item.id, error)
            return
        self._parts[item.id] = part

    def _reject(self, part_id: int, error: Exception) -> None:
        if not isinstance(error, ServingError):
            log.error("decoding a request", exc_info=True)
            error = ServingError("the request could not be decoded")
        fault = Fault(error.code, str(error))
        self._channel.send(Done([WorkReply(part_id, [], rejected=fault)]))

    def _send_finished(self, executor: Executor) -> None:
        if executor.finished:
            replies = [self._reply(part) for part in executor.finished]
            executor.finished.clear()
            self._channel.send(Done(replies))

    def _reply(self, part: Part) -> WorkReply:
        del self._parts[part.id]
        put = self._arena.put
        instances = [put(output) for output in part.outputs]
        if part.faults is None:
            return WorkReply(part.id, instances)
        faults = [None if error is None else _to_fault(error) for error in part.faults]
        return WorkReply(part.id, instances, faults)

    def _wait_for(self, call_id: int) -> WorkReply:
        """Blocks in a stage function until the model call is answered; other work waits."""
        while True:
            reply = None
            for message in self._channel.receive(wait=True):
                if isinstance(message, CallReply) and message.reply.id == call_id:
                    reply = message.reply
                elif isinstance(message, Work):
                    self._free(message)  # the stage that waits may need the room
                    self._inbox.append(Work(message.items))
                else:
                    self._inbox.append(message)
            if reply is not None:
                return reply

    def _release(self, reply: WorkReply) -> None:
        """Tell the master that what `reply` has in shared memory was copied."""
        freed = [item.offset for item in reply.instances if isinstance(item, Slice)]
        if freed:
            self._channel.send(Done([], freed))


def _to_fault(error: ServingError) -> Fault:
    return Fault(error.code, str(error) or Code(error.code).name)
