"""What the executor moves: a work item, its instances as jobs, and the prepared method they follow.

No I/O and no clock.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from mindspore_serving.core.graph import Method
from mindspore_serving.core.value import Value
from mindspore_serving.errors import ServingError

Outcome: TypeAlias = "tuple[Value, ...] | ServingError"
"""What a stage made of one instance."""


class JobQueue(Protocol):
    """The executor as a stage that finishes its jobs later sees it.  Used on its thread, but for
    `post`."""

    def resume(self, jobs: "list[Job]", outcomes: list[Outcome]) -> None: ...

    def fail(self, job: "Job", error: ServingError) -> None: ...

    def emit(self, job: "Job", outcome: Outcome) -> None: ...

    def end(self, job: "Job") -> None: ...

    def post(self, action: Callable[[], None]) -> None:
        """From any thread: have `action` called on the executor's thread."""
        ...


class PreparedStage:
    """A stage that is ready to run: how many jobs it takes at once, and what it does to them.

    `run` returns the outcomes.  `start`, if set, sends the jobs away; they come back by
    `JobQueue.resume`, or in pieces by `JobQueue.emit`.  `iterate`, if set, gives the pieces of a
    job whose request wants them.
    """

    __slots__ = ("_call", "gains_from_batch", "inputs", "iterate", "limit", "start")

    def __init__(
        self,
        inputs: Sequence[int],
        limit: int,
        call: "Callable[[list[tuple[Value, ...]]], list[Outcome]]",
        *,
        gains_from_batch: bool = True,
        start: "Callable[[JobQueue, list[Job]], None] | None" = None,
        iterate: "Callable[[Job], Iterator[Outcome]] | None" = None,
    ) -> None:
        self.inputs = tuple(inputs)
        self.limit = limit
        self.gains_from_batch = gains_from_batch
        self.start = start
        self.iterate = iterate
        self._call = call

    def run(self, jobs: "list[Job]") -> list[Outcome]:
        """What becomes of each job; may raise for all."""
        return self._call([job.arguments(self) for job in jobs])


@dataclass(slots=True)
class Program:
    """A method with its prepared stages.  `batch_size`: most instances that gain from a batch."""

    method: Method
    label: str  # names servable and method in errors
    stages: list[PreparedStage] = field(default_factory=list)
    returns: list[tuple[str, int]] = field(init=False)  # output names and their slots

    def __post_init__(self) -> None:
        self.returns = list(zip(self.method.outputs, self.method.returns, strict=True))

    @property
    def batch_size(self) -> int:
        return max((one.limit for one in self.stages if one.gains_from_batch), default=1)


class Item:
    """The instances of one work item, answered together.  An item that `is_stream` has one
    instance, answered in pieces: those in `outputs` are to be sent.  `generations` are the requests
    to the language model that are open for it, by id, and their jobs."""

    __slots__ = (
        "codec",
        "deadline",
        "faults",
        "generations",
        "id",
        "is_cancelled",
        "is_stream",
        "left",
        "outputs",
        "program",
    )

    def __init__(self, id: int, program: Program, codec: Any, deadline: float | None) -> None:  # noqa: A002
        self.id = id
        self.program = program
        self.codec = codec
        self.deadline = deadline
        self.is_cancelled = False
        self.is_stream = False
        self.left = 0
        self.outputs: list[bytes] = []
        self.faults: list[ServingError | None] | None = None
        self.generations: dict[str, Job] = {}

    def fail(self, index: int, error: ServingError) -> None:
        if self.faults is None:
            self.faults = [None] * (1 if self.is_stream else len(self.outputs))
        self.faults[index] = error


class ReorderBuffer:
    """The pieces of one instance's answer: they pass later stages apart, and leave in order."""

    __slots__ = ("_next", "_ready", "is_closed", "num_begun")

    def __init__(self) -> None:
        self.num_begun = 0
        self.is_closed = False  # no more will begin
        self._next = 0
        self._ready: dict[int, bytes] = {}

    @property
    def is_done(self) -> bool:
        return self.is_closed and self._next == self.num_begun

    def put(self, number: int, piece: bytes) -> list[bytes]:
        """Piece `number` is finished: those that may leave now."""
        self._ready[number] = piece
        leaving = []
        while self._next in self._ready:
            leaving.append(self._ready.pop(self._next))
            self._next += 1
        return leaving


class Job:
    """One instance on its way.

    `values` are its slots so far: the inputs, then the outputs of every stage behind it, since
    slots are numbered in that order.  `stream` is None unless its request wants pieces; a piece is
    a job of its own, with its `number`.
    """

    __slots__ = ("index", "item", "number", "position", "stream", "values")

    def __init__(self, item: Item, index: int, values: list[Any]) -> None:
        self.item = item
        self.index = index
        self.values = values
        self.position = 0
        self.stream: ReorderBuffer | None = None
        self.number = -1

    @property
    def is_to_stream(self) -> bool:
        """Whether the next stage that can give pieces is to do so."""
        return self.stream is not None and self.number < 0

    def piece(self, outcome: tuple[Value, ...]) -> "Job":
        """The job of the next piece, behind the stage that gave `outcome`."""
        assert self.stream is not None
        made = Job(self.item, self.index, [*self.values, *outcome])
        made.position, made.stream = self.position + 1, self.stream
        made.number = self.stream.num_begun
        self.stream.num_begun += 1
        return made

    def arguments(self, stage: PreparedStage) -> tuple[Value, ...]:
        values = self.values
        return tuple([values[slot] for slot in stage.inputs])
