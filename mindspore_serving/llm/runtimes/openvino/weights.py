"""Checkpoint tensors as OpenVINO constants, in the form that each use of them needs.

A bfloat16 matrix stays in the mapped file, which `kept` keeps alive.  At the first pass the plugin
packs a copy of its own, two bytes per weight in either precision.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Constant

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.packing import Packed, is_router, pack, pairs
from mindspore_serving.llm.checkpoint.weights import Checkpoint, Gather, to_bf16
from mindspore_serving.llm.runtimes.openvino.nodes import i64, name_of, named, widened
from mindspore_serving.llm.runtimes.openvino.pages import in_pages

Node: TypeAlias = Any  # of OpenVINO
Array: TypeAlias = npt.NDArray[Any]

INT8_GROUP = 128  # of activations; int8 weights have one scale per output, so it is free to choose
_INTEGERS = {
    (8, True): ov.Type.i8,  # bits, whether they are signed
    (4, True): ov.Type.i4,
    (8, False): ov.Type.u8,
    (4, False): ov.Type.u4,
}
_CODEBOOKS = {
    "nf4": ov.Type.nf4,
    "f4e2m1": ov.Type.f4e2m1,
    "f8e4m3": ov.Type.f8e4m3,  # of which the plugin makes floats when it packs them
    "f8e5m2": ov.Type.f8e5m2,
}
_TYPES = {"F32": ov.Type.f32, "F16": ov.Type.f16, "BF16": ov.Type.bf16}


class Weights:
    """Constants by checkpoint name, each made once.

    Args:
        checkpoint: the tensors.
        precision: "bf16" or "f32", what matrices are multiplied in.
        bits: 8 or 4 to quantise the matrices of a float checkpoint, None to take them as they are.
        is_exact: no inputs are rounded to integers, so integers are multiplied as floats.
        gathers: rows of embeddings are read from the file step by step, where it can be done.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        precision: str,
        bits: int | None = None,
        *,
        is_exact: bool = False,
        gathers: bool = False,
    ) -> None:
        self.group = 0  # the smallest group of inputs that shares a scale; 0 with no quantised one
        self.is_grouped = False  # a quantised matrix has more scales than one for each output
        self.widened: list[str] = []  # quantised matrices that became floats
        self.kept: list[Array] = []
        # Integers and their scales, of `kept`, in pages of their own, by the names of their nodes;
        # those that rows are gathered from are not among them.
        self.integers: dict[str, Array] = {}
        self.minimums: dict[str, Array] = {}  # as `integers`, what is added to their products
        self.gathered: dict[str, Gather] = {}  # tables whose rows are inputs of the graph
        self.forms: set[tuple[int, int, bool]] = set()  # bits, group and zeros of `integers`
        self.unpacked: list[Array] = []  # of `kept`, what is not read when it has been packed
        self.early: list[tuple[str, list[Array]]] = []  # of `unpacked`, as `order_of_packing` says
        self._checkpoint = checkpoint
        self._gathers = gathers
        self.precision = precision
        self._bits = bits
        # Integers are multiplied only without them; as floats there is nothing to gain.
        self._splits_minimums = not is_exact
        self._made: dict[tuple[str, str], Node] = {}
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
        grouped = opset.reshape(x, i64(*same, groups, self.shape(name)[1] // groups), True)
        sums = opset.reduce_sum(grouped, i64(-1), False)
        return opset.add(y, opset.matmul(sums, minimums, False, True))

    def matrix(self, name: str) -> Node:
        """[out, in] to multiply by, float32 or widened to it."""
        is_table = self._checkpoint.is_quantized(name) and ("table", name) in self._made
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
        packed = [self._packed(name) for name in names]
        some = [p for p in packed if p is not None and p.order is None]
        if len(some) < len(names) or len({_form(p) for p in some}) > 1:
            self.widened += [name for name in names if self._checkpoint.is_quantized(name)]
            arrays = np.stack([self._checkpoint.f32(name) for name in names])
            return self._constant(arrays, arrays.shape, ov.Type.f32)
        minimums = [p.minimums for p in some if p.minimums is not None]
        zeros = [p.zeros for p in some if p.zeros is not None]
        return self._unpacked(
            replace(
                some[0],
                values=np.stack([p.values for p in some]),
                scales=np.stack([p.scales for p in some]),
                minimums=np.stack(minimums) if minimums else None,
                zeros=np.stack(zeros) if zeros else None,
            )
        )

    def rows(self, names: Sequence[str]) -> Node:
        """[len(names), features] float32, of vectors that are equally long."""
        rows = np.stack([self._checkpoint.f32(name) for name in names])
        return self._constant(rows, rows.shape, ov.Type.f32)

    def _once(self, use: str, name: str, make: Callable[[], Node]) -> Node:
        if (use, name) not in self._made:
            self._made[use, name] = make()
        return self._made[use, name]

    def _vector(self, name: str, plus: float) -> Node:
        return opset.constant(self._checkpoint.f32(name).reshape(1, -1) + np.float32(plus))

    def _packed(self, name: str) -> Packed | None:
        packed = self._checkpoint.packed(name)
        if packed is None and self._bits is not None and not is_router(name):
            return pack(self._checkpoint.f32(name), self._bits)
        return packed

    def _matrix(self, name: str, *, is_table: bool = False) -> Node:
        packed = self._packed(name)
        if packed is not None:
            if packed.order is not None:
                self._orders[name] = packed.order
            if is_table or not self._checkpoint.is_quantized(name):
                return self._unpacked(packed)
            has_zeros = packed.zeros is not None
            self.forms.add((packed.bits, packed.group, has_zeros))
            if self._splits_minimums and packed.minimums is not None:
                minimums = _minimums(packed)
                spent = self._spent(minimums, minimums.shape, ov.Type.f32, self.minimums)
                self._minimums[name] = spent
                packed = replace(packed, minimums=None, centre=0)
            return self._unpacked(packed, is_spent=packed.is_grouped and not packed.codebook)
        stored = self._widened(name) if self._checkpoint.is_quantized(name) else self._table(name)
        if stored.get_element_type() == ov.Type.f32:
            return stored
        # Folded, it would take four bytes per weight; with this mark the plugin packs the two-byte
        # weights: as they are to multiply in bfloat16, else it widens them as it multiplies, which
        # memory-bound steps gain from.
        return widened(stored)

    def _table(self, name: str) -> Node:
        dtype, shape, bits = self._checkpoint.raw(name)
        if dtype not in _TYPES:
            raise StartError(
                f"tensor {name!r} is {dtype}, expected one of {', '.join(_TYPES)} to compute with"
            )
        return named(self._constant(bits, shape, _TYPES[dtype]), name)

    def _widened(self, name: str) -> Node:
        """A matrix in a format that the plugin has no kernels for, in the precision."""
        self.widened.append(name)
        floats = self._checkpoint.f32(name)
        bits = floats if self.precision == "f32" else to_bf16(floats)
        return self._constant(bits, floats.shape, _TYPES[self.precision.upper()])

    def _unpacked(self, form: Packed, *, is_spent: bool = False) -> Node:
        """Integers times scales as the plugin recognises it: it multiplies by the integers.

        The arrays of `form` may be stacks of those of several matrices.  With `is_spent` they are
        not read when they are packed.
        """
        constant: Callable[[Array, tuple[int, ...], Any], Node] = self._constant
        if is_spent:
            constant = partial(self._spent, of=self.integers)
        values, scales = form.values, form.scales
        shape = (*values.shape[:-1], form.shape[1])
        groups = form.shape[1] // form.group
        is_grouped = groups > 1
        integers = (*shape[:-1], groups, form.group) if is_grouped else shape
        kind = _CODEBOOKS.get(form.codebook) or _INTEGERS[form.bits, form.is_signed]
        self.is_grouped |= is_grouped
        # The plugin makes float32 of scales, in memory that is not given back.
        is_half = is_grouped and not is_spent and scales.dtype == np.float16
        is_half &= form.minimums is None
        wide = "f16" if is_half else "f32"
        scales = scales if is_half else scales.astype(np.float32, copy=False)
        node = opset.convert(constant(values, integers, kind), wide)
        if form.minimums is not None:
            scales, zeros = _with_zeros(scales, _minimums(form))
            node = opset.subtract(node, opset.constant(zeros[..., None] if is_grouped else zeros))
            constant = self._constant  # what is read of these again is not tried
        elif form.zeros is not None:
            flat = form.zeros.reshape(1, -1)
            bits = pairs(flat) if form.bits == 4 and flat.size % 2 == 0 else flat
            kind = _INTEGERS[4 if bits is not flat else 8, False]
            zeros = self._constant(bits, (*integers[:-1], 1), kind)
            node = opset.subtract(node, opset.convert(zeros, wide))
        places = (*integers[:-1], 1) if is_grouped else scales.shape
        product = opset.multiply(node, constant(scales, places, _TYPES[wide.upper()]))
        if is_grouped:
            product = opset.reshape(product, np.array(shape, np.int64), False)
        group = form.group if is_grouped else INT8_GROUP
        self.group = min(self.group or group, group)
        return opset.convert(product, "f32") if is_half else product

    def _spent(self, bits: Array, shape: tuple[int, ...], kind: Any, of: dict[str, Array]) -> Node:
        """As `_constant`, of memory that can be given back, which `of` gets."""
        own = in_pages(bits.shape, bits.dtype)
        own[...] = bits
        node = self._constant(own, shape, kind)
        of[name_of(node)] = own
        return node

    def _constant(self, bits: Array, shape: tuple[int, ...], kind: Any) -> Node:
        bits = np.ascontiguousarray(bits)
        self.kept.append(bits)
        return Constant(ov.Tensor(bits, ov.Shape(list(shape)), kind), shared_memory=True)


def _minimums(form: Packed) -> Array:
    """What is added to integers times scales, [out, groups] float32."""
    assert form.minimums is not None
    found: Array = form.minimums + form.centre * form.scales.astype(np.float32)
    return found


def _with_zeros(scales: Array, minimums: Array) -> tuple[Array, Array]:
    """What scale * integer + minimum is as scale * (integer - zero), all float32."""
    wide = scales.astype(np.float32)
    flat = (wide == 0) & (minimums != 0)  # a group of one value, whatever its integers are
    wide[flat] = np.abs(minimums[flat]) * np.float32(2.0**-30)
    return wide, np.divide(-minimums, wide, out=np.zeros_like(wide), where=wide != 0)


def _form(packed: Packed) -> tuple[object, ...]:
    """What has to be the same for matrices to be stacked."""
    has_zeros, has_minimums = packed.zeros is not None, packed.minimums is not None
    return packed.bits, packed.group, packed.codebook, packed.centre, has_zeros, has_minimums
