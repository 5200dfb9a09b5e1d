"""Loop of a worker's thread: receive messages, run stages, send replies.

A language model adds its requests to the loop that reads the channel.  If methods have stages of
the user's code, those run in a second loop, so that a slow stage delays no stream.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mindspore_serving import log, wire
from mindspore_serving.core.llm_messages import CODEC
from mindspore_serving.core.value import Instance
from mindspore_serving.errors import InvalidInputs, NoInstances, NotFound, ServingError
from mindspore_serving.ipc.messages import (
    CallReply,
    Cancel,
    Done,
    EndSequences,
    LogLevel,
    PartReply,
    RequestPart,
    SetAdapters,
    ShareMemory,
    ToWorker,
    Work,
    to_fault,
    to_faults,
)
from mindspore_serving.process.vocabulary import Exit
from mindspore_serving.tracing.span import from_traceparent
from mindspore_serving.wire import Chunk
from mindspore_serving.worker.borrowing import Borrower
from mindspore_serving.worker.connection import Inbox, MasterConnection, ThreadSource
from mindspore_serving.worker.decoding import decode
from mindspore_serving.worker.executor import Executor
from mindspore_serving.worker.job import PreparedMethod, RunningPart
from mindspore_serving.worker.part_trace import PartTrace
from mindspore_serving.worker.prefill_calls import is_prefill
from mindspore_serving.worker.remote import RemoteCaller

if TYPE_CHECKING:
    from mindspore_serving.worker.language import LanguageService


class StageLoop:
    """Loop that runs parts of requests until the master sends `Exit` and all are answered."""

    def __init__(
        self, connection: MasterConnection, inbox: Inbox, remote: RemoteCaller, executor: Executor
    ) -> None:
        self.executor = executor
        self._connection = connection
        self._inbox = inbox
        self._remote = remote
        self._borrower = Borrower(connection.view)
        self._put = connection.arena.put
        self._open: dict[int, RunningPart] = {}
        self._is_timed = log.is_shown("1")
        self._begun: dict[int, float] = {}  # start times of parts, if they are to be logged
        self._is_leaving = False

    @property
    def is_idle(self) -> bool:
        """True if all parts are answered."""
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
            for part in message.parts:
                try:
                    self.start(part)
                except Exception as error:
                    with log.of_request(part.request_id):
                        self._connection.send(Done([_rejection(part.id, error)]))
                    self._reject_sequence(part)
        elif isinstance(message, Cancel):
            for part_id in message.ids:
                self.cancel(part_id)
        elif isinstance(message, CallReply):
            self._remote.deliver(message, self.executor)
        elif isinstance(message, LogLevel):
            log.set_level(message.level)
            self._is_timed = log.is_shown("1")
        elif isinstance(message, EndSequences):
            self._end_sequences(message)
        elif isinstance(message, Exit):
            self._is_leaving = True

    def _end_sequences(self, message: EndSequences) -> None:
        program = self.executor.programs.get(message.method)
        if program is not None and program.sequences is not None:
            program.sequences.end(message.numbers)

    def _reject_sequence(self, part: RequestPart) -> None:
        program = self.executor.programs.get(part.method)
        if program is not None and program.sequences is not None and part.sequence is not None:
            program.sequences.settle(part.sequence, has_failed=True)

    def start(self, part: RequestPart) -> None:
        """Queue the instances of `part`.  Raises ServingError if that is impossible."""
        program = self.executor.programs.get(part.method)
        deadline = None if part.timeout is None else time.monotonic() + part.timeout
        if program is None:
            raise NotFound(f"method {part.method} is not available")
        chunks, loans = self._borrower.borrow(part.chunks)
        instances = self._decode(part, chunks, program)
        codec = wire.worker_codec(part.codec)
        running = RunningPart(part.id, program, codec, deadline, part.is_stream)
        running.request_id = part.request_id
        running.trace = _trace(part) if part.traceparent else None
        running.put, running.loans, running.sequence = self._put, loans, part.sequence
        self.executor.add(running, instances)
        self._open[part.id] = running
        if self._is_timed:
            self._begun[part.id] = time.monotonic()

    def _decode(
        self, part: RequestPart, chunks: Sequence[Chunk], program: PreparedMethod
    ) -> list[Instance]:
        try:
            return decode(part, chunks, program)
        except NoInstances:
            if part.sequence is None or not part.sequence.is_end:
                raise
            return []  # ends the sequence, and computes nothing

    def cancel(self, part_id: int) -> None:
        """Cancel the part, whose answer is no longer needed."""
        part = self._open.get(part_id)
        if part is not None:
            part.cancel()

    def collect(self) -> list[PartReply]:
        """Return the replies that are ready: pieces of streams, and finished parts."""
        executor = self.executor
        replies: list[PartReply] = []
        if executor.unsent:
            replies += [self._pieces(part) for part in executor.unsent.values()]
            executor.unsent.clear()
        if executor.finished:
            replies += [self._reply(part) for part in executor.finished]
            executor.finished.clear()
        return replies

    def _pieces(self, part: RunningPart) -> PartReply:
        """Return a reply with the unsent pieces of a stream; its last reply follows later."""
        pieces, part.outputs = part.outputs, []
        return PartReply(part.id, pieces, is_last=False)

    def _reply(self, part: RunningPart) -> PartReply:
        del self._open[part.id]
        if self._begun:
            self._log_time(part)
        instances, kept = part.outputs, self._borrower.answered(part.loans) if part.loans else []
        state = None if part.kept_state is None else self._put(part.kept_state)
        if part.faults is None and part.trace is None:
            return PartReply(part.id, instances, kept=kept, state=state)
        faults = to_faults(part.faults)
        spans = [] if part.trace is None else part.trace.finish(part.program.method.stages)
        if faults and part.is_stream:
            return PartReply(part.id, [], rejected=faults[0], spans=spans, kept=kept)
        return PartReply(part.id, instances, faults, spans=spans, kept=kept, state=state)

    def _log_time(self, part: RunningPart) -> None:
        begun = self._begun.pop(part.id, None)
        if begun is not None:
            name, milliseconds = part.program.method.name, 1000 * (time.monotonic() - begun)
            log.info("Method %s WorkerRequestHandle Time Cost # %.3f ms", name, milliseconds)


class LanguageLoop(StageLoop):
    """Loop that also serves a language model and sends its tokens as they are produced.

    `stage_source`, if given, gets the messages for methods that run in the other loop.
    """

    def __init__(
        self,
        connection: MasterConnection,
        inbox: Inbox,
        remote: RemoteCaller,
        executor: Executor,
        *,
        language: "LanguageService",
        stage_source: ThreadSource | None,
    ) -> None:
        super().__init__(connection, inbox, remote, executor)
        self.is_alone = stage_source is None  # no other thread has unanswered parts
        self._language = language
        self._stage_source = stage_source
        self._reported: tuple[object, ...] = ()  # last sent

    @property
    def is_idle(self) -> bool:
        return self.is_alone and super().is_idle and not self._language.has_work

    def handle(self, message: ToWorker) -> None:
        if isinstance(message, SetAdapters):
            self._language.set_adapters(message, self._connection.send)
            return
        if isinstance(message, ShareMemory):
            self._language.engine.share_memory(message.count)
            return
        if isinstance(message, CallReply) and is_prefill(message):
            self._language.on_prefill(message)
            return
        if self._stage_source is not None and not isinstance(message, Work):
            self._stage_source.put(message)
            if isinstance(message, CallReply):
                return  # the methods of this loop have no models
        super().handle(message)

    def start(self, part: RequestPart) -> None:
        if part.codec == CODEC:
            body = self._connection.view.get(part.chunks[0])
            self._language.accept(part.id, part.method, body, part.request_id, _trace(part))
        elif self._stage_source is not None and part.method not in self.executor.programs:
            self._stage_source.put(Work([part]))
        else:
            chunks = [self._connection.view.get(chunk) for chunk in part.chunks]
            self._language.check_instances(part.codec, chunks)
            super().start(part)

    def cancel(self, part_id: int) -> None:
        super().cancel(part_id)
        self._language.cancel(part_id)

    def collect(self) -> list[PartReply]:
        collected = self._language.collect(self._connection.arena)
        engine = self._language.engine
        reported = (self._language.stats(), engine.unready, engine.decision, engine.upstreams)
        if reported != self._reported:
            self._reported = reported
            self._connection.send(self._language.report())
        return super().collect() + collected


def _trace(part: RequestPart) -> PartTrace | None:
    if not part.traceparent:
        return None
    return PartTrace(from_traceparent(part.traceparent, part.tracestate))


def _rejection(part_id: int, error: Exception) -> PartReply:
    """Return the reply to a part that cannot be run because of `error`, which is being handled."""
    if isinstance(error, RecursionError):
        error = InvalidInputs("the request nests too many arrays or objects")
    if not isinstance(error, ServingError):
        log.error("failed to decode a request", exc_info=True)
        error = ServingError("the request could not be decoded")
    return PartReply(part_id, [], rejected=to_fault(error))
