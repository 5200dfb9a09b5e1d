"""Checkpoint tensors as OpenVINO constants, in the form that each use of them needs.

A bfloat16 matrix stays in the mapped file, which `kept` keeps alive.  At the first pass the plugin
packs a copy of its own, two bytes per weight in either precision.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as opset

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.packing import Packed, is_router, merged, pack, requantize_8
from mindspore_serving.llm.checkpoint.weights import Checkpoint, Gather, to_bf16
from mindspore_serving.llm.runtimes.openvino.constants import TYPES, Constants, MatrixForm
from mindspore_serving.llm.runtimes.openvino.nodes import features, i64, named, sliced, widened

Node: TypeAlias = Any  # of OpenVINO
Array: TypeAlias = npt.NDArray[Any]

LEAST_GROUP = 32  # of int8: smaller ones would be those of all inputs, and steps longer
# Of a product by integers with minimums.  Of fewer, the four operations that add the minimums take
# longer than it takes to read eight bits of a weight instead of four.
LEAST_WITH_MINIMUMS = 2**20


class OpenVINOWeights:
    """Constants by checkpoint name, each made once.

    Args:
        checkpoint: the tensors.
        precision: "bf16" or "f32", what matrices are multiplied in.
        bits: 8 or 4 to quantise the matrices of a float checkpoint, None to take them as they are.
        is_exact: no inputs are rounded to integers, so integers are multiplied as floats.
        gathers: rows of embeddings are read from the file step by step, where it can be done.
        joins: whether matrices of a form may be one matrix if they have the same input; None: none.
        least_with_minimums: of how many weights a product by 4-bit integers with minimums is; of
            fewer they are rounded to int8.  Nothing is with `is_exact`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        precision: str,
        bits: int | None = None,
        *,
        is_exact: bool = False,
        gathers: bool = False,
        joins: Callable[[MatrixForm], bool] | None = None,
        least_with_minimums: int = LEAST_WITH_MINIMUMS,
    ) -> None:
        self.constants = Constants()
        self.widened: list[str] = []  # quantised matrices that became floats
        self.gathered: dict[str, Gather] = {}  # tables whose rows are inputs of the graph
        self._checkpoint = checkpoint
        self._gathers = gathers
        self._joins = joins
        self._least_with_minimums = least_with_minimums
        self.precision = precision
        self._bits = bits
        self._is_exact = is_exact
        self._made: dict[tuple[str, str], Node] = {}
        self._joined: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        self._orders: dict[str, Array] = {}
        self._minimums: dict[str, Node] = {}  # added to products by integers, [out, groups]

    def has(self, name: str) -> bool:
        return self._checkpoint.has(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape the model sees.  Raises StartError for a tensor that is missing."""
        return self._checkpoint.shape(name)

    def vector(self, name: str, plus: float = 0.0) -> Node:
        """[1, features] float32, `plus` added."""
        return self._once(f"vector+{plus}", name, lambda: self._vector(name, plus))

    def product(self, x: Node, name: str) -> Node:
        """[rows, out] of `x` [rows, in]."""
        matrix, columns = self.matrix(name), self._orders.get(name)
        if columns is not None:
            x = opset.gather(x, opset.constant(columns), opset.constant(-1))
        y = opset.matmul(x, matrix, False, True)
        minimums = self._minimums.get(name)
        if minimums is None:
            return y
        groups = minimums.get_output_shape(0)[1]
        same = [0] * (len(x.get_output_partial_shape(0)) - 1)
        grouped = opset.reshape(x, i64(*same, groups, features(x) // groups), True)
        sums = opset.reduce_sum(grouped, i64(-1), False)
        return opset.add(y, opset.matmul(sums, minimums, False, True))

    def products(self, x: Node, names: Sequence[str]) -> list[Node]:
        """`product` of each.  Matrices that are stored alike are joined, one above the other: a
        step has fewer nodes then, and each has more to do.

        Raises StartError naming one that is not [out, in].
        """
        key, found = tuple(names), dict[str, Node]()
        for name in names:
            shape = self.shape(name)
            if len(shape) != 2 or shape[1] != features(x):
                raise StartError(f"tensor {name!r} is {list(shape)}, expected [*, {features(x)}]")
        if key not in self._joined:
            self._joined[key] = [some for kind in self._alike(names) for some in self._join(kind)]
        for some in self._joined[key]:
            y, end = self.product(x, _joint(some)), 0
            for name in some:
                begin, end = end, end + self.shape(name)[0]
                found[name] = sliced(y, begin, end) if len(some) > 1 else y
        return [found[name] for name in names]

    def matrix(self, name: str) -> Node:
        """[out, in] to multiply by, float32 or widened to it."""
        is_table = ("table", name) in self._made and self._checkpoint.is_quantized(name)
        return self._once("table" if is_table else "matrix", name, lambda: self._matrix(name))

    def table(self, name: str) -> Node:
        """[rows, features] to gather from, in the type of the file, or integers times scales."""
        if self._checkpoint.is_quantized(name):  # the plugin gathers rows of integers
            node = self._once("table", name, lambda: self._matrix(name, is_table=True))
            if name in self._orders:
                raise StartError(f"tensor {name!r} has reordered inputs, but rows of it are read")
            return node
        return self._once("table", name, lambda: self._table(name))

    def gathers(self, name: str) -> bool:
        """Whether rows of this table are an input, for which `gathered` has what reads them."""
        gather = self._checkpoint.gatherer(name) if self._gathers else None
        if gather is not None:
            self.gathered[name] = gather
        return gather is not None

    def stacked(self, names: Sequence[str]) -> Node:
        """[len(names), out, in] float32, or integers times scales if all are quantised alike:
        copied into one array.

        Raises StartError naming one that differs from the first.
        """
        first = self.shape(names[0])
        for name in names:
            if len(first) != 2 or self.shape(name) != first:
                raise StartError(
                    f"tensor {name!r} is {list(self.shape(name))}, but {names[0]!r} {list(first)}"
                )
        beside = (len(names) - 1) * prod(first)
        packed = [self._packed(name, beside=beside) for name in names]
        some = [p for p in packed if p is not None and p.order is None]
        if len(some) < len(names) or len({_form(p) for p in some}) > 1:
            self.widened += [name for name in names if self._checkpoint.is_quantized(name)]
            arrays = np.stack([self._checkpoint.f32(name) for name in names])
            return self.constants.of(arrays, arrays.shape, ov.Type.f32)
        return self.constants.scaled(merged(some, np.stack))

    def rows(self, names: Sequence[str]) -> Node:
        """[len(names), features] float32, of vectors that are equally long."""
        rows = np.stack([self._checkpoint.f32(name) for name in names])
        return self.constants.of(rows, rows.shape, ov.Type.f32)

    def _once(self, use: str, name: str, make: Callable[[], Node]) -> Node:
        if (use, name) not in self._made:
            self._made[use, name] = make()
        return self._made[use, name]

    def _vector(self, name: str, plus: float) -> Node:
        return opset.constant(self._checkpoint.f32(name).reshape(1, -1) + np.float32(plus))

    def _packed(self, name: str, *, beside: int = 0, is_table: bool = False) -> Packed | None:
        """None of floats; `beside` are the weights of the same product that are not of `name`."""
        packed = self._checkpoint.packed(name)
        if packed is None and self._bits is not None and not is_router(name):
            return pack(self._checkpoint.f32(name), self._bits)
        if packed is None or is_table or self._is_exact or not packed.is_plain:
            return packed
        return requantize_8(packed, LEAST_GROUP) if self._is_rounded(packed, beside) else packed

    def _is_rounded(self, packed: Packed, beside: int) -> bool:
        if packed.shape[1] % LEAST_GROUP or packed.zeros is not None:
            return False
        if packed.bits == 8:
            return packed.group < LEAST_GROUP or packed.minimums is not None
        return (
            packed.minimums is not None and prod(packed.shape) + beside < self._least_with_minimums
        )

    def _matrix(self, name: str, *, is_table: bool = False) -> Node:
        packed = self._packed(name, is_table=is_table)
        if packed is not None:
            if packed.order is not None:
                self._orders[name] = packed.order
            if is_table or not self._checkpoint.is_quantized(name):
                return self.constants.scaled(packed)
            return self._integers(name, packed, packed.is_grouped and not packed.codebook)
        stored = self._widened(name) if self._checkpoint.is_quantized(name) else self._table(name)
        return _floats(stored)

    def _integers(self, name: str, packed: Packed, is_spent: bool) -> Node:
        # Integers are multiplied only without minimums; as floats there is nothing to gain.
        if not self._is_exact and packed.minimums is not None:
            self._minimums[name] = self.constants.minimum(packed)
            packed = replace(packed, minimums=None, centre=0)
        return self.constants.scaled(packed, is_spent=is_spent)

    def _alike(self, names: Sequence[str]) -> list[list[str]]:
        """Those of one type together."""
        found: dict[str, list[str]] = {}
        for name in names:
            found.setdefault(self._checkpoint.stored(name).dtype, []).append(name)
        return list(found.values())

    def _join(self, names: Sequence[str]) -> list[tuple[str, ...]]:
        """Make one matrix of them if it can be done, and give the groups in which they are now."""
        apart: list[tuple[str, ...]] = [(name,) for name in names]
        if self._joins is None or len(names) == 1:
            return apart
        sizes = {name: prod(self.shape(name)) for name in names}
        total = sum(sizes.values())
        packed = [self._packed(name, beside=total - size) for name, size in sizes.items()]
        integers = [one for one in packed if one is not None and one.is_plain]
        dtype = self._checkpoint.stored(names[0]).dtype
        form = MatrixForm.of(integers[0]) if integers else MatrixForm(dtype)
        is_known = dtype in TYPES if not any(packed) else len(integers) == len(names)
        if not is_known or len(set(map(_form, integers))) > 1 or not self._joins(form):
            return apart
        if integers:
            whole = merged(integers, np.concatenate)
            node = self._integers(_joint(names), whole, is_spent=True)
        else:
            parts = [self._checkpoint.raw(name)[2] for name in names]
            node = _floats(self.constants.spent_floats(np.concatenate(parts), dtype))
        self._made["matrix", _joint(names)] = node
        return [tuple(names)]

    def _table(self, name: str) -> Node:
        dtype, shape, bits = self._checkpoint.raw(name)
        if dtype not in TYPES:
            raise StartError(
                f"tensor {name!r} is {dtype}, expected one of {', '.join(TYPES)} to compute with"
            )
        return named(self.constants.of(bits, shape, TYPES[dtype]), name)

    def _widened(self, name: str) -> Node:
        """A matrix in a format that the plugin has no kernels for, in the precision."""
        self.widened.append(name)
        floats = self._checkpoint.f32(name)
        bits = floats if self.precision == "f32" else to_bf16(floats)
        return self.constants.of(bits, floats.shape, TYPES[self.precision.upper()])


def _floats(stored: Node) -> Node:
    """Folded, they would take four bytes each; with this mark the plugin packs the two-byte
    weights: as they are to multiply in bfloat16, else it widens them as it multiplies, which
    memory-bound steps gain from.
    """
    return stored if stored.get_element_type() == ov.Type.f32 else widened(stored)


def _joint(names: Sequence[str]) -> str:
    return "+".join(names)


def _form(packed: Packed) -> tuple[object, ...]:
    """What has to be the same for matrices to be stacked or joined."""
    has_zeros, has_minimums = packed.zeros is not None, packed.minimums is not None
    return packed.bits, packed.group, packed.codebook, packed.centre, has_zeros, has_minimums
