"""The state of a gang: which ranks are taken, which have joined, and whether they fit together.

Only decisions; no sockets and no clock.  A gang lives once: when a rank of a complete gang is lost,
all ranks end, and another gang is started.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from mindspore_serving.batching.assemble import batch_size
from mindspore_serving.core.declaration import DeclaredModel, DistributedSpec
from mindspore_serving.core.value import Signature
from mindspore_serving.distributed import rank_table, stages
from mindspore_serving.distributed.rank_table import RankPlace
from mindspore_serving.distributed.stages import RankStage
from mindspore_serving.errors import InvalidInputs, StartError

Graphs = tuple[Signature, ...]
"""What a rank has loaded: a signature for each sub-graph."""


@dataclass(slots=True)
class Gang:
    """The ranks of a servable.  Scripts take ranks of their machine; the agents of those join.

    Raises InvalidInputs if the servable cannot run on `ranks`.
    """

    name: str
    spec: DistributedSpec
    ranks: Sequence[RankPlace]
    routes: tuple[tuple[RankStage, ...], ...] = ()  # of each sub-graph, once all ranks have joined
    _scripts: dict[int, Hashable] = field(default_factory=dict)  # by rank
    _joined: dict[int, Graphs] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rank_table.check(self.ranks, self.spec.rank_size, self.spec.stage_size)

    @property
    def is_complete(self) -> bool:
        return bool(self.routes)

    @property
    def missing(self) -> list[int]:
        """The ranks that have not joined."""
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
        """Of a complete gang: the inputs of the first rank, the outputs of the last."""
        first, last = self._joined[0], self._joined[len(self.ranks) - 1]
        return tuple(
            Signature(one.inputs, two.outputs) for one, two in zip(first, last, strict=True)
        )

    def take(self, script: Hashable, numbers: Sequence[int]) -> None:
        """`script` is going to start agents for these ranks.  Raises InvalidInputs."""
        for number in numbers:
            self._check_number(number)
            if number in self._scripts:
                raise InvalidInputs(f"rank {number} is taken already by agents of another script")
        if len(set(numbers)) != len(numbers):
            raise InvalidInputs(f"a rank is there twice in {list(numbers)}")
        self._scripts.update(dict.fromkeys(numbers, script))

    def join(self, number: int, graphs: Graphs) -> None:
        """The agent of rank `number` has loaded `graphs`.  Raises InvalidInputs if it cannot be one
        of this gang.
        """
        self._check_number(number)
        if number not in self._scripts:
            raise InvalidInputs(f"rank {number} was not taken by a script before")
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
        """The agent of rank `number` is gone; it may join again."""
        self._joined.pop(number, None)

    def release(self, script: Hashable) -> list[int]:
        """`script` is gone, and others may take its ranks; returns those that have joined."""
        own = [number for number, one in self._scripts.items() if one == script]
        for number in own:
            del self._scripts[number]
        return [number for number in own if number in self._joined]

    def _check_number(self, number: int) -> None:
        if not 0 <= number < len(self.ranks):
            raise InvalidInputs(
                f"rank {number} is unknown: the rank table has ranks 0 to {len(self.ranks) - 1}"
            )

    def _check_graphs(self, number: int, graphs: Graphs) -> None:
        """Against the ranks that have joined: as many sub-graphs, and the shapes of its stage."""
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
        for index, (own, its) in enumerate(zip(graphs, theirs, strict=True)):
            for what, mine, seen in (
                ("inputs", own.inputs, its.inputs),
                ("outputs", own.outputs, its.outputs),
            ):
                if not stages.same_shapes(mine, seen):
                    raise InvalidInputs(
                        f"the {what} of ranks of a stage should be the same: of sub-graph {index}, "
                        f"rank {number} has {stages.shown(mine)}, rank {other} has "
                        f"{stages.shown(seen)}"
                    )

    def _check_batch(self, number: int, graphs: Graphs) -> None:
        """The batch dimension has one size in all ranks that get inputs."""
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
        """0 if it is open, or unknown: `without_batch_dim_inputs` are those of the first stage."""
        if self._stage(number) == 0:
            return batch_size(self.model, graphs)
        fed = [graph for graph in graphs if graph.inputs]
        return 0 if self.spec.without_batch_dim_inputs else batch_size(self.model, fed)

    def _routes(self) -> tuple[tuple[RankStage, ...], ...]:
        every = [self._joined[rank.number] for rank in self.ranks]
        return tuple(
            stages.plan(list(signatures), self.spec.stage_size)
            for signatures in zip(*every, strict=True)
        )

    def _stage(self, number: int) -> int:
        return number * self.spec.stage_size // len(self.ranks)
