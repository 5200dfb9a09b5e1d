"""Checkpoint tensors as OpenVINO constants, in the pattern that each use of them needs.

A bfloat16 matrix stays in the mapped file, which `kept` keeps alive.  At the first pass the plugin
packs a copy, two bytes per weight in either precision.
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
from mindspore_serving.llm.checkpoint.packing import (
    Packed,
    integers_of_codes,
    is_router,
    merged,
    requantize_8,
)
from mindspore_serving.llm.checkpoint.weights import Checkpoint, Gather, to_bf16
from mindspore_serving.llm.runtimes.openvino.constants import TYPES, Constants, MatrixForm
from mindspore_serving.llm.runtimes.openvino.nodes import features, i64, named, sliced, widened

Node: TypeAlias = Any  # of OpenVINO
Array: TypeAlias = npt.NDArray[Any]

MIN_GROUP = 32  # of int8: smaller groups would be those of activations as well, and slow steps
# Weights of a product by integers with minimums.  With fewer, the four operations that add the
# minimums take longer than reading eight bits of a weight instead of four.
MIN_WEIGHTS_WITH_MINIMUMS = 2**20


class OpenVINOWeights:
    """Constants by checkpoint name, each made once.

    Args:
        checkpoint: source of the tensors.
        precision: "bf16" or "f32", in which matrices are multiplied.
        bits: 8 or 4 to quantise the matrices of a float checkpoint, None to keep them.
        is_exact: no inputs are rounded to integers, so integers are multiplied as floats.
        gathers: read rows of embeddings from the file at each step, if possible.
        joins: tells whether matrices of a form with the same input may be joined; None: never.
        min_weights_with_minimums: smallest product by 4-bit integers with minimums, in weights;
            smaller ones are rounded to int8, unless `is_exact`.
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
        min_weights_with_minimums: int = MIN_WEIGHTS_WITH_MINIMUMS,
    ) -> None:
        self.constants = Constants()
        self.dequantised: list[str] = []  # quantised matrices that became floats
        self.gathered: dict[str, Gather] = {}  # tables whose rows are inputs of the graph
        self._checkpoint = checkpoint
        self._gathers = gathers
        self._joins = joins
        self._min_weights_with_minimums = min_weights_with_minimums
        self.precision = precision
        self.check = _nothing  # called before a constant is made; may raise
        self._bits = bits
        self._is_exact = is_exact
        self._made: dict[tuple[str, str], Node] = {}
        self._joined: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        self._orders: dict[str, Array] = {}
        self._minimums: dict[str, Node] = {}  # added to products by integers, [out, groups]

    def has(self, name: str) -> bool:
        return self._checkpoint.has(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that the model sees.  Raises StartError for a missing tensor."""
        return self._checkpoint.shape(name)

    def vector(self, name: str, plus: float = 0.0) -> Node:
        """Return the tensor as [1, features] float32, with `plus` added."""
        return self._once(f"vector+{plus}", name, lambda: self._vector(name, plus))

    def product(self, x: Node, name: str) -> Node:
        """Multiply `x`, [rows, in], by the transposed matrix: [rows, out]."""
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
        """Compute `product` with each matrix, joining those that are stored alike.

        A joined matrix has the rows of one after those of the other: a step has fewer nodes then,
        and each has more work.

        Raises StartError naming a tensor that is not [out, in].
        """
        key, outputs = tuple(names), dict[str, Node]()
        for name in names:
            shape = self.shape(name)
            if len(shape) != 2 or shape[1] != features(x):
                raise StartError(f"tensor {name!r} is {list(shape)}, expected [*, {features(x)}]")
        if key not in self._joined:
            self._joined[key] = [
                group for kind in self._group_by_type(names) for group in self._join(kind)
            ]
        for group in self._joined[key]:
            y, end = self.product(x, _joint(group)), 0
            for name in group:
                begin, end = end, end + self.shape(name)[0]
                outputs[name] = sliced(y, begin, end) if len(group) > 1 else y
        return [outputs[name] for name in names]

    def matrix(self, name: str) -> Node:
        """Return a matrix [out, in] to multiply by, float32 or converted to it."""
        is_table = ("table", name) in self._made and self._checkpoint.is_quantized(name)
        return self._once("table" if is_table else "matrix", name, lambda: self._matrix(name))

    def table(self, name: str) -> Node:
        """Return a table [rows, features] to gather from, in the file's type or quantised."""
        if self._checkpoint.is_quantized(name):  # the plugin gathers rows of integers
            node = self._once("table", name, lambda: self._matrix(name, is_table=True))
            if name in self._orders:
                raise StartError(f"tensor {name!r} has reordered inputs, but rows of it are read")
            return node
        return self._once("table", name, lambda: self._table(name))

    def gathers(self, name: str) -> bool:
        """Return whether rows of the table are an input of the graph, and `gathered` reads them."""
        gather = self._checkpoint.gatherer(name) if self._gathers else None
        if gather is not None:
            self.gathered[name] = gather
        return gather is not None

    def stacked(self, names: Sequence[str]) -> Node:
        """Stack matrices into one array, [len(names), out, in].

        It has integers times scales if all are quantised alike, else floats.  The plugin has no
        product by codes for stacks.

        Raises StartError naming a tensor whose shape differs from the first.
        """
        first = self.shape(names[0])
        for name in names:
            if len(first) != 2 or self.shape(name) != first:
                raise StartError(
                    f"tensor {name!r} is {list(self.shape(name))}, but {names[0]!r} {list(first)}"
                )
        other_weights = (len(names) - 1) * prod(first)
        packed = [self._packed(name, other_weights=other_weights) for name in names]
        some = [
            integers_of_codes(p) if p.codebook == "f4e2m1" else p
            for p in packed
            if p is not None and p.order is None
        ]
        if len(some) < len(names) or len({_storage_key(p) for p in some}) > 1:
            self.dequantised += [name for name in names if self._checkpoint.is_quantized(name)]
            stored = [self._checkpoint.raw(name) for name in names]
            if self.precision == "bf16" and {dtype for dtype, *_ in stored} == {"BF16"}:
                bits = np.stack([bits for *_, bits in stored])
                return widened(self.constants.of(bits, bits.shape, TYPES["BF16"]))
            arrays = np.stack([self._checkpoint.f32(name) for name in names])
            return self.constants.of(arrays, arrays.shape, ov.Type.f32)
        return self.constants.scaled(merged(some, np.stack))

    def by_head(self, name: str, sizes: tuple[int, int]) -> tuple[Node, Node]:
        """Return two matrices, [heads, size, in] each, that a matrix has after each other by head.

        They are floats: the plugin has no product by integers for stacks of them.
        """
        rows = self._checkpoint.f32(name)
        parts = np.split(rows.reshape(-1, sum(sizes), rows.shape[1]), [sizes[0]], 1)
        first, second = (self._stack_of_floats(np.ascontiguousarray(part)) for part in parts)
        return first, second

    def _stack_of_floats(self, stack: Array) -> Node:
        if self.precision == "bf16":
            return widened(self.constants.of(to_bf16(stack), stack.shape, TYPES["BF16"]))
        return self.constants.of(stack, stack.shape, ov.Type.f32)

    def rows(self, names: Sequence[str]) -> Node:
        """Stack vectors of equal length, [len(names), features] float32."""
        rows = np.stack([self._checkpoint.f32(name) for name in names])
        return self.constants.of(rows, rows.shape, ov.Type.f32)

    def _once(self, use: str, name: str, make: Callable[[], Node]) -> Node:
        if (use, name) not in self._made:
            self.check()
            self._made[use, name] = make()
        return self._made[use, name]

    def _vector(self, name: str, plus: float) -> Node:
        return opset.constant(self._checkpoint.f32(name).reshape(1, -1) + np.float32(plus))

    def _packed(
        self, name: str, *, other_weights: int = 0, is_table: bool = False
    ) -> Packed | None:
        """Return the integers of a matrix, None for floats.

        `other_weights` is the number of weights of the same product that are not of `name`.
        """
        packed = self._checkpoint.packed(name)
        if packed is None and self._bits is not None and not is_router(name):
            return self._checkpoint.rounded(name, self._bits)
        if packed is None or is_table or self._is_exact or not packed.is_plain:
            return packed
        return (
            requantize_8(packed, MIN_GROUP) if self._is_rounded(packed, other_weights) else packed
        )

    def _is_rounded(self, packed: Packed, other_weights: int) -> bool:
        if packed.shape[1] % MIN_GROUP or packed.zeros is not None:
            return False
        if packed.bits == 8:
            return packed.group < MIN_GROUP or packed.minimums is not None
        return (
            packed.minimums is not None
            and prod(packed.shape) + other_weights < self._min_weights_with_minimums
        )

    def _matrix(self, name: str, *, is_table: bool = False) -> Node:
        packed = self._packed(name, is_table=is_table)
        if packed is not None:
            if packed.order is not None:
                self._orders[name] = packed.order
            if is_table or not self._checkpoint.is_quantized(name):
                return self.constants.scaled(packed)
            return self._integers(name, packed, packed.is_grouped and not packed.codebook)
        stored = (
            self._dequantised(name) if self._checkpoint.is_quantized(name) else self._table(name)
        )
        return _floats(stored)

    def _integers(self, name: str, packed: Packed, is_releasable: bool) -> Node:
        # Integers are multiplied only without minimums; as floats there is nothing to gain.
        if not self._is_exact and packed.minimums is not None:
            self._minimums[name] = self.constants.minimum(packed)
            packed = replace(packed, minimums=None, centre=0)
        return self.constants.scaled(packed, is_releasable=is_releasable)

    def _group_by_type(self, names: Sequence[str]) -> list[list[str]]:
        """Group the names by the type of their tensors."""
        by_type: dict[str, list[str]] = {}
        for name in names:
            by_type.setdefault(self._checkpoint.stored(name).dtype, []).append(name)
        return list(by_type.values())

    def _join(self, names: Sequence[str]) -> list[tuple[str, ...]]:
        """Join matrices to one if possible, and return the groups that result."""
        separate: list[tuple[str, ...]] = [(name,) for name in names]
        if self._joins is None or len(names) == 1:
            return separate
        sizes = {name: prod(self.shape(name)) for name in names}
        total = sum(sizes.values())
        packed = [self._packed(name, other_weights=total - size) for name, size in sizes.items()]
        integers = [part for part in packed if part is not None and part.is_plain]
        dtype = self._checkpoint.stored(names[0]).dtype
        form = MatrixForm.of(integers[0]) if integers else MatrixForm(dtype)
        is_known = dtype in TYPES if not any(packed) else len(integers) == len(names)
        if not is_known or len(set(map(_storage_key, integers))) > 1 or not self._joins(form):
            return separate
        if integers:
            joined = merged(integers, np.concatenate)
            node = self._integers(_joint(names), joined, is_releasable=True)
        else:
            parts = [self._checkpoint.raw(name)[2] for name in names]
            node = _floats(self.constants.releasable_floats(np.concatenate(parts), dtype))
        self._made["matrix", _joint(names)] = node
        return [tuple(names)]

    def _table(self, name: str) -> Node:
        dtype, shape, bits = self._checkpoint.raw(name)
        if dtype not in TYPES:
            raise StartError(
                f"tensor {name!r} is {dtype}, expected one of {', '.join(TYPES)} to compute with"
            )
        return named(self.constants.of(bits, shape, TYPES[dtype]), name)

    def _dequantised(self, name: str) -> Node:
        """Dequantise a matrix, in a format without kernels in the plugin, to the precision."""
        self.dequantised.append(name)
        floats = self._checkpoint.f32(name)
        bits = floats if self.precision == "f32" else to_bf16(floats)
        return self.constants.of(bits, floats.shape, TYPES[self.precision.upper()])


def _nothing() -> None:
    return


def _floats(stored: Node) -> Node:
    """Return a matrix in float32 without folding its conversion.

    Folded, they would take four bytes per weight.  With this mark the plugin packs two-byte
    weights: to multiply in bfloat16 as they are, otherwise it widens them during the product, which
    is faster for memory-bound steps.
    """
    return stored if stored.get_element_type() == ov.Type.f32 else widened(stored)


def _joint(names: Sequence[str]) -> str:
    return "+".join(names)


def _storage_key(packed: Packed) -> tuple[object, ...]:
    """Return the properties that matrices must share to be stacked or joined."""
    has_zeros, has_minimums = packed.zeros is not None, packed.minimums is not None
    return packed.bits, packed.group, packed.codebook, packed.centre, has_zeros, has_minimums
