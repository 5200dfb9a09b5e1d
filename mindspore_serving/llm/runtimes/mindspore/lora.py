"""LoRA adapters as inputs of a graph with free sizes, so that loading one compiles nothing.

At every weight that can be adapted, the graph adds second(selected(first(x))).  `lora_first` has
the ranks of all loaded adapters, one after another, and `lora_owner` the adapter of each; a token
keeps only the results of its own.  So one step computes rows of several adapters and of none.

    x [T, in] -> first [ranks, in] -> 0 unless owner == token's adapter -> second [out, ranks]
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.runtimes.adapters import MATRIX, TABLE, BaseModel, Changes, WeightUse
from mindspore_serving.llm.runtimes.layout import TokenSpan
from mindspore_serving.llm.runtimes.mindir.library import mindspore
from mindspore_serving.llm.runtimes.mindspore.nodes import GraphRecorder, Node

AdapterUses: TypeAlias = dict[WeightUse, tuple[int, ...]]  # and the shapes of the weights
F32: TypeAlias = npt.NDArray[np.float32]

TOKEN_ADAPTERS, ROW_ADAPTERS = "token_adapters", "row_adapters"  # of tokens, of rows of logits
ADAPTER_ARGUMENTS = (TOKEN_ADAPTERS, ROW_ADAPTERS, "lora_first", "lora_second", "lora_owner")
MULTIPLE = 16  # of the ranks, for the device's alignment; operators refuse empty tensors
NO_ADAPTER = -1  # owner of the ranks that pad


def add_product(
    graph: GraphRecorder, uses: AdapterUses, y: Node, product: tuple[Node, str], owner: str
) -> Node:
    """Record the sum of `y`, the product of (x, matrix), and the adapters' changes to it."""
    x, weight = product
    index = _index(uses, (MATRIX, weight), (graph.rows(weight), x.width))
    low = graph.emit(f"{graph.operator('matmul')}({x.name}, lora_first[{index}])", 0)
    return _sum(graph, y, low, index, owner)


def add_rows(graph: GraphRecorder, uses: AdapterUses, y: Node, source: tuple[Node, str]) -> Node:
    """Record the sum of `y`, the rows of (ids, table), and the adapters' changes to them."""
    ids, table = source
    index = _index(uses, (TABLE, table), (graph.rows(table), y.width))
    low = graph.emit(f"ops.gather(lora_first[{index}], {ids.name}, 0)", 0)
    return _sum(graph, y, low, index, TOKEN_ADAPTERS)


def _index(uses: AdapterUses, use: WeightUse, shape: tuple[int, ...]) -> int:
    """Return the index of a use in the lists of inputs."""
    uses.setdefault(use, shape)
    return list(uses).index(use)


def _sum(graph: GraphRecorder, y: Node, low: Node, index: int, owner: str) -> Node:
    # Not a product with 0: what another adapter overflows to must not spoil the row.
    chosen = graph.emit(f"ops.masked_fill({low.name}, {owner} != lora_owner[{index}], 0.0)", 0)
    matmul = graph.operator("matmul")
    return graph.emit(f"{y.name} + {matmul}({chosen.name}, lora_second[{index}])", y.width)


def adapter_specs(uses: AdapterUses, dtype: Any) -> list[Any]:
    """Return tensors without data in the order of `ADAPTER_ARGUMENTS`."""

    def spec(*shape: int | None, dtype: Any = dtype) -> Any:
        return mindspore.Tensor(shape=list(shape), dtype=dtype)

    int32 = mindspore.int32
    tables = [use == TABLE for use, _ in uses]
    shapes = list(uses.values())
    return [
        spec(None, 1, dtype=int32),
        spec(None, 1, dtype=int32),
        mindspore.mutable([
            spec(shape[0], None) if is_table else spec(None, shape[1])
            for is_table, shape in zip(tables, shapes, strict=True)
        ]),
        mindspore.mutable([
            spec(shape[1] if is_table else shape[0], None)
            for is_table, shape in zip(tables, shapes, strict=True)
        ]),
        mindspore.mutable([spec(1, None, dtype=int32) for _ in uses]),
    ]  # fmt: skip


