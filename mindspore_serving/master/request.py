"""A request in flight in the master: the parts it was cut into, the reply they add up to, and what
becomes of a part whose worker has died.

Knows no method, queue or worker; no I/O and no clock.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias

from mindspore_serving import log
from mindspore_serving.core.service import Reply
from mindspore_serving.errors import Code, InvalidInputs, ServingError
from mindspore_serving.ipc.messages import PartReply
from mindspore_serving.tracing.span import SpanContext
from mindspore_serving.wire.cutting import Chunk


class WorkerLink(Protocol):
    """The link to a worker, as the requests that it has use it."""

    def cancel(self, part: "PendingPart") -> None:
        """Nobody waits for `part` any more."""
        ...


class RequestTrace(Protocol):
    """Records what becomes of a request."""

    def sent(self, part: "PendingPart", worker: str) -> SpanContext:
        """`part` goes to `worker`: the context of its span there."""
        ...

    def answered(self, part: "PendingPart", reply: PartReply) -> None: ...

    def lost(self, part: "PendingPart") -> None: ...

    def ended(self, code: int, num_parts: int) -> None: ...


class DispatchStrategy(Protocol):
    """How parts get to workers, batched or streamed: it counts what each worker has."""

    def on_answers(self, link: WorkerLink, answers: "list[Answer]") -> None:
        """The worker of `link` has answered parts that this strategy has sent there."""
        ...


MAX_DEATHS = 2  # of workers that had a part, before it is run by itself


class PartState(Enum):
    """Where a part is on its way to a worker."""

    IDLE = "no queue and no worker has it"
    QUEUED = "it waits in the queue of its method"
    SENT = "a worker has it, or had it and died"


IDLE, QUEUED, SENT = PartState  # for what is done for each request: 3.11 is slow to look them up


@dataclass(slots=True, eq=False)
class PendingPart:
    """Instances of one request that go to one worker together."""

    request: "PendingRequest"
    index: int  # among the parts of the request
    codec: str
    chunks: Sequence[Chunk]
    is_stream: bool = False
    first: int = 0  # instance of the request
    has_replied: bool = False  # output has come: it cannot be run again elsewhere
    num_deaths: int = 0  # of workers that had it
    is_isolated: bool = False  # it is run by itself, since a worker may have died of it
    state: PartState = IDLE
    link: WorkerLink | None = None  # to the worker that has it
    id: int = 0  # on that link, greater than those before
    sent_at: float = 0.0  # to the worker, while the state is SENT
    strategy: DispatchStrategy | None = None  # that has sent it

    def mark_sent(
        self, link: WorkerLink, part_id: int, strategy: DispatchStrategy, now: float
    ) -> None:
        """Record that the worker of `link` has it now, and `strategy` gets the answers."""
        self.state, self.sent_at = SENT, now
        self.link, self.id, self.strategy = link, part_id, strategy


Answer: TypeAlias = tuple[PendingPart, Reply]


@dataclass(slots=True, eq=False)
class PendingRequest:
    """Collects the parts' answers in order and replies once: the `Call` of a front end.

    A stream has one part, and replies until the last answer of that.
    """

    method: str  # its name
    on_reply: Callable[[Reply], None]
    on_done: "Callable[[PendingRequest, int], None]"  # called once, with the code
    started: float
    deadline: float | None = None
    prefix: Iterable[str | Sequence[int]] = ()  # of a prompt
    is_accepted: bool = False  # of a stream: a worker has said so
    first_output: float = 0.0  # of a stream, when it came; 0 before
    stop_timer: Callable[[], object] | None = None  # of the deadline
    is_done: bool = False
    num_instances: int = 0  # that were answered
    id: str = ""  # in logs
    trace: RequestTrace | None = None
    parts: Sequence[PendingPart] = ()
    _answers: dict[int, Reply] = field(default_factory=dict, init=False)  # by index of the part

    def make_stream(self) -> None:
        """Every answer is to be a reply.  Raises InvalidInputs unless there is one part."""
        if len(self.parts) != 1:
            raise InvalidInputs(f"a stream takes one instance, {len(self.parts)} were given")
        self.parts[0].is_stream = True

    def answer(self, part: PendingPart, reply: Reply) -> None:
        """`part` was answered.  A part that failed as a whole fails the request as a whole."""
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
        """Reply with `error` if the request is not done."""
        if not self.is_done:
            self._end(error.code)
            self._reply(Reply(failure=error))

    def cancel(self) -> None:
        """Nobody waits any more."""
        if not self.is_done:
            self._end(Code.CANCELLED)

    def replace(self, part: PendingPart) -> PendingPart:
        """A part to be sent in place of `part`, whose worker may still answer: to nobody."""
        new = PendingPart(
            self,
            part.index,
            part.codec,
            part.chunks,
            is_stream=part.is_stream,
            first=part.first,
            num_deaths=part.num_deaths,
            is_isolated=part.is_isolated,
        )
        self.parts = [new if one is part else one for one in self.parts]
        part.request = ANONYMOUS
        return new

    def _reply(self, reply: Reply) -> None:
        try:
            self.on_reply(reply)
        except Exception:  # the front end's failure must not count as the worker's
            log.error("taking the reply to a request of method %s", self.method, exc_info=True)

    def _end(self, code: int) -> None:
        self.is_done = True
        self.on_done(self, code)


ANONYMOUS = PendingRequest("", lambda reply: None, lambda request, code: None, 0.0, is_done=True)
"""Stands for a request that is not interested in a part any more."""


def cut(
    request: PendingRequest,
    codec: str,
    chunks: Sequence[Chunk],
    *,
    num_workers: int,
    batch_size: int,
) -> list[PendingPart]:
    """`chunks` (one per instance) as parts, shared evenly over the workers in whole batches."""
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
    """What becomes of a part whose worker has died."""

    RETRY = "another worker gets it, with others"
    ISOLATE = "another worker gets it, by itself: the part may be what the first one died of"
    FAIL = "it is answered with an error"


def decide_retry(part: PendingPart, *, was_running: bool, can_retry: bool) -> RetryDecision:
    """Count the death of a worker of `part`, and decide what becomes of it.

    `was_running`: the worker ran it when it died.  `can_retry`: the method may be called twice for
    one request.
    """
    if part.has_replied or not can_retry or part.is_isolated:
        return RetryDecision.FAIL
    part.num_deaths += 1
    if was_running or part.num_deaths >= MAX_DEATHS:
        return RetryDecision.ISOLATE
    return RetryDecision.RETRY
