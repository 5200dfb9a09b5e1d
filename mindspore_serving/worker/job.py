"""Units of the executor: parts of requests, their instances as jobs, and prepared methods.

No I/O and no clock.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from mindspore_serving.core.buffers import contiguous
from mindspore_serving.core.graph import Method
from mindspore_serving.core.signature import InstanceSignature
from mindspore_serving.core.value import Value
from mindspore_serving.errors import ServingError
from mindspore_serving.ipc.messages import SequencePart
from mindspore_serving.worker.part_trace import PartTrace
from mindspore_serving.worker.sequences import SequenceStore

Outcome: TypeAlias = "tuple[Value, ...] | ServingError"
"""Result of a stage for one instance: its outputs or an error."""


class JobQueue(Protocol):
    """Executor as seen by a stage that finishes its jobs later.

    It must be called on the executor's thread, except for `post`.
    """

    def resume(
        self,
        jobs: "list[Job]",
        outcomes: "list[Outcome]",
        position: int | None = None,
        num_stages: int = 1,
    ) -> None: ...

    def emit(self, job: "Job", outcome: Outcome) -> None: ...

    def end(self, job: "Job") -> None: ...

    def post(self, action: Callable[[], None]) -> None:
        """Have `action` called on the executor's thread; can be called from any thread."""
        ...


@dataclass(slots=True, eq=False)
class PreparedStage:
    """Stage that is ready to run: `call` maps the inputs of at most `limit` jobs to outcomes.

    The slots in `inputs` are its inputs.  `call` may raise, which fails all of the jobs.

    `start`, if set, runs the jobs elsewhere; they return by `JobQueue.resume`, or in pieces by
    `JobQueue.emit`.  `iterate`, if set, iterates over the pieces of a job that is to be streamed.
    """

    inputs: Sequence[int]
    limit: int
    call: Callable[[list[tuple[Value, ...]]], list[Outcome]]
    gains_from_batch: bool = field(default=True, kw_only=True)
    is_per_instance: bool = field(default=False, kw_only=True)  # `call` gets one job at a time
    start: "Callable[[JobQueue, list[Job]], None] | None" = field(default=None, kw_only=True)
    iterate: "Callable[[Job], Iterator[Outcome]] | None" = field(default=None, kw_only=True)

    def run(self, jobs: "list[Job]") -> list[Outcome]:
        """Run the stage for `jobs` and return an outcome each; may raise for all."""
        inputs = self.inputs
        if len(inputs) == 1:  # the common case, without a loop per job
            (slot,) = inputs
            return self.call([(job.values[slot],) for job in jobs])
        return self.call([job.arguments(self) for job in jobs])


@dataclass(slots=True)
class PreparedMethod:
    """Method with its prepared stages.

    `batch_size` is the largest number of instances that a stage gains from running at once.
    """

    method: Method
    label: str  # names servable and method in errors
    stages: list[PreparedStage] = field(default_factory=list)
    signature: InstanceSignature = InstanceSignature()
    sequences: SequenceStore | None = field(init=False, default=None)  # of a method with states
    returns: list[tuple[str, int]] = field(init=False)  # output names and their slots

    def __post_init__(self) -> None:
        self.returns = list(zip(self.method.outputs, self.method.returns, strict=True))
        if self.method.has_sequences:
            self.sequences = SequenceStore(self.method.states, self.method.controls)

    @property
    def batch_size(self) -> int:
        return max((stage.limit for stage in self.stages if stage.gains_from_batch), default=1)


@dataclass(slots=True, eq=False)
class RunningPart:
    """Instances of one part of a request, which are answered together.

    A part that `is_stream` has one instance, answered in pieces; `outputs` are those still to be
    sent.
    """

    id: int
    program: PreparedMethod
    codec: Any
    deadline: float | None
    is_stream: bool = False
    request_id: str = ""  # in logs
    trace: PartTrace | None = None  # if it is traced
    is_cancelled: bool = False
    num_unfinished: int = 0  # instances
    outputs: list[Any] = field(init=False)  # results of `put`; set when the instances are known
    faults: list[ServingError | None] | None = None
    cancel_callbacks: list[Callable[[], None]] = field(default_factory=list)
    """Cancel the part's requests to the language model; without effect on ended requests."""
    put: Callable[[Any], Any] = contiguous
    """Stores an encoded output at once, because a stage may reuse the memory of its result."""
    loans: Sequence[Any] = ()  # of the shared memory that holds its inputs
    sequence: SequencePart | None = None
    later_jobs: "deque[Job]" = field(default_factory=deque)  # of its sequence, which run in order
    kept_state: bytes | None = None  # for the master

    def fail(self, index: int, error: ServingError) -> None:
        if self.faults is None:
            self.faults = [None] * (1 if self.is_stream else len(self.outputs))
        self.faults[index] = error

    def cancel(self) -> None:
        """Cancel the part, whose answer is no longer needed."""
        self.is_cancelled = True
        for cancel in self.cancel_callbacks:
            cancel()


@dataclass(slots=True, eq=False)
class ReorderBuffer:
    """Buffer that puts the pieces of one instance's answer, which run independently, in order."""

    num_begun: int = 0
    is_closed: bool = False  # no further piece will begin
    _next: int = 0
    _ready: dict[int, Any] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return self.is_closed and self._next == self.num_begun

    def put(self, number: int, piece: Any) -> list[Any]:
        """Add the finished piece `number`; return the pieces that can be sent now."""
        self._ready[number] = piece
        leaving = []
        while self._next in self._ready:
            leaving.append(self._ready.pop(self._next))
            self._next += 1
        return leaving


@dataclass(slots=True, eq=False)
class Job:
    """Instance on its way through the stages of its method.

    `values` are its slots so far: the inputs, then the outputs of every stage that has run, since
    slots are numbered in that order.  `stream` is None unless the answer is streamed; a piece of it
    is a job of its own, with its `number`.
    """

    part: RunningPart
    index: int
    values: list[Any]
    position: int = 0
    stream: ReorderBuffer | None = None
    number: int = -1

    @property
    def is_to_stream(self) -> bool:
        """True if the next stage that can stream is to produce pieces of this job."""
        return self.stream is not None and self.number < 0

    def piece(self, outcome: tuple[Value, ...]) -> "Job":
        """Create the job of the next piece, after the stage that returned `outcome`."""
        assert self.stream is not None
        number = self.stream.num_begun
        self.stream.num_begun += 1
        values = [*self.values, *outcome]
        return Job(self.part, self.index, values, self.position + 1, self.stream, number)

    def arguments(self, stage: PreparedStage) -> tuple[Value, ...]:
        values = self.values
        return tuple([values[slot] for slot in stage.inputs])
