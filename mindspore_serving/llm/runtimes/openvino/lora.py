"""LoRA adapters in OpenVINO: inputs of the graph, of any rank, so that they come and go without
compiling anything.

At every place that can be adapted the graph adds second(chosen(first(x))).  `first` has the rows of
all adapters that are loaded, one after another; `owner` says whose each is, and a token keeps the
results of its own adapter's alone.  So one step computes rows of several adapters and of none.
With no row at all nothing is computed: that is what a step without adapters is given.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Parameter

from mindspore_serving.llm.checkpoint.weights import to_bf16
from mindspore_serving.llm.runtimes.adapters import MATRIX, TABLE, Changes, Place

Node: TypeAlias = Any  # of OpenVINO
Array: TypeAlias = npt.NDArray[Any]

TOKENS, ROWS = "lora.tokens", "lora.rows"  # the adapter of each token, and of each wanted one
STEP_INPUTS = (TOKENS, ROWS)
_TYPES = {"f32": ov.Type.f32, "bf16": ov.Type.bf16}


class AdapterPorts:
    """The inputs of a graph that is built; `add` names a parameter and keeps it."""

    def __init__(self, add: Callable[[str, Node], Node], precision: str) -> None:
        self.shapes: dict[Place, tuple[int, ...]] = {}  # of the weights at each place
        self.precision = precision
        self._add = add
        self._adapters = {name: self._input(name, ov.Type.i32, -1, 1) for name in STEP_INPUTS}

    def add_rows(self, y: Node, ids: Node, table: str, shape: tuple[int, ...]) -> Node:
        """`y`, which is table[ids], with what is added."""
        place = (TABLE, table)
        first, second, owner = self._inputs(place, shape)
        return self._sum(y, opset.gather(first, ids, np.int32(0)), second, owner, TOKENS)

    def add_product(
        self, y: Node, x: Node, weight: str, shape: tuple[int, ...], *, of_rows: bool
    ) -> Node:
        """`y`, which is x @ weight.T, with what is added."""
        first, second, owner = self._inputs((MATRIX, weight), shape)
        if self.precision == "bf16":
            x = opset.convert(x, "bf16")
        low = opset.matmul(x, first, False, True)
        return self._sum(y, low, second, owner, ROWS if of_rows else TOKENS)

    def _sum(self, y: Node, low: Node, second: Node, owner: Node, tokens: str) -> Node:
        is_own = opset.equal(self._adapters[tokens], owner)
        nothing = opset.constant(np.float32(0))
        if self.precision == "bf16":
            nothing = opset.convert(nothing, "bf16")
        change = opset.matmul(opset.select(is_own, low, nothing), second, False, False)
        return opset.add(y, opset.convert(change, "f32"))

    def _inputs(self, place: Place, shape: tuple[int, ...]) -> tuple[Node, Node, Node]:
        """[ranks, in], [ranks, out], [ranks]; of a table the first is [vocabulary, ranks]."""
        self.shapes[place] = shape
        out, into = shape
        kind = _TYPES[self.precision]
        first, second, owner = names_of(place)
        sizes = (out, -1) if place[0] == TABLE else (-1, into)
        width = into if place[0] == TABLE else out
        return (
            self._input(first, kind, *sizes),
            self._input(second, kind, -1, width),
            self._input(owner, ov.Type.i32, -1),
        )

    def _input(self, name: str, kind: Any, *shape: int) -> Node:
        return self._add(name, Parameter(kind, ov.PartialShape(list(shape))))


def names_of(place: Place) -> tuple[str, str, str]:
    """Of the inputs first, second and owner of a place."""
    use, weight = place
    return f"lora.{use}.{weight}.first", f"lora.{use}.{weight}.second", f"lora.{use}.{weight}.owner"


@dataclass(frozen=True, slots=True)
class _Bound:
    """What the inputs of a place have."""

    first: Array
    second: Array
    owner: npt.NDArray[np.int32]


class LoadedAdapters:
    """The adapters that the second of two `requests` has.  The first is for steps without any, and
    gets nothing.
    """

    def __init__(
        self, requests: Sequence[Any], shapes: Mapping[Place, tuple[int, ...]], precision: str
    ) -> None:
        self.loaded: set[int] = set()
        plain, self._request = requests
        self._precision = precision
        self._bound = {place: self._empty(place, shape) for place, shape in shapes.items()}
        for place, bound in self._bound.items():
            for request in requests:
                self._bind(request, place, bound)
        for name in STEP_INPUTS:
            plain.set_tensor(name, ov.Tensor(np.zeros((1, 1), np.int32)))

    def load(self, adapter: int, changes: Changes) -> None:
        """From now on steps may name `adapter`."""
        self._change({place: self._with(place, adapter, changes) for place in changes})
        self.loaded.add(adapter)

    def unload(self, adapter: int) -> None:
        self.loaded.discard(adapter)
        found = [place for place, bound in self._bound.items() if adapter in bound.owner]
        self._change({place: self._without(place, adapter) for place in found})

    def _change(self, changed: Mapping[Place, _Bound]) -> None:
        for place, bound in changed.items():
            self._bind(self._request, place, bound)
            self._bound[place] = bound

    def _with(self, place: Place, adapter: int, changes: Changes) -> _Bound:
        bound, change = self._bound[place], changes[place]
        axis = _axis(place)
        first, second = (change.up, change.down) if axis else (change.down, change.up.T)
        owner = np.full(len(change.down), adapter, np.int32)
        return _Bound(
            np.concatenate([bound.first, self._stored(first)], axis),
            np.concatenate([bound.second, self._stored(second)]),
            np.concatenate([bound.owner, owner]),
        )

    def _without(self, place: Place, adapter: int) -> _Bound:
        bound = self._bound[place]
        kept = np.flatnonzero(bound.owner != adapter)
        return _Bound(bound.first.take(kept, _axis(place)), bound.second[kept], bound.owner[kept])

    def _empty(self, place: Place, shape: tuple[int, ...]) -> _Bound:
        out, into = shape
        sizes = ((out, 0), (0, into)) if _axis(place) else ((0, into), (0, out))
        first, second = (self._stored(np.zeros(size, np.float32)) for size in sizes)
        return _Bound(first, second, np.zeros(0, np.int32))

    def _stored(self, matrix: npt.NDArray[np.float32]) -> Array:
        return matrix if self._precision == "f32" else to_bf16(matrix)

    def _bind(self, request: Any, place: Place, bound: _Bound) -> None:
        kind = _TYPES[self._precision]
        first, second, owner = names_of(place)
        for name, array in ((first, bound.first), (second, bound.second)):
            request.set_tensor(name, ov.Tensor(array, ov.Shape(list(array.shape)), kind))
        request.set_tensor(owner, ov.Tensor(bound.owner, shared_memory=True))


def _axis(place: Place) -> int:
    """Along which the ranks of `first` are."""
    return 1 if place[0] == TABLE else 0
