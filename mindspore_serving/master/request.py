"""A request in flight in the master: the parts it was cut into, and the reply they add up to.

Knows no method, queue or worker; no I/O and no clock.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
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


class Trace(Protocol):
    """Records what becomes of a request."""

    def sent(self, part: "PendingPart", worker: str) -> SpanContext:
        """`part` goes to `worker`: the context of its span there."""
        ...

    def answered(self, part: "PendingPart", reply: PartReply) -> None: ...

    def lost(self, part: "PendingPart") -> None: ...

    def ended(self, code: int, num_parts: int) -> None: ...


class Way(Protocol):
    """One of the two ways to workers, batched or streamed: it gets the answers."""

    def on_answers(self, link: WorkerLink, answers: "list[Answer]") -> None: ...


WAITS = -1.0


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
    is_alone: bool = False  # it is run by itself, since a worker may have died of it
    link: WorkerLink | None = None  # to the worker that has it
    id: int = 0  # on that link, greater than those before
    sent: float = 0.0  # when its turn came; WAITS while it is ahead of others
    way: Way | None = None  # that it took to the worker


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
    trace: Trace | None = None
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
        new = PendingPart(self, part.index, part.codec, part.chunks, part.is_stream, part.first)
        self.parts = [new if one is part else one for one in self.parts]
        part.request = NOBODY
        return new

    def _reply(self, reply: Reply) -> None:
        try:
            self.on_reply(reply)
        except Exception:  # the front end's failure must not count as the worker's
            log.error("taking the reply to a request of method %s", self.method, exc_info=True)

    def _end(self, code: int) -> None:
        self.is_done = True
        self.on_done(self, code)


NOBODY = PendingRequest("", lambda reply: None, lambda request, code: None, 0.0, is_done=True)
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
