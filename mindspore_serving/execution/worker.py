"""The worker's loop: receive work, run stages, send answers.  One thread does everything.

Knows channels and messages; what a stage does is the executor's business.
"""

import socket
import time
from collections import deque
from typing import TYPE_CHECKING

from mindspore_serving import log, wire
from mindspore_serving.core.llm_messages import CODEC
from mindspore_serving.errors import Code, InvalidInputs, NotFound, ServingError
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
    Numbers,
    Ready,
    Setup,
    Slice,
    ToWorker,
    Work,
    WorkItem,
    WorkReply,
)

if TYPE_CHECKING:
    from mindspore_serving.execution.language import LanguageHost


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
        self._language: LanguageHost | None = None
        self._numbers: dict[str, int] = {}  # last sent
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
        language = self._language = host.language
        if language is not None:
            language.executor = executor
        while not (self._is_leaving and not executor.has_work and not self._has_open()):
            self._receive(executor, wait=not executor.has_work)
            if language is not None:
                language.collect()
            if executor.has_work:
                executor.run_next(time.monotonic())
            self._send_finished(executor)
        host.close()
        return 0

    def _has_open(self) -> bool:
        has_asks = self._language is not None and self._language.has_work
        return has_asks or bool(self._parts)

    def _load(self, setup: Setup) -> Host | None:
        self._remote.servable = setup.servable_name
        try:
            host = load(setup, self._remote, self._channel.make_wakeable)
        except Exception as error:
            if not isinstance(error, ServingError):
                log.error("loading servable %s", setup.servable_name, exc_info=True)
            self._channel.send(Failed(str(error) or repr(error)))
            return None
        self._remote.version = host.version
        card = None if host.language is None else host.language.card
        self._channel.send(Ready(host.version, host.method_reports(), host.models, card))
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
                self._cancel(part_id)
        elif isinstance(message, CallReply):
            executor.resume(*self._remote.take(message.reply))
            self._release(message.reply)
        elif isinstance(message, Exit):
            self._is_leaving = True

    def _cancel(self, part_id: int) -> None:
        if part_id in self._parts:
            self._parts[part_id].is_cancelled = True
        if self._language is not None:
            self._language.cancel(part_id)

    def _free(self, work: Work) -> None:
        for offset in work.freed:
            self._arena.free(offset)

    def _accept(self, executor: Executor, item: WorkItem) -> None:
        if item.codec == CODEC and self._language is not None:
            self._ask(self._language, item)
            return
        program = executor.programs.get(item.method)
        deadline = None if item.timeout is None else time.monotonic() + item.timeout
        try:
            if program is None:
                raise NotFound(f"method {item.method} is not available")
            codec = wire.worker_codec(item.codec)
            chunks = [self._view.get(chunk) for chunk in item.chunks]
            instances = codec.decode(chunks, program.method, program.label)
            part = Part(item.id, program, codec, deadline)
            part.is_stream = item.is_stream
            executor.add(part, instances)
        except Exception as error:
            self._reject(item.id, error)
            return
        self._parts[item.id] = part

    def _ask(self, language: "LanguageHost", item: WorkItem) -> None:
        try:
            language.accept(item.id, item.method, self._view.get(item.chunks[0]))
        except Exception as error:
            self._reject(item.id, error)

    def _reject(self, part_id: int, error: Exception) -> None:
        if isinstance(error, RecursionError):
            error = InvalidInputs("the request has too many arrays or objects in one another")
        if not isinstance(error, ServingError):
            log.error("decoding a request", exc_info=True)
            error = ServingError("the request could not be decoded")
        fault = Fault(error.code, str(error))
        self._channel.send(Done([WorkReply(part_id, [], rejected=fault)]))

    def _send_finished(self, executor: Executor) -> None:
        replies = [self._pieces(part) for part in executor.with_pieces.values()]
        executor.with_pieces.clear()
        if executor.finished:
            replies += [self._reply(part) for part in executor.finished]
            executor.finished.clear()
        if self._language is not None:
            replies += self._language_replies(self._language)
        if replies:
            self._channel.send(Done(replies))

    def _pieces(self, part: Part) -> WorkReply:
        """What a stream has to say by now; its end follows."""
        pieces, part.outputs = part.outputs, []
        return WorkReply(part.id, [self._arena.put(piece) for piece in pieces], is_last=False)

    def _reply(self, part: Part) -> WorkReply:
        del self._parts[part.id]
        put = self._arena.put
        instances = [put(output) for output in part.outputs]
        if part.faults is None:
            return WorkReply(part.id, instances)
        faults = [None if error is None else _to_fault(error) for error in part.faults]
        if part.is_stream:
            return WorkReply(part.id, [], rejected=faults[0])
        return WorkReply(part.id, instances, faults)

    def _language_replies(self, language: "LanguageHost") -> list[WorkReply]:
        replies = []
        for sent in language.sent:
            if sent.error is not None:
                fault = _to_fault(sent.error)
                replies.append(WorkReply(sent.item_id, [], rejected=fault))
            else:
                events = self._arena.put(sent.events)
                replies.append(WorkReply(sent.item_id, [events], is_last=sent.is_last))
        language.sent.clear()
        numbers = language.numbers()
        if numbers and numbers != self._numbers:
            self._numbers = numbers
            self._channel.send(Numbers(numbers))
        return replies

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
