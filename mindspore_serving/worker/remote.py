"""Calls of models of other workers, and of other servables: their jobs are parked until the reply.

It knows messages only; the worker's loop reads the channel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, groupby

from mindspore_serving import log
from mindspore_serving.core.graph import Stage
from mindspore_serving.core.value import Value
from mindspore_serving.errors import ServingError
from mindspore_serving.ipc.messages import CallReply, PartReply, RequestPart, WorkerCall
from mindspore_serving.tracing import user_spans
from mindspore_serving.tracing.span import SpanContext
from mindspore_serving.wire import native
from mindspore_serving.worker import request_context
from mindspore_serving.worker.chains import Chain
from mindspore_serving.worker.connection import Inbox, MasterConnection
from mindspore_serving.worker.job import Job, JobQueue, Outcome, RunningPart
from mindspore_serving.worker.loaded_servable import call_name


@dataclass(frozen=True, slots=True)
class _Target:
    servable: str
    version: int
    method: str


@dataclass(frozen=True, slots=True)
class _Caller:
    """Parts for which a call is made: their ids, in logs and traces."""

    parts: list[int]
    request_id: str
    context: SpanContext | None
    waits: bool = False  # this worker waits for the reply


class RemoteCaller:
    """Calls in flight to models of other workers and to servables; `inbox` gets their replies."""

    def __init__(self, connection: MasterConnection, inbox: Inbox) -> None:
        self.inbox = inbox
        self.servable = ""
        self.version = 0
        self._connection = connection
        self._ids = count(1)
        self._parked: dict[int, tuple[list[Job], Chain | None]] = {}
        self._streams: dict[int, Job] = {}

    def start(self, key: str, subgraph: int, jobs: list[Job], stage: Stage) -> None:
        """Run a model for `jobs` elsewhere; `deliver` continues them."""
        call_id = self._ask(self._model(key, subgraph), _rows(jobs, stage.inputs))
        self._parked[call_id] = jobs, None

    def start_method(
        self, servable: str, method: str, jobs: list[Job], stage: Stage, chain: Chain | None
    ) -> None:
        """Call a method of another servable, once for each part; `deliver` continues the jobs.

        The stages of `chain` follow without this worker, unless each is to have a span.
        """
        target = _Target(servable, stage.version, method)
        for part, group in groupby(jobs, lambda job: job.part):
            members = list(group)
            is_stream = stage.streams and members[0].is_to_stream
            is_sampled = part.trace is not None and part.trace.context.is_sampled
            its_chain = None if is_sampled else chain
            rows = _rows(members, stage.inputs if its_chain is None else its_chain.inputs)
            caller = _caller(part, members[0].position)
            call_id = self._ask(target, rows, caller, is_stream, its_chain)
            if is_stream:
                (self._streams[call_id],) = members
            else:
                self._parked[call_id] = members, its_chain

    def call(self, key: str, subgraph: int, rows: Sequence[tuple[Value, ...]]) -> list[Outcome]:
        """Run a model elsewhere and wait for the outcomes."""
        return self._wait(self._model(key, subgraph), rows)

    def call_method(
        self, servable: str, version: int, method: str, rows: Sequence[tuple[Value, ...]]
    ) -> list[Outcome]:
        """Call a method of any servable, with its inputs by position, and wait for the reply."""
        return self._wait(_Target(servable, version, method), rows)

    def deliver(self, message: CallReply, queue: JobQueue) -> None:
        """Continue the jobs that a reply answers."""
        reply = message.reply
        job = self._streams.get(reply.id)
        if job is None:
            jobs, chain = self._parked.pop(reply.id)
            outcomes, position = self._outcomes(reply, len(jobs)), jobs[0].position
            if chain is not None:
                for number, outcome in enumerate(outcomes):
                    if not isinstance(outcome, ServingError):
                        outcomes[number] = chain.outcome(outcome)
                    elif message.failed_at:
                        jobs[number].position += message.failed_at[number]
            num_stages = 1 if chain is None else chain.num_stages
            queue.resume(jobs, outcomes, position, num_stages)
            return
        if reply.is_last:
            del self._streams[reply.id]
        has_failed = False
        pieces = len(reply.instances) if reply.rejected is None else 1
        for outcome in self._outcomes(reply, pieces):
            has_failed = has_failed or isinstance(outcome, ServingError)
            queue.emit(job, outcome)
        if reply.is_last and not has_failed:
            queue.end(job)

    def _wait(self, target: _Target, rows: Sequence[tuple[Value, ...]]) -> list[Outcome]:
        call_id = self._ask(target, rows, _caller_at_work(waits=True))
        return self._outcomes(self.inbox.wait_for(call_id), len(rows))

    def _outcomes(self, reply: PartReply, expected: int) -> list[Outcome]:
        if reply.rejected is not None:
            return [reply.rejected.to_error()] * expected
        outcomes: list[Outcome] = []
        for index, payload in enumerate(reply.instances):
            fault = reply.faults[index] if reply.faults else None
            if fault is not None:
                outcomes.append(fault.to_error())
            else:
                outcomes.append(native.decode_values(bytes(self._connection.view.get(payload))))
        self._connection.release(reply)
        if len(outcomes) != expected:
            text = f"{expected} instances were sent, {len(outcomes)} came back"
            return [ServingError(text)] * expected
        return outcomes

    def _model(self, key: str, subgraph: int) -> _Target:
        return _Target(self.servable, self.version, call_name(key, subgraph))

    def _ask(
        self,
        target: _Target,
        rows: Sequence[tuple[Value, ...]],
        caller: _Caller | None = None,
        is_stream: bool = False,
        chain: Chain | None = None,
    ) -> int:
        """Send a call for `caller`, by default the parts at work, and return its id.

        The worker that runs it replies, or the master does if that worker dies or the requests of
        all parts have ended.
        """
        caller = caller or _caller_at_work()
        call_id, context = next(self._ids), caller.context
        chunks = [self._connection.arena.put(native.encode_values(row)) for row in rows]
        part = RequestPart(
            call_id,
            target.method,
            codec="native",
            chunks=chunks,
            timeout=None,
            is_stream=is_stream,
            request_id=caller.request_id,
            traceparent="" if context is None else context.traceparent,
            tracestate="" if context is None else context.state,
        )
        steps, returns = ([], []) if chain is None else (chain.steps, chain.returns)
        self._connection.send(
            WorkerCall(
                target.servable, target.version, part, caller.parts, caller.waits, steps, returns
            )
        )
        return call_id


def _caller_at_work(*, waits: bool = False) -> _Caller:
    """Return the caller that this thread works for."""
    parts, context = request_context.part_ids(), user_spans.current.get()
    return _Caller(parts, log.request_id.get(), context, waits)


def _rows(jobs: Sequence[Job], slots: Sequence[int]) -> list[tuple[Value, ...]]:
    return [tuple([job.values[slot] for slot in slots]) for job in jobs]


def _caller(part: RunningPart, position: int) -> _Caller:
    """Return the caller for the stage at `position` of a part."""
    if part.trace is None:
        return _Caller([part.id], part.request_id, None)
    part.trace.run(position)
    return _Caller([part.id], part.request_id, part.trace.current)
