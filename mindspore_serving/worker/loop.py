"""The loop of a worker's thread: receive messages, run stages, send answers.

A language model adds its own requests to the loop that reads the channel.  Where methods have
stages of the user's own, those run in a second loop, so that a slow one holds up no stream.
"""

import time
from typing import TYPE_CHECKING

from mindspore_serving import log, wire
from mindspore_serving.core.llm_messages import CODEC
from mindspore_serving.errors import InvalidInputs, NotFound, ServingError
from mindspore_serving.ipc.messages import (
    CallReply,
    Cancel,
    Done,
    LogLevel,
    SetAdapters,
    ToWorker,
    Work,
    WorkItem,
    WorkReply,
    to_fault,
    to_faults,
)
from mindspore_serving.process.vocabulary import Exit
from mindspore_serving.tracing.span import from_traceparent
from mindspore_serving.worker.borrowing import Borrower
from mindspore_serving.worker.connection import Connection, Inbox, ThreadSource
from mindspore_serving.worker.decoding import decode
from mindspore_serving.worker.executor import Executor
from mindspore_serving.worker.item_trace import ItemTrace
from mindspore_serving.worker.job import Item
from mindspore_serving.worker.remote import RemoteCaller

if TYPE_CHECKING:
    from mindspore_serving.worker.language import LanguageService


class StageLoop:
    """Runs work items until the master sends `Exit` and all are answered."""

    def __init__(
        self, connection: Connection, inbox: Inbox, remote: RemoteCaller, executor: Executor
    ) -> None:
        self.executor = executor
        self._connection = connection
        self._inbox = inbox
        self._remote = remote
        self._borrower = Borrower(connection.view)
        self._put = connection.arena.put
        self._open: dict[int, Item] = {}
        self._is_timed = log.is_shown("1")
        self._begun: dict[int, float] = {}  # of items whose time will be logged
        self._is_leaving = False

    @property
    def is_idle(self) -> bool:
        """Whether everything is answered."""
        return not self._open and not self.executor.has_work

    def run(self) -> None:
        executor = self.executor
        while not (self._is_leaving and self.is_idle):
            for message in self._inbox.receive(wait=not executor.has_work):
                self.handle(message)
            if executor.has_work:
                executor.run_next(time.monotonic())
            replies = self.collect()
            returned = self._borrower.take_returned()
            if replies or returned:
                self._connection.send(Done(replies, returned))

    def handle(self, message: ToWorker) -> None:
        if isinstance(message, Work):
            self._connection.free(message)
            for work in message.items:
                try:
                    self.start(work)
                except Exception as error:
                    with log.of_request(work.request_id):
                        self._connection.send(Done([_rejection(work.id, error)]))
        elif isinstance(message, Cancel):
            for item_id in message.ids:
                self.cancel(item_id)
        elif isinstance(message, CallReply):
            self.executor.resume(*self._remote.take(message.reply))
        elif isinstance(message, LogLevel):
            log.set_level(message.level)
            self._is_timed = log.is_shown("1")
        elif isinstance(message, Exit):
            self._is_leaving = True

    def start(self, work: WorkItem) -> None:
        """Queue the instances of `work`.  Raises ServingError if they cannot be."""
        program = self.executor.programs.get(work.method)
        deadline = None if work.timeout is None else time.monotonic() + work.timeout
        if program is None:
            raise NotFound(f"method {work.method} is not available")
        chunks, loans = self._borrower.borrow(work.chunks)
        instances = decode(work, chunks, program)
        codec = wire.worker_codec(work.codec)
        trace = _trace(work) if work.traceparent else None
        item = Item(work.id, program, codec, deadline, work.is_stream, work.request_id, trace)
        item.put, item.loans = self._put, loans
        self.executor.add(item, instances)
        self._open[work.id] = item
        if self._is_timed:
            self._begun[work.id] = time.monotonic()

    def cancel(self, item_id: int) -> None:
        """Nobody waits for the item any more."""
        item = self._open.get(item_id)
        if item is not None:
            item.cancel()

    def collect(self) -> list[WorkReply]:
        """The replies that are ready: pieces of streams, and what is finished."""
        executor = self.executor
        replies: list[WorkReply] = []
        if executor.with_pieces:
            replies += [self._pieces(item) for item in executor.with_pieces.values()]
            executor.with_pieces.clear()
        if executor.finished:
            replies += [self._reply(item) for item in executor.finished]
            executor.finished.clear()
        return replies

    def _pieces(self, item: Item) -> WorkReply:
        """What a stream has by now; its end follows."""
        pieces, item.outputs = item.outputs, []
        return WorkReply(item.id, pieces, is_last=False)

    def _reply(self, item: Item) -> WorkReply:
        del self._open[item.id]
        if self._begun:
            self._log_time(item)
        instances, kept = item.outputs, self._borrower.answered(item.loans) if item.loans else []
        if item.faults is None and item.trace is None:
            return WorkReply(item.id, instances, kept=kept)
        faults = to_faults(item.faults)
        spans = [] if item.trace is None else item.trace.finish(item.program.method.stages)
        if faults and item.is_stream:
            return WorkReply(item.id, [], rejected=faults[0], spans=spans, kept=kept)
        return WorkReply(item.id, instances, faults, spans=spans, kept=kept)

    def _log_time(self, item: Item) -> None:
        begun = self._begun.pop(item.id, None)
        if begun is not None:
            name, milliseconds = item.program.method.name, 1000 * (time.monotonic() - begun)
            log.info("Method %s WorkerRequestHandle Time Cost # %.3f ms", name, milliseconds)


