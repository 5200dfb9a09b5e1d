"""What the executor moves: a part of a request, its instances as jobs, and the prepared method that
they follow.

No I/O and no clock.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from mindspore_serving.core.graph import Method
from mindspore_serving.core.pieces import whole
from mindspore_serving.core.signature import InstanceSignature
from mindspore_serving.core.value import Value
from mindspore_serving.errors import ServingError
from mindspore_serving.worker.part_trace import PartTrace

Outcome: TypeAlias = "tuple[Value, ...] | ServingError"
"""What a stage made of one instance."""


class JobQueue(Protocol):
    """The executor, as used by a stage that finishes its jobs later: on its thread, but for
    `post`.
    """

    def resume(self, jobs: "list[Job]", outcomes: "list[Outcome]") -> None: ...

    def emit(self, job: "Job", outcome: Outcome) -> None: ...

    def end(self, job: "Job") -> None: ...

    def post(self, action: Callable[[], None]) -> None:
        """From any thread: have `action` called on the executor's thread."""
        ...


@dataclass(slots=True, eq=False)
class PreparedStage:
    """A stage that is ready to run: `call` gives the outcomes of at most `limit` jobs, from the
    values of their `inputs`; it may raise for all.

    `start`, if set, sends the jobs away; they come back by `JobQueue.resume`, or in pieces by
    `JobQueue.emit`.  `iterate`, if set, gives the pieces of a job whose request wants them.
    """

    inputs: Sequence[int]
    limit: int
    call: Callable[[list[tuple[Value, ...]]], list[Outcome]]
    gains_from_batch: bool = field(default=True, kw_only=True)
    takes_one: bool = field(default=False, kw_only=True)  # `call` is given the jobs one by one
    start: "Callable[[JobQueue, list[Job]], None] | None" = field(default=None, kw_only=True)
    iterate: "Callable[[Job], Iterator[Outcome]] | None" = field(default=None, kw_only=True)

    def run(self, jobs: "list[Job]") -> list[Outcome]:
        """What becomes of each job; may raise for all."""
        inputs = self.inputs
        if len(inputs) == 1:  # most: no loop for each
            (slot,) = inputs
            return self.call([(job.values[slot],) for job in jobs])
        return self.call([job.arguments(self) for job in jobs])


@dataclass(slots=True)
class PreparedMethod:
    """A method with its prepared stages.  `batch_size`: most instances that gain from a batch."""

    method: Method
    label: str  # names servable and method in errors
    stages: list[PreparedStage] = field(default_factory=list)
    signature: InstanceSignature = InstanceSignature()
    returns: list[tuple[str, int]] = field(init=False)  # output names and their slots

    def __post_init__(self) -> None:
        self.returns = list(zip(self.method.outputs, self.method.returns, strict=True))

    @property
    def batch_size(self) -> int:
        return max((one.limit for one in self.stages if one.gains_from_batch), default=1)


@dataclass(slots=True, eq=False)
class RunningPart:
    """The instances of one part of a request, answered together.  A part that `is_stream` has one
    instance, answered in pieces: those in `outputs` are to be sent.
    """

    id: int
    program: PreparedMethod
    codec: Any
    deadline: float | None
    is_stream: bool = False
    request_id: str = ""  # in logs
    trace: PartTrace | None = None  # if it is traced
    is_cancelled: bool = False
    left: int = 0  # instances that are not finished
    outputs: list[Any] = field(init=False)  # what `put` gave; set when its instances are known
    faults: list[ServingError | None] | None = None
    cancels: list[Callable[[], None]] = field(default_factory=list)
    """What cancels each of its requests to the language model; nothing if that has ended."""
    put: Callable[[Any], Any] = whole
    """Takes what the codec made of an instance, at once: a stage may use its memory again."""
    loans: Sequence[Any] = ()  # of the memory that its inputs are in

    def fail(self, index: int, error: ServingError) -> None:
        if self.faults is None:
            self.faults = [None] * (1 if self.is_stream else len(self.outputs))
        self.faults[index] = error

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self.is_cancelled = True
        for cancel in self.cancels:
            cancel()


@dataclass(slots=True, eq=False)
class ReorderBuffer:
    """The pieces of one instance's answer: they pass later stages apart, and leave in order."""

    num_begun: int = 0
    is_closed: bool = False  # no more will begin
    _next: int = 0
    _ready: dict[int, Any] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return self.is_closed and self._next == self.num_begun

    def put(self, number: int, piece: Any) -> list[Any]:
        """Piece `number` is finished: those that may leave now."""
        self._ready[number] = piece
        leaving = []
        while self._next in self._ready:
            leaving.append(self._ready.pop(self._next))
            self._next += 1
        return leaving


@dataclass(slots=True, eq=False)
class Job:
    """One instance on its way.

    `values` are its slots so far: the inputs, then the outputs of every stage behind it, since
    slots are numbered in that order.  `stream` is None unless its request wants pieces; a piece is
    a job of its own, with its `number`.
    """

    part: RunningPart
    index: int
    values: list[Any]
    position: int = 0
    stream: ReorderBuffer | None = None
    number: int = -1

    @property
    def is_to_stream(self) -> bool:
        """Whether the next stage that can give pieces is to do so."""
        return self.stream is not None and self.number < 0

    def piece(self, outcome: tuple[Value, ...]) -> "Job":
        """The job of the next piece, behind the stage that gave `outcome`."""
        assert self.stream is not None
        number = self.stream.num_begun
        self.stream.num_begun += 1
        values = [*self.values, *outcome]
        return Job(self.part, self.index, values, self.position + 1, self.stream, number)

    def arguments(self, stage: PreparedStage) -> tuple[Value, ...]:
        values = self.values
        return tuple([values[slot] for slot in stage.inputs])
