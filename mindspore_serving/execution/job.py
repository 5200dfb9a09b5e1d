"""What the executor moves: a part of a request, its instances, and the prepared method they follow.

No I/O and no clock.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mindspore_serving.core.graph import Method
from mindspore_serving.core.value import Value
from mindspore_serving.errors import ServingError

Outcome: TypeAlias = "tuple[Value, ...] | ServingError"
"""What a stage made of one instance."""


class Step:
    """A stage made ready to run: how many jobs it takes at once, and what it does to them.

    `run` answers at once.  `start`, where there is one, sends the jobs away, to come back by
    `Executor.resume`, or in pieces by `Executor.emit`.  `iterate`, where there is one, gives the
    pieces of a job whose request wants them.
    """

    __slots__ = ("_call", "gains_from_batch", "inputs", "iterate", "limit", "start")

    def __init__(
        self,
        inputs: Sequence[int],
        limit: int,
        call: "Callable[[list[tuple[Value, ...]]], list[Outcome]]",
        *,
        gains_from_batch: bool = True,
    ) -> None:
        self.inputs = tuple(inputs)
        self.limit = limit
        self.gains_from_batch = gains_from_batch
        self._call = call
        self.start: Callable[[list[Job]], None] | None = None
        self.iterate: Callable[[Job], Iterator[Outcome]] | None = None

    def run(self, jobs: "list[Job]") -> list[Outcome]:
        """What becomes of each job; may raise for all."""
        return self._call([job.arguments(self) for job in jobs])


@dataclass(slots=True)
class Program:
    """A method with its steps.  `batch_size` is the most instances that gain by being together."""

    method: Method
    label: str  # names servable and method in errors
    steps: list[Step] = field(default_factory=list)
    returns: list[tuple[str, int]] = field(init=False)  # output names and their slots

    def __post_init__(self) -> None:
        self.returns = list(zip(self.method.outputs, self.method.returns, strict=True))

    @property
    def batch_size(self) -> int:
        return max((step.limit for step in self.steps if step.gains_from_batch), default=1)


class Part:
    """Some instances of one request, answered together.  One that `is_stream` is one instance,
    answered in pieces: those in `outputs` are to be sent."""

    __slots__ = (
        "codec",
        "deadline",
        "faults",
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

    def fail(self, index: int, error: ServingError) -> None:
        if self.faults is None:
            self.faults = [None] * (1 if self.is_stream else len(self.outputs))
        self.faults[index] = error


class Stream:
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

    __slots__ = ("index", "number", "part", "position", "stream", "values")

    def __init__(self, part: Part, index: int, values: list[Any]) -> None:
        self.part = part
        self.index = index
        self.values = values
        self.position = 0
        self.stream: Stream | None = None
        self.number = -1

    @property
    def is_to_stream(self) -> bool:
        """Whether the next stage that can give pieces is to do so."""
        return self.stream is not None and self.number < 0

    def piece(self, outcome: tuple[Value, ...]) -> "Job":
        """The job of the next piece, behind the stage that gave `outcome`."""
        assert self.stream is not None
        made = Job(self.part, self.index, [*self.values, *outcome])
        made.position, made.stream = self.position + 1, self.stream
        made.number = self.stream.num_begun
        self.stream.num_begun += 1
        return made

    def arguments(self, step: Step) -> tuple[Value, ...]:
        values = self.values
        return tuple([values[slot] for slot in step.inputs])
