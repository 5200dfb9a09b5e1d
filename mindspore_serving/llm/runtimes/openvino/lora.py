"""LoRA adapters in OpenVINO as inputs of the graph, so that loading one compiles nothing.

At every weight that can be adapted, the graph adds second(chosen(first(x))).  `first` has the rows
of all loaded adapters, one after another; `owner` has the adapter of each row, and a token keeps
only the results of its own adapter.  So one step computes rows of several adapters and of none.
Without any row nothing is computed: that is the input of a step without adapters.

    x [T, in] -> first [ranks, in] -> 0 unless owner == token's adapter -> second [ranks, out]
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
from mindspore_serving.llm.runtimes.adapters import MATRIX, TABLE, Changes, WeightUse

Node: TypeAlias = Any  # of OpenVINO
Array: TypeAlias = npt.NDArray[Any]

TOKENS, ROWS = "lora.tokens", "lora.rows"  # adapter of each token, and of each row of logits
STEP_INPUTS = (TOKENS, ROWS)
_TYPES = {"f32": ov.Type.f32, "bf16": ov.Type.bf16}


class AdapterPorts:
    """Adapter inputs of a graph that is being built; `add` names a parameter and keeps it."""

    def __init__(self, add: Callable[[str, Node], Node], precision: str) -> None:
        self.shapes: dict[WeightUse, tuple[int, ...]] = {}  # of the weights
        self.precision = precision
        self._add = add
        self._adapters = {name: self._input(name, ov.Type.i32, -1, 1) for name in STEP_INPUTS}

    def add_rows(self, y: Node, ids: Node, table: str, shape: tuple[int, ...]) -> Node:
        """Add the adapters' changes to `y`, which is table[ids]."""
        use = (TABLE, table)
        first, second, owner = self._inputs(use, shape)
        return self._sum(y, opset.gather(first, ids, np.int32(0)), second, owner, TOKENS)

    def add_product(
        self, y: Node, x: Node, weight: str, shape: tuple[int, ...], *, of_rows: bool
    ) -> Node:
        """Add the adapters' changes to `y`, which is x @ weight.T."""
        first, second, owner = self._inputs((MATRIX, weight), shape)
        if self.precision == "bf16":
            x = opset.convert(x, "bf16")
        low = opset.matmul(x, first, False, True)
        return self._sum(y, low, second, owner, ROWS if of_rows else TOKENS)

    def _sum(self, y: Node, low: Node, second: Node, owner: Node, tokens: str) -> Node:
        is_selected = opset.equal(self._adapters[tokens], owner)
        zero = opset.constant(np.float32(0))
        if self.precision == "bf16":
            zero = opset.convert(zero, "bf16")
        change = opset.matmul(opset.select(is_selected, low, zero), second, False, False)
        return opset.add(y, opset.convert(change, "f32"))

    def _inputs(self, use: WeightUse, shape: tuple[int, ...]) -> tuple[Node, Node, Node]:
        """Create the inputs first [ranks, in], second [ranks, out] and owner [ranks].

        Of a table, first is [vocabulary, ranks].
        """
        self.shapes[use] = shape
        out, into = shape
        kind = _TYPES[self.precision]
        first, second, owner = input_names(use)
        sizes = (out, -1) if use[0] == TABLE else (-1, into)
        width = into if use[0] == TABLE else out
        return (
            self._input(first, kind, *sizes),
            self._input(second, kind, -1, width),
            self._input(owner, ov.Type.i32, -1),
        )

    def _input(self, name: str, kind: Any, *shape: int) -> Node:
        return self._add(name, Parameter(kind, ov.PartialShape(list(shape))))


def input_names(weight_use: WeightUse) -> tuple[str, str, str]:
    """Return the names of the inputs first, second and owner of a weight's use."""
    use, weight = weight_use
    return f"lora.{use}.{weight}.first", f"lora.{use}.{weight}.second", f"lora.{use}.{weight}.owner"


@dataclass(frozen=True, slots=True)
class _Bindings:
    """Arrays of the inputs of one weight's use."""

    first: Array
    second: Array
    owner: npt.NDArray[np.int32]


class LoadedAdapters:
    """Adapters loaded into the second of two `requests`; the first is for steps without them."""

    def __init__(
        self, requests: Sequence[Any], shapes: Mapping[WeightUse, tuple[int, ...]], precision: str
    ) -> None:
        self.loaded: set[int] = set()
        plain, self._request = requests
        self._precision = precision
        self._bound = {use: self._empty(use, shape) for use, shape in shapes.items()}
        for use, bound in self._bound.items():
            for request in requests:
                self._bind(request, use, bound)
        for name in STEP_INPUTS:
            plain.set_tensor(name, ov.Tensor(np.zeros((1, 1), np.int32)))

    def load(self, adapter: int, changes: Changes) -> None:
        """Load an adapter; steps may name it from now on."""
        self._change({use: self._with(use, adapter, changes) for use in changes})
        self.loaded.add(adapter)

    def unload(self, adapter: int) -> None:
        self.loaded.discard(adapter)
        affected = [use for use, bound in self._bound.items() if adapter in bound.owner]
        self._change({use: self._without(use, adapter) for use in affected})

    def _change(self, changed: Mapping[WeightUse, _Bindings]) -> None:
        for use, bound in changed.items():
            self._bind(self._request, use, bound)
            self._bound[use] = bound

    def _with(self, use: WeightUse, adapter: int, changes: Changes) -> _Bindings:
        bound, change = self._bound[use], changes[use]
        axis = _axis(use)
        first, second = (change.up, change.down) if axis else (change.down, change.up.T)
        owner = np.full(len(change.down), adapter, np.int32)
        return _Bindings(
            np.concatenate([bound.first, self._stored(first)], axis),
            np.concatenate([bound.second, self._stored(second)]),
            np.concatenate([bound.owner, owner]),
        )

    def _without(self, use: WeightUse, adapter: int) -> _Bindings:
        bound = self._bound[use]
        kept = np.flatnonzero(bound.owner != adapter)
        return _Bindings(bound.first.take(kept, _axis(use)), bound.second[kept], bound.owner[kept])

    def _empty(self, use: WeightUse, shape: tuple[int, ...]) -> _Bindings:
        out, into = shape
        sizes = ((out, 0), (0, into)) if _axis(use) else ((0, into), (0, out))
        first, second = (self._stored(np.zeros(size, np.float32)) for size in sizes)
        return _Bindings(first, second, np.zeros(0, np.int32))

    def _stored(self, matrix: npt.NDArray[np.float32]) -> Array:
        return matrix if self._precision == "f32" else to_bf16(matrix)

    def _bind(self, request: Any, use: WeightUse, bound: _Bindings) -> None:
        kind = _TYPES[self._precision]
        first, second, owner = input_names(use)
        for name, array in ((first, bound.first), (second, bound.second)):
            request.set_tensor(name, ov.Tensor(array, ov.Shape(list(array.shape)), kind))
        request.set_tensor(owner, ov.Tensor(bound.owner, shared_memory=True))


def _axis(use: WeightUse) -> int:
    """Return the axis of `first` along which the ranks of adapters are."""
    return 1 if use[0] == TABLE else 0
