"""Request in flight in the master: its parts, the reply that they add up to, and retries.

It knows no method, queue or worker; no I/O and no clock.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from mindspore_serving import log
from mindspore_serving.core.sequences import SequenceStep
from mindspore_serving.core.service import Reply
from mindspore_serving.errors import Code, InvalidInputs, ServingError
from mindspore_serving.ipc.messages import PartReply, SequencePart
from mindspore_serving.tracing.span import SpanContext
from mindspore_serving.wire.splitting import Chunk

if TYPE_CHECKING:
    from mindspore_serving.master.sequences import SequenceEntry


class WorkerLink(Protocol):
    """Link to a worker, as seen by its parts."""

    def cancel(self, part: "PendingPart") -> None:
        """Cancel `part`, whose request has ended."""
        ...

    def end_sequences(self, method: str, numbers: Sequence[int]) -> None:
        """Have the worker drop the states of sequences."""
        ...


class RequestTrace(Protocol):
    """Recorder of the events of a request."""

    def sent(self, part: "PendingPart", worker: str) -> SpanContext:
        """Record that `part` is sent to `worker`; return the context of its span there."""
        ...

    def answered(self, part: "PendingPart", reply: PartReply) -> None: ...

    def lost(self, part: "PendingPart") -> None: ...

    def ended(self, code: int, num_parts: int) -> None: ...


class DispatchStrategy(Protocol):
    """Strategy that sends parts to workers, batched or streamed, and counts each worker's parts."""

    def on_answers(self, link: WorkerLink, answers: "list[Answer]") -> None:
        """Handle replies of the worker of `link` to parts that this strategy has sent."""
        ...


MAX_DEATHS = 2  # of workers that had a part, before the part is quarantined


class PartState(Enum):
    """State of a part on its way to a worker.

    A batched part is IDLE, QUEUED, then SENT; a streamed part is SENT at once if there is a worker.
    """

    IDLE = "not queued and not sent"
    QUEUED = "in the queue of its method"
    SENT = "sent to a worker, which may have died since"


IDLE, QUEUED, SENT = PartState  # globals, as Python 3.11 looks enum members up slowly


@dataclass(slots=True, eq=False)
class PendingPart:
    """Instances of one request that are sent to a worker together."""

    request: "PendingRequest"
    index: int  # among the parts of the request
    codec: str
    chunks: Sequence[Chunk]
    is_stream: bool = False
    first: int = 0  # index of its first instance in the request
    has_replied: bool = False  # output has arrived: it cannot be retried
    num_deaths: int = 0  # of workers that had it
    is_quarantined: bool = False  # it runs alone, since it may have killed a worker
    state: PartState = IDLE
    link: WorkerLink | None = None  # to the worker that has it
    id: int = 0  # on that link, increasing
    sent_at: float = 0.0  # while the state is SENT
    strategy: DispatchStrategy | None = None  # that has sent it
    step: SequenceStep | None = None  # of its sequence, if it is in one
    entry: "SequenceEntry | None" = None  # the sequence
    sequence: SequencePart | None = None  # for the worker
    new_state: bytes | None = None  # of the sequence, from the worker

    def mark_sent(
        self, link: WorkerLink, part_id: int, strategy: DispatchStrategy, now: float
    ) -> None:
        """Record that the worker of `link` has the part, and that `strategy` gets its replies."""
        self.state, self.sent_at = SENT, now
        self.link, self.id, self.strategy = link, part_id, strategy


Answer: TypeAlias = tuple[PendingPart, Reply]


