"""The state of a gang: ranks that are reserved or have joined, and whether their models match.

Decisions only; no sockets and no clock.  A gang lives once: if a rank of a complete gang is lost,
all ranks end, and another gang is started.  The states of a rank:

    free -(take by a script)-> reserved -(join by its agent)-> joined
     ^-------(release)------------+  ^-----------(leave)---------+
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from mindspore_serving.batching.assemble import batch_size
from mindspore_serving.core.declaration import DeclaredModel, DistributedSpec
from mindspore_serving.core.value import Signature
from mindspore_serving.distributed import rank_table, stages
from mindspore_serving.distributed.rank_table import RankEntry
from mindspore_serving.distributed.stages import RankStage
from mindspore_serving.errors import InvalidInputs, StartError

Graphs = tuple[Signature, ...]
"""The signatures of the sub-graphs that a rank has loaded."""


@dataclass(slots=True)
class Gang:
    """The ranks of a servable.  Scripts reserve ranks of their machine; their agents join.

    Raises InvalidInputs if the servable cannot run on `ranks`.  `routes` are the stages of each
    sub-graph, once all ranks have joined.
    """

    name: str
    spec: DistributedSpec
    ranks: Sequence[RankEntry]
    routes: tuple[tuple[RankStage, ...], ...] = ()
    _scripts: dict[int, Hashable] = field(default_factory=dict)  # by rank
    _joined: dict[int, Graphs] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rank_table.check(self.ranks, self.spec.rank_size, self.spec.stage_size)

    @property
    def is_complete(self) -> bool:
        return bool(self.routes)

    @property
    def missing(self) -> list[int]:
        """Numbers of the ranks that have not joined."""
        return [rank.number for rank in self.ranks if rank.number not in self._joined]

    @property
    def model(self) -> DeclaredModel:
        """The model that all ranks are together."""
        return DeclaredModel(
            self.name,
            "distributed",
            with_batch_dim=self.spec.with_batch_dim,
            without_batch_dim_inputs=self.spec.without_batch_dim_inputs,
        )

    @property
    def signature(self) -> Graphs:
        """Signature of a complete gang: inputs of the first rank, outputs of the last."""
        first, last = self._joined[0], self._joined[len(self.ranks) - 1]
        return tuple(
            Signature(entry.inputs, result.outputs)
            for entry, result in zip(first, last, strict=True)
        )

    def take(self, script: Hashable, numbers: Sequence[int]) -> None:
        """Reserve ranks for the agents of `script`.  Raises InvalidInputs if one is reserved."""
        for number in numbers:
            self._check_number(number)
            if number in self._scripts:
                raise InvalidInputs(f"rank {number} is reserved already by another script")
        if len(set(numbers)) != len(numbers):
            raise InvalidInputs(f"a rank is there twice in {list(numbers)}")
        self._scripts.update(dict.fromkeys(numbers, script))

    def join(self, number: int, graphs: Graphs) -> None:
        """Add the agent of rank `number`, which has loaded `graphs`.

        Raises InvalidInputs if the rank is not reserved, or the graphs do not match other ranks.
        """
        self._check_number(number)
        if number not in self._scripts:
            raise InvalidInputs(f"rank {number} was not reserved by a script before")
        if number in self._joined:
            raise InvalidInputs(f"rank {number} has joined already")
        self._check_graphs(number, graphs)
        self._joined[number] = graphs
        if not self.missing:
            try:
                self.routes = self._routes()
            except InvalidInputs:
                del self._joined[number]
                raise

    def leave(self, number: int) -> None:
        """Remove the agent of rank `number`; it may join again."""
        self._joined.pop(number, None)

    def release(self, script: Hashable) -> list[int]:
        """Release the ranks of a script that has ended; return those whose agents had joined."""
        numbers = [number for number, owner in self._scripts.items() if owner == script]
        for number in numbers:
            del self._scripts[number]
        return [number for number in numbers if number in self._joined]

    def _check_number(self, number: int) -> None:
        if not 0 <= number < len(self.ranks):
            raise InvalidInputs(
                f"rank {number} is unknown: the rank table has ranks 0 to {len(self.ranks) - 1}"
            )

    def _check_graphs(self, number: int, graphs: Graphs) -> None:
        """Compare the number of sub-graphs with all ranks, and the shapes with ranks of its stage.

        Raises InvalidInputs.
        """
        if not graphs:
            raise InvalidInputs(f"rank {number} has no model")
        self._check_batch(number, graphs)
        for other, theirs in sorted(self._joined.items()):
            if len(graphs) != len(theirs):
                raise InvalidInputs(
                    f"rank {number} has {len(graphs)} sub-graphs, rank {other} has {len(theirs)}"
                )
            if self._stage(number) == self._stage(other):
                self._check_shapes(number, graphs, other, theirs)

    def _check_shapes(self, number: int, graphs: Graphs, other: int, theirs: Graphs) -> None:
        for index, (graph, known) in enumerate(zip(graphs, theirs, strict=True)):
            for side in ("inputs", "outputs"):
                tensors, expected = getattr(graph, side), getattr(known, side)
                if not stages.same_shapes(tensors, expected):
                    raise InvalidInputs(
                        f"the {side} of ranks of a stage should be the same: of sub-graph {index}, "
                        f"rank {number} has {stages.describe(tensors)}, rank {other} has "
                        f"{stages.describe(expected)}"
                    )

    def _check_batch(self, number: int, graphs: Graphs) -> None:
        """Check that all ranks that get inputs have the same batch size.  Raises InvalidInputs."""
        try:
            size = self._batch_size(number, graphs)
        except StartError as error:
            raise InvalidInputs(f"rank {number}: {error}") from None
        for other, theirs in self._joined.items():
            known = self._batch_size(other, theirs)
            if size and known and size != known:
                raise InvalidInputs(
                    f"the batch size {size} of rank {number} is not the {known} of rank {other}"
                )

    def _batch_size(self, number: int, graphs: Graphs) -> int:
        """Return the batch size of a rank; 0 if it is dynamic or unknown.

        It is unknown for later stages if there are `without_batch_dim_inputs`, which number the
        inputs of the first stage.
        """
        if self._stage(number) == 0:
            return batch_size(self.model, graphs)
        fed = [graph for graph in graphs if graph.inputs]
        return 0 if self.spec.without_batch_dim_inputs else batch_size(self.model, fed)

    def _routes(self) -> tuple[tuple[RankStage, ...], ...]:
        graphs = [self._joined[rank.number] for rank in self.ranks]
        return tuple(
            stages.plan(list(signatures), self.spec.stage_size)
            for signatures in zip(*graphs, strict=True)
        )

    def _stage(self, number: int) -> int:
        return number * self.spec.stage_size // len(self.ranks)
