"""Checkpoint tensors as OpenVINO constants, in the form that each use of them needs.

A bfloat16 matrix stays in the mapped file, which `kept` keeps alive.  At the first pass the plugin
packs a copy of its own, two bytes per weight in either precision.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Constant

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.decoding import FORMS
from mindspore_serving.llm.checkpoint.packing import Packed, is_router, pack
from mindspore_serving.llm.checkpoint.weights import Checkpoint

Node: TypeAlias = Any  # of OpenVINO
Array: TypeAlias = npt.NDArray[Any]

DECOMPRESSION = "decompression_0"  # the plugin's name for a conversion that is not to be folded
INT8_GROUP = 128  # of activations; int8 weights have one scale per output, so it is free to choose
_INTEGERS = {
    (8, True): ov.Type.i8,  # bits, whether they are signed
    (4, True): ov.Type.i4,
    (8, False): ov.Type.u8,
    (4, False): ov.Type.u4,
}
_TYPES = {"F32": ov.Type.f32, "F16": ov.Type.f16, "BF16": ov.Type.bf16}


class Weights:
    """Constants by checkpoint name, each made once.

    Args:
        checkpoint: the tensors.
        precision: "bf16" or "f32", what matrices are multiplied in.
        bits: 8 or 4 to quantise the matrices of a float checkpoint, None to take them as they are.
    """

    def __init__(self, checkpoint: Checkpoint, precision: str, bits: int | None = None) -> None:
        self.group = 0  # the smallest group of inputs that shares a scale; 0 with no quantised one
        self.has_minimums = False  # for which the plugin has no kernels that multiply integers
        self.kept: list[Array] = []
        self._checkpoint = checkpoint
        self.precision = precision
        self._bits = bits
        self._made: dict[tuple[str, str], Node] = {}

    def has(self, name: str) -> bool:
        return self._checkpoint.has(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape the model sees.  Raises StartError for a tensor that is missing."""
        return self._checkpoint.shape(name)

    def vector(self, name: str, plus: float = 0.0) -> Node:
        """[1, features] float32, `plus` added."""
        return self._once(f"vector+{plus}", name, lambda: self._vector(name, plus))

    def matrix(self, name: str) -> Node:
        """[out, in] to multiply by: bfloat16, or float32 where that is the precision."""
        return self._once("matrix", name, lambda: self._matrix(name))

    def table(self, name: str) -> Node:
        """[rows, features] to gather from, in the type of the file, or integers times scales."""
        if self._is_blocks(name):  # the plugin gathers rows of integers
            return self.matrix(name)
        return self._once("table", name, lambda: self._table(name))

    def stacked(self, names: Sequence[str]) -> Node:
        """[len(names), out, in] float32, or integers times scales: copied into one array.

        Raises StartError naming one that differs from the first.
        """
        first = self.shape(names[0])
        for name in names:
            if len(first) != 2 or self.shape(name) != first:
                raise StartError(
                    f"tensor {name!r} is {list(self.shape(name))}, but {names[0]!r} {list(first)}"
                )
        packed = [self._packed(name) for name in names]
        forms = {(p.bits, p.group) if p else None for p in packed}
        if len(forms) > 1:
            raise StartError(f"{names[0]!r} and the other experts are not quantised alike")
        if packed[0] is None:
            arrays = np.stack([self._checkpoint.f32(name) for name in names])
            return self._constant(arrays, arrays.shape, ov.Type.f32)
        some = [p for p in packed if p is not None]
        values = np.stack([p.values for p in some])
        minimums = [p.minimums for p in some if p.minimums is not None]
        form = replace(some[0], minimums=np.stack(minimums) if minimums else None)
        return self._unpacked(values, np.stack([p.scales for p in some]), form)

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

    def _is_blocks(self, name: str) -> bool:
        dtype, _, _ = self._checkpoint.raw(name)
        return dtype in FORMS

    def _packed(self, name: str) -> Packed | None:
        packed = self._checkpoint.packed(name)
        if packed is None and self._bits is not None and not is_router(name):
            return pack(self._checkpoint.f32(name), self._bits)
        return packed

    def _matrix(self, name: str) -> Node:
        packed = self._packed(name)
        if packed is not None:
            return self._unpacked(packed.values, packed.scales, packed)
        stored = self._table(name)
        wanted = _TYPES[self.precision.upper()]
        if stored.get_element_type() == wanted:
            return stored
        if wanted != ov.Type.f32:
            return opset.convert(stored, "bf16")  # by the graph, which folds it when compiled
        # Folded, it would take four bytes per weight; with this mark the plugin packs the two-byte
        # weights and widens them as it multiplies, which memory-bound steps gain from.
        widened = opset.convert(stored, "f32")
        widened.get_rt_info()[DECOMPRESSION] = True
        return widened

    def _table(self, name: str) -> Node:
        dtype, shape, bits = self._checkpoint.raw(name)
        if dtype not in _TYPES:
            raise StartError(
                f"tensor {name!r} is {dtype}, expected one of {', '.join(_TYPES)} to compute with"
            )
        return self._constant(bits, shape, _TYPES[dtype])

    def _unpacked(self, values: Array, scales: Array, form: Packed) -> Node:
        """Integers times scales as the plugin recognises it: it multiplies by the integers.

        `values`, `scales` and `form.minimums` are `form`'s, or stacks of them.
        """
        shape = (*values.shape[:-1], form.shape[1])
        groups = form.shape[1] // form.group
        is_grouped = groups > 1
        integers = (*shape[:-1], groups, form.group) if is_grouped else shape
        node = self._constant(values, integers, _INTEGERS[form.bits, form.minimums is None])
        if form.minimums is not None:
            self.has_minimums = True
            scales, zeros = _with_zeros(scales, form.minimums)
            node = opset.subtract(opset.convert(node, "f32"), opset.constant(zeros[..., None]))
        elif scales.dtype == np.float16:
            node = opset.convert(node, "f16")
        else:
            node = opset.convert(node, "f32")
        scales = np.ascontiguousarray(scales[..., None] if is_grouped else scales)
        product = opset.multiply(node, opset.constant(scales))
        if is_grouped:
            product = opset.reshape(product, np.array(shape, np.int64), False)
        group = form.group if is_grouped else INT8_GROUP
        self.group = min(self.group or group, group)
        return opset.convert(product, "f32")

    def _constant(self, bits: Array, shape: tuple[int, ...], kind: Any) -> Node:
        bits = np.ascontiguousarray(bits)
        self.kept.append(bits)
        return Constant(ov.Tensor(bits, ov.Shape(list(shape)), kind), shared_memory=True)


def _with_zeros(scales: Array, minimums: Array) -> tuple[Array, Array]:
    """What scale * integer + minimum is as scale * (integer - zero), all float32."""
    wide = scales.astype(np.float32)
    flat = (wide == 0) & (minimums != 0)  # a group of one value, whatever its integers are
    wide[flat] = np.abs(minimums[flat]) * np.float32(2.0**-30)
    return wide, np.divide(-minimums, wide, out=np.zeros_like(wide), where=wide != 0)