class LanguageLoop(StageLoop):
    """A `StageLoop` with a language model, which sends tokens as they come.

    `others`, if given, gets the messages about methods that this loop does not run.
    """

    def __init__(
        self,
        connection: Connection,
        inbox: Inbox,
        remote: RemoteCaller,
        executor: Executor,
        *,
        language: "LanguageService",
        others: ThreadSource | None,
    ) -> None:
        super().__init__(connection, inbox, remote, executor)
        self.is_alone = others is None  # no other thread has something to answer
        self._language = language
        self._others = others
        self._reported: tuple[dict[str, int], str] = ({}, "")  # last sent

    @property
    def is_idle(self) -> bool:
        return self.is_alone and super().is_idle and not self._language.has_work

    def handle(self, message: ToWorker) -> None:
        if isinstance(message, SetAdapters):
            self._language.set_adapters(message, self._connection.send)
            return
        if self._others is not None and not isinstance(message, Work):
            self._others.put(message)
            if isinstance(message, CallReply):
                return  # the methods of this loop have no models
        super().handle(message)

    def start(self, work: WorkItem) -> None:
        if work.codec == CODEC:
            body = self._connection.view.get(work.chunks[0])
            name, trace = work.request_id, _trace(work)
            self._language.accept(work.id, work.method, body, name, trace)
        elif self._others is not None and work.method not in self.executor.programs:
            self._others.put(Work([work]))
        else:
            chunks = [self._connection.view.get(chunk) for chunk in work.chunks]
            self._language.check_instances(work.codec, chunks)
            super().start(work)

    def cancel(self, item_id: int) -> None:
        super().cancel(item_id)
        self._language.cancel(item_id)

    def collect(self) -> list[WorkReply]:
        collected = self._language.collect(self._connection.arena)
        reported = (self._language.numbers(), self._language.engine.unready)
        if reported != self._reported:
            self._reported = reported
            self._connection.send(self._language.report())
        return super().collect() + collected


def _trace(work: WorkItem) -> ItemTrace | None:
    if not work.traceparent:
        return None
    return ItemTrace(from_traceparent(work.traceparent, work.tracestate))


def _rejection(item_id: int, error: Exception) -> WorkReply:
    """The reply to an item that cannot be run.  `error` is being handled."""
    if isinstance(error, RecursionError):
        error = InvalidInputs("the request has too many arrays or objects in one another")
    if not isinstance(error, ServingError):
        log.error("decoding a request", exc_info=True)
        error = ServingError("the request could not be decoded")
    return WorkReply(item_id, [], rejected=to_fault(error))