@dataclass(slots=True, eq=False)
class PendingRequest:
    """Request in flight: joins the replies to its parts in order and replies once.

    It is the `Call` of a front end.  A stream has a single part and passes on each of its replies.
    """

    method: str  # its name
    on_reply: Callable[[Reply], None]
    on_done: "Callable[[PendingRequest, int], None]"  # called once, with an `errors.Code`
    started: float
    deadline: float | None = None
    prefix: Iterable[str | Sequence[int]] = ()  # of a prompt
    is_accepted: bool = False  # of a stream: a worker has accepted it
    first_output: float = 0.0  # time of a stream's first output; 0 before
    stop_timer: Callable[[], object] | None = None  # of the deadline
    is_done: bool = False
    num_instances: int = 0  # in the reply
    id: str = ""  # in logs
    trace: RequestTrace | None = None
    is_background: bool = False  # not counted by admission control
    is_call: bool = False  # of a worker
    is_shadow: bool = False  # not counted in limits and metrics
    tenant: str = ""
    priority: int = 0  # level, from 1, which is first; 0 is the default of its method
    sequence: SequenceStep | None = None
    parts: Sequence[PendingPart] = ()
    _answers: dict[int, Reply] = field(default_factory=dict, init=False)  # by index of the part

    def make_stream(self) -> None:
        """Make every reply of the part a reply of its own.

        Raises InvalidInputs unless the request has a single part.
        """
        if len(self.parts) != 1:
            raise InvalidInputs(f"a stream takes one instance, {len(self.parts)} were given")
        self.parts[0].is_stream = True

    def answer(self, part: PendingPart, reply: Reply) -> None:
        """Take a reply to `part`.  A part that fails as a whole fails the request as a whole."""
        if self.is_done:
            return
        if reply.failure is not None:
            self.fail(reply.failure)
        elif len(self.parts) == 1:
            if reply.is_last:
                self.num_instances = len(reply.instances) or 1  # the end of a stream has none
                self.is_done = True
                self.on_done(self, 0)
            self._reply(reply)
        else:
            self._answers[part.index] = reply
            if len(self._answers) == len(self.parts):
                replies = [self._answers[index] for index in range(len(self.parts))]
                joined = _join(replies)
                self.num_instances = len(joined.instances)
                self._end(0)
                self._reply(joined)

    def fail(self, error: ServingError) -> None:
        """Reply with `error` unless the request has ended."""
        if not self.is_done:
            self._end(error.code)
            self._reply(Reply(failure=error))

    def cancel(self) -> None:
        """End the request without a reply, as the client has left."""
        if not self.is_done:
            self._end(Code.CANCELLED)

    def replace(self, part: PendingPart) -> PendingPart:
        """Return a part to be sent instead of `part`; a later reply to `part` is ignored."""
        new = PendingPart(
            self,
            part.index,
            part.codec,
            part.chunks,
            is_stream=part.is_stream,
            first=part.first,
            num_deaths=part.num_deaths,
            is_quarantined=part.is_quarantined,
        )
        self.parts = [new if other is part else other for other in self.parts]
        part.request = NO_REQUEST
        return new

    def _reply(self, reply: Reply) -> None:
        try:
            self.on_reply(reply)
        except Exception:  # of the front end, which must not count as the worker's
            log.error("failed to pass on a reply of method %s", self.method, exc_info=True)

    def _end(self, code: int) -> None:
        self.is_done = True
        self.on_done(self, code)


NO_REQUEST = PendingRequest("", lambda reply: None, lambda request, code: None, 0.0, is_done=True)
"""Request of parts that were replaced: it ignores all replies."""


def split_parts(
    request: PendingRequest,
    codec: str,
    chunks: Sequence[Chunk],
    *,
    num_workers: int,
    batch_size: int,
) -> list[PendingPart]:
    """Split `chunks` (one per instance) into parts of whole batches, evenly over the workers."""
    size = max(1, math.ceil(len(chunks) / max(1, num_workers)))
    size = math.ceil(size / batch_size) * batch_size
    return [
        PendingPart(request, index, codec, chunks[start : start + size], first=start)
        for index, start in enumerate(range(0, len(chunks), size))
    ]


def _join(replies: Sequence[Reply]) -> Reply:
    instances = [instance for reply in replies for instance in reply.instances]
    if all(reply.faults is None for reply in replies):
        return Reply(instances)
    faults: list[ServingError | None] = []
    for reply in replies:
        faults.extend(reply.faults or [None] * len(reply.instances))
    return Reply(instances, faults)


class RetryDecision(Enum):
    """Decision about a part whose worker has died."""

    RETRY = "another worker gets it, with other parts"
    QUARANTINE = "another worker gets it alone: it may have killed the first worker"
    FAIL = "it is answered with an error"


def decide_retry(part: PendingPart, *, was_running: bool, can_retry: bool) -> RetryDecision:
    """Count the death of a worker of `part`, and return what to do with the part.

    `was_running`: the worker was running the part when it died.  `can_retry`: the method can be
    called twice for one request.
    """
    if part.has_replied or not can_retry or part.is_quarantined:
        return RetryDecision.FAIL
    part.num_deaths += 1
    if was_running or part.num_deaths >= MAX_DEATHS:
        return RetryDecision.QUARANTINE
    return RetryDecision.RETRY