def adapter_columns(
    spans: Sequence[TokenSpan], logit_rows: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return the adapter of each token, [T, 1], and of each row of logits."""
    counts = [span.end - span.begin for span in spans]
    tokens = np.repeat(np.array([[span.adapter] for span in spans], np.int32), counts, 0)
    return tokens, tokens[logit_rows]


class RankMatrices(NamedTuple):
    """Matrices of all adapters at one use of a weight, with a rank in each row of both.

    Of a matrix `first` is [ranks, in] and `second` [ranks, out]; of a table the first has a row of
    the vocabulary's size.
    """

    first: F32
    second: F32
    owner: npt.NDArray[np.int32]

    def taken(self, indices: npt.NDArray[np.intp]) -> "RankMatrices":
        return RankMatrices(self.first[indices], self.second[indices], self.owner[indices])

    def joined(self, other: "RankMatrices") -> "RankMatrices":
        return RankMatrices(
            np.concatenate([self.first, other.first]),
            np.concatenate([self.second, other.second]),
            np.concatenate([self.owner, other.owner]),
        )

    def padded(self) -> "RankMatrices":
        missing = -len(self.owner) % MULTIPLE or (0 if len(self.owner) else MULTIPLE)
        first, second = (
            np.pad(matrix, ((0, missing), (0, 0))) for matrix in (self.first, self.second)
        )
        return RankMatrices(
            first, second, np.pad(self.owner, (0, missing), constant_values=NO_ADAPTER)
        )


class DeviceAdapters:
    """Loaded adapters of `base` as the last three inputs of a graph, on the device."""

    def __init__(self, base: BaseModel, dtype: Any) -> None:
        uses = base.shapes
        self.base = base
        self.loaded: set[int] = set()
        self._uses = list(uses)
        self._dtype = dtype
        self.inputs: list[Any] = []
        self._lists: list[list[Any]] = [[None] * len(uses) for _ in range(3)]
        for use, shape in uses.items():
            sizes = shape if use[0] == TABLE else shape[::-1]
            first, second = (np.zeros((0, size), np.float32) for size in sizes)
            self._store(use, RankMatrices(first, second, np.zeros(0, np.int32)))
        self._join()

    def load(self, adapter: int, changes: Changes) -> None:
        """Load an adapter; steps may name it from now on."""
        for use, change in changes.items():
            pair = (change.down, change.up.T)
            first, second = pair[::-1] if use[0] == TABLE else pair
            owner = np.full(len(change.down), adapter, np.int32)
            self._store(use, self._matrices(use).joined(RankMatrices(first, second, owner)))
        self.loaded.add(adapter)
        self._join()

    def unload(self, adapter: int) -> None:
        self.loaded.discard(adapter)
        for use in self._uses:
            matrices = self._matrices(use)
            if adapter in matrices.owner:
                self._store(use, matrices.taken(np.flatnonzero(matrices.owner != adapter)))
        self._join()

    def clear(self) -> None:
        self.loaded.clear()
        self._lists = []
        self.inputs = []

    def _matrices(self, use: WeightUse) -> RankMatrices:
        """Return the matrices on the device, without what pads them."""
        index = self._uses.index(use)
        first, second, owner = (tensors[index].asnumpy() for tensors in self._lists)
        first = np.asarray(first.T if use[0] == TABLE else first, np.float32)
        second, (owners,) = np.asarray(second.T, np.float32), owner
        kept = np.flatnonzero(owners != NO_ADAPTER)
        return RankMatrices(first, second, owners).taken(kept)

    def _store(self, use: WeightUse, matrices: RankMatrices) -> None:
        first, second, owner = matrices.padded()
        if use[0] == TABLE:
            first = first.T
        index = self._uses.index(use)
        for tensors, matrix in zip(self._lists, (first, second.T), strict=False):
            array = np.ascontiguousarray(matrix, np.float32)
            tensors[index] = mindspore.Tensor.from_numpy(array).astype(self._dtype)
        self._lists[2][index] = mindspore.Tensor.from_numpy(owner.reshape(1, -1))

    def _join(self) -> None:
        self.inputs = [mindspore.mutable(list(tensors)) for tensors in self._lists]
