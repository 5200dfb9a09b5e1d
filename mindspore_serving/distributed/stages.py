"""Which rank gets what in a prediction, and how a prediction goes on.  Only decisions; no I/O.

The ranks form stages of equal size.  The first gets the inputs of the request.  A later one gets
nothing, if its models have no inputs (they get data by collective operators of their own); the
same as the first, if its inputs have the same names, types and shapes; else the outputs of the
stage before it.  The result is that of the last rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import InvalidInputs, ServingError


class StageInputs(Enum):
    """What the ranks of a stage are sent."""

    REQUEST = "the inputs of the request"
    NOTHING = "a message without inputs"
    PREVIOUS = "the outputs of the stage before"


@dataclass(frozen=True, slots=True)
class RankStage:
    """Ranks that are sent the same.  The last of them returns its outputs if `returns`."""

    ranks: range
    source: StageInputs
    returns: bool

    @property
    def last(self) -> int:
        return self.ranks[-1]


def plan(signatures: Sequence[Signature], stage_size: int) -> tuple[RankStage, ...]:
    """The stages of one graph, of which each rank has the signature at its number.

    Raises InvalidInputs if the inputs of a stage come from nowhere.
    """
    size = len(signatures) // stage_size
    groups = [range(start, start + size) for start in range(0, len(signatures), size)]
    sources = [StageInputs.REQUEST]
    for number, ranks in enumerate(groups[1:], 1):
        before, own = signatures[ranks[0] - 1].outputs, signatures[ranks[0]].inputs
        sources.append(_source(number, own, signatures[0].inputs, before))
    feeds = [source is StageInputs.PREVIOUS for source in (*sources[1:], StageInputs.PREVIOUS)]
    return tuple(map(RankStage, groups, sources, feeds))


def same_shapes(some: Sequence[TensorSpec], others: Sequence[TensorSpec]) -> bool:
    """Whether these tensors agree in number, types and shapes."""
    return [(one.dtype, one.shape) for one in some] == [(one.dtype, one.shape) for one in others]


def shown(tensors: Sequence[TensorSpec]) -> str:
    """Tensors in an error: "x float32 [2, 3]"."""
    texts = [
        f"{one.name} {one.dtype or 'of any type'} "
        f"{'of any shape' if one.shape is None else list(one.shape)}"
        for one in tensors
    ]
    return ", ".join(texts) or "none"


def _source(
    number: int,
    own: Sequence[TensorSpec],
    first: Sequence[TensorSpec],
    before: Sequence[TensorSpec],
) -> StageInputs:
    if not own:
        return StageInputs.NOTHING
    is_same = same_shapes(own, first)
    if is_same and [one.name for one in own] == [one.name for one in first]:
        return StageInputs.REQUEST
    if not before or len(own) == len(before) and all(map(_fits, own, before)):
        return StageInputs.PREVIOUS
    if is_same:
        return StageInputs.REQUEST
    raise InvalidInputs(
        f"the inputs of stage {number} ({shown(own)}) are neither those of stage 0 "
        f"({shown(first)}) nor the outputs of stage {number - 1} ({shown(before)})"
    )


def _fits(own: TensorSpec, given: TensorSpec) -> bool:
    """Whether an input can be an output; what one of them does not say agrees."""
    if own.dtype is not None and given.dtype is not None and own.dtype != given.dtype:
        return False
    if own.shape is None or given.shape is None:
        return True
    return len(own.shape) == len(given.shape) and all(
        want == have or -1 in (want, have)
        for want, have in zip(own.shape, given.shape, strict=True)
    )


@dataclass(slots=True)
class GangPrediction:
    """One run of all ranks.  `outputs` is the encoded result, `error` why there is none; it is
    settled when no rank works on it any more.
    """

    stages: tuple[RankStage, ...]
    outputs: bytes | None = None
    error: ServingError | None = None
    _waiting: set[int] = field(default_factory=set)

    def begin(self) -> list[RankStage]:
        """The stages to be sent their part now."""
        stages = [stage for stage in self.stages if stage.source is not StageInputs.PREVIOUS]
        for stage in stages:
            self._waiting.update(stage.ranks)
        return stages

    def answered(self, rank: int, outputs: bytes) -> RankStage | None:
        """`rank` has run its part; the stage to be sent its outputs now, if there is one.  Raises
        InvalidInputs if nothing was expected of it.
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
        """`rank` could not run its part; the first such error counts."""
        self._settle(rank)
        self.error = self.error or error

    @property
    def waiting(self) -> list[int]:
        """The ranks that have not answered."""
        return sorted(self._waiting)

    @property
    def is_settled(self) -> bool:
        return not self._waiting

    def _settle(self, rank: int) -> None:
        if rank not in self._waiting:
            raise InvalidInputs(f"rank {rank} answered what it was not asked")
        self._waiting.discard(rank)
