"""Stages of a gang: the inputs of each rank in a prediction, and its progress.  No I/O.

The ranks form stages of equal size.  The first stage gets the inputs of the request.  A later stage
gets no inputs if its models have none (they receive data by collective operators); the inputs of
the request if its inputs have the same names, dtypes and shapes; else the outputs of the previous
stage.  The result is the output of the last rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import InvalidInputs, ServingError


class StageInputs(Enum):
    """The source of the inputs of a stage."""

    REQUEST = "the inputs of the request"
    NOTHING = "a message without inputs"
    PREVIOUS = "the outputs of the stage before"


@dataclass(frozen=True, slots=True)
class RankStage:
    """Ranks that get the same inputs.  The last of them returns its outputs if `returns`."""

    ranks: range
    source: StageInputs
    returns: bool

    @property
    def last(self) -> int:
        return self.ranks[-1]


def plan(signatures: Sequence[Signature], stage_size: int) -> tuple[RankStage, ...]:
    """Plan the stages of one graph; `signatures` has that of each rank.

    Raises InvalidInputs if the inputs of a stage have no source.
    """
    size = len(signatures) // stage_size
    groups = [range(start, start + size) for start in range(0, len(signatures), size)]
    sources = [StageInputs.REQUEST]
    for number, ranks in enumerate(groups[1:], 1):
        previous, inputs = signatures[ranks[0] - 1].outputs, signatures[ranks[0]].inputs
        sources.append(_source(number, inputs, signatures[0].inputs, previous))
    feeds = [source is StageInputs.PREVIOUS for source in (*sources[1:], StageInputs.PREVIOUS)]
    return tuple(map(RankStage, groups, sources, feeds))


def same_shapes(left: Sequence[TensorSpec], right: Sequence[TensorSpec]) -> bool:
    """Return whether tensors agree in number, dtypes and shapes."""
    kinds = ([(spec.dtype, spec.shape) for spec in specs] for specs in (left, right))
    return next(kinds) == next(kinds)


def describe(tensors: Sequence[TensorSpec]) -> str:
    """Format tensors for an error: "x float32 [2, 3]"."""
    texts = [
        f"{spec.name} {spec.dtype or 'of any type'} "
        f"{'of any shape' if spec.shape is None else list(spec.shape)}"
        for spec in tensors
    ]
    return ", ".join(texts) or "none"


def _source(
    number: int,
    inputs: Sequence[TensorSpec],
    first: Sequence[TensorSpec],
    previous: Sequence[TensorSpec],
) -> StageInputs:
    """Return the source of a stage's inputs.

    `first` are the inputs of stage 0, `previous` the outputs of the previous stage.  If names of
    the inputs differ from `first`, equal shapes are the last resort.
    """
    if not inputs:
        return StageInputs.NOTHING
    is_same = same_shapes(inputs, first)
    if is_same and [spec.name for spec in inputs] == [spec.name for spec in first]:
        return StageInputs.REQUEST
    if not previous or len(inputs) == len(previous) and all(map(_fits, inputs, previous)):
        return StageInputs.PREVIOUS
    if is_same:
        return StageInputs.REQUEST
    raise InvalidInputs(
        f"the inputs of stage {number} ({describe(inputs)}) are neither those of stage 0 "
        f"({describe(first)}) nor the outputs of stage {number - 1} ({describe(previous)})"
    )


def _fits(expected: TensorSpec, output: TensorSpec) -> bool:
    """Return whether an output fits an input; an unknown dtype or dimension fits any."""
    is_typed = expected.dtype is not None and output.dtype is not None
    if is_typed and expected.dtype != output.dtype:
        return False
    if expected.shape is None or output.shape is None:
        return True
    return len(expected.shape) == len(output.shape) and all(
        size == other or -1 in (size, other)
        for size, other in zip(expected.shape, output.shape, strict=True)
    )


@dataclass(slots=True)
class GangPrediction:
    """A run of all ranks.

    `outputs` is the encoded result, `error` the first error.  The prediction is settled once no
    rank works on it.
    """

    stages: tuple[RankStage, ...]
    outputs: bytes | None = None
    error: ServingError | None = None
    _waiting: set[int] = field(default_factory=set)

    def begin(self) -> list[RankStage]:
        """Return the stages that get their inputs at once."""
        stages = [stage for stage in self.stages if stage.source is not StageInputs.PREVIOUS]
        for stage in stages:
            self._waiting.update(stage.ranks)
        return stages

    def answered(self, rank: int, outputs: bytes) -> RankStage | None:
        """Record the outputs of a rank; return the stage that gets them as inputs, if any.

        Raises InvalidInputs if no answer of the rank was expected.
        """
        self._settle(rank)
        (number,) = [n for n, stage in enumerate(self.stages) if rank in stage.ranks]
        if rank != self.stages[number].last or self.error is not None:
            return None
        if number == len(self.stages) - 1:
            self.outputs = outputs
        elif self.stages[number].returns:
            self._waiting.update(self.stages[number + 1].ranks)
            return self.stages[number + 1]
        return None

    def failed(self, rank: int, error: ServingError) -> None:
        """Record the error of a rank; the first error is kept."""
        self._settle(rank)
        self.error = self.error or error

    @property
    def waiting(self) -> list[int]:
        """Numbers of the ranks that have not answered."""
        return sorted(self._waiting)

    @property
    def is_settled(self) -> bool:
        return not self._waiting

    def _settle(self, rank: int) -> None:
        if rank not in self._waiting:
            raise InvalidInputs(f"rank {rank} sent an answer that was not expected")
        self._waiting.discard(rank)
