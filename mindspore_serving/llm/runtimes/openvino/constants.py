"""Arrays as constants of an OpenVINO graph, and which of their memory can be given back.

Integers times scales are in the form that the plugin multiplies by.  Knows no checkpoint.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Constant

from mindspore_serving.llm.checkpoint.packing import Packed, pairs
from mindspore_serving.llm.runtimes.openvino.nodes import name_of
from mindspore_serving.llm.runtimes.openvino.pages import in_pages

Node: TypeAlias = Any  # of OpenVINO
Array: TypeAlias = npt.NDArray[Any]

INT8_GROUP = 128  # of activations, where int8 weights have one scale per output: free to choose
TYPES = {"F32": ov.Type.f32, "F16": ov.Type.f16, "BF16": ov.Type.bf16}
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


class Form(NamedTuple):
    """How a matrix is stored: a float type of TYPES or `int8` and so on, how many inputs share a
    scale if they are not all of an output, and whether there are zeros."""

    kind: str
    group: int = 0
    has_zeros: bool = False

    @classmethod
    def of(cls, packed: Packed) -> "Form":
        group = packed.group if packed.is_grouped else 0
        return cls(f"int{packed.bits}", group, packed.zeros is not None)


class Constants:
    """The constants of one graph, and the arrays that they are in."""

    def __init__(self) -> None:
        self.group = 0  # the smallest group of inputs that shares a scale; 0 with no quantised one
        self.is_grouped = False  # a quantised matrix has more scales than one for each output
        self.kept: list[Array] = []
        # Matrices and their scales, of `kept`, in pages of their own, by the names of their nodes;
        # those that rows are gathered from are not among them.
        self.spent: dict[str, Array] = {}
        self.minimums: dict[str, Array] = {}  # as `spent`, what is added to their products
        self.forms: set[Form] = set()  # of `spent`
        self.unpacked: list[Array] = []  # of `kept`, what is not read when it has been packed
        self.early: list[tuple[str, list[Array]]] = []  # of `unpacked`, as `order_of_packing` says

    def of(self, bits: Array, shape: tuple[int, ...], kind: Any) -> Node:
        """A constant that reads `bits` where they lie."""
        bits = np.ascontiguousarray(bits)
        self.kept.append(bits)
        return Constant(ov.Tensor(bits, ov.Shape(list(shape)), kind), shared_memory=True)

    def spent_floats(self, bits: Array, dtype: str) -> Node:
        """A matrix [out, in] of a type of TYPES, in memory that can be given back."""
        self.forms.add(Form(dtype))
        return self._spend(bits, bits.shape, TYPES[dtype])

    def minimum(self, form: Packed) -> Node:
        """What is added to integers times scales, [out, groups] float32, in memory as well."""
        minimums = _minimums(form)
        return self._spend(minimums, minimums.shape, ov.Type.f32, self.minimums)

    def scaled(self, form: Packed, *, is_spent: bool = False) -> Node:
        """Integers times scales as the plugin recognises it: it multiplies by the integers.

        The arrays of `form` may be stacks of those of several matrices.  With `is_spent` they are
        not read when they are packed.
        """
        keep: Callable[[Array, tuple[int, ...], Any], Node] = self.of
        if is_spent:
            keep = self._spend
            self.forms.add(Form.of(form))
        self._note_group(form)
        shape, width = _shape_of_integers(form), _width(form, is_spent)
        kind = _CODEBOOKS.get(form.codebook) or _INTEGERS[form.bits, form.is_signed]
        node, scales = opset.convert(keep(form.values, shape, kind), width), form.scales
        if form.minimums is not None:
            # The plugin knows no sum behind the product, so what is added becomes a zero that is
            # no integer.
            scales, zeros = _with_zeros(scales, _minimums(form))
            zeros = zeros[..., None] if form.is_grouped else zeros
            node = opset.subtract(node, opset.constant(zeros))
            keep = self.of  # what is read of these again is not tried
        elif form.zeros is not None:
            node = opset.subtract(node, opset.convert(self._zeros(form), width))
        scales = scales.astype(np.float16 if width == "f16" else np.float32, copy=False)
        # By group a scale has an axis of its own, which is broadcast over the group's inputs.
        places = (*shape[:-1], 1) if form.is_grouped else scales.shape
        product = opset.multiply(node, keep(scales, places, TYPES[width.upper()]))
        if form.is_grouped:
            flat = (*form.values.shape[:-1], form.shape[1])
            product = opset.reshape(product, np.array(flat, np.int64), False)
        return opset.convert(product, "f32") if width == "f16" else product

    def _note_group(self, form: Packed) -> None:
        group = form.group if form.is_grouped else INT8_GROUP
        self.group = min(self.group or group, group)
        self.is_grouped |= form.is_grouped

    def _zeros(self, form: Packed) -> Node:
        """Pack two in a byte, as 4-bit integers are, if their number is even: else a byte each."""
        assert form.zeros is not None
        bits, flat = 8, form.zeros.reshape(1, -1)
        if form.bits == 4 and flat.size % 2 == 0:
            bits, flat = 4, pairs(flat)
        return self.of(flat, (*_shape_of_integers(form)[:-1], 1), _INTEGERS[bits, False])

    def _spend(
        self, bits: Array, shape: tuple[int, ...], kind: Any, of: dict[str, Array] | None = None
    ) -> Node:
        """As `of`, of a copy that can be given back when the plugin has packed it."""
        own = in_pages(bits.shape, bits.dtype)
        own[...] = bits
        node = self.of(own, shape, kind)
        found = self.spent if of is None else of
        found[name_of(node)] = own
        return node


def _shape_of_integers(form: Packed) -> tuple[int, ...]:
    """Return [..., out, groups, inputs of a group], or [..., out, in] where none has groups."""
    outputs, inputs = form.values.shape[:-1], form.shape[1]
    if form.is_grouped:
        return (*outputs, inputs // form.group, form.group)
    return (*outputs, inputs)


def _width(form: Packed, is_spent: bool) -> str:
    """Choose the type that integers are multiplied in, and that scales have.

    Half as wide where that saves memory: of scales by group that are stored so.  Not where they are
    given back, as the plugin makes float32 of them in memory that is not; nor with minimums, whose
    zeros are float32.
    """
    is_half = form.is_grouped and form.scales.dtype == np.float16
    return "f16" if is_half and not is_spent and form.minimums is None else "f32"


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
