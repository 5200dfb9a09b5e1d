"""Arrays as constants of an OpenVINO graph, and which of their memory can be given back while
native code still refers to it.

Integers times scales are in the form that the plugin multiplies by.  Knows no checkpoint.
"""

import ctypes
import mmap
from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Constant

from mindspore_serving.llm.checkpoint.packing import Packed, pack_nibbles
from mindspore_serving.llm.runtimes.openvino.nodes import name_of

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


class MatrixForm(NamedTuple):
    """How a matrix is stored: a float type of TYPES or `int8` and so on, how many inputs share a
    scale if they are not all of an output, and whether there are zeros.
    """

    kind: str
    group: int = 0
    has_zeros: bool = False

    @classmethod
    def of(cls, packed: Packed) -> "MatrixForm":
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
        self.forms: set[MatrixForm] = set()  # of `spent`
        self.unpacked: list[Array] = []  # of `kept`, what is not read when it has been packed
        self.early: list[tuple[str, list[Array]]] = []  # of `unpacked`, as `order_of_packing` says

    def of(self, bits: Array, shape: tuple[int, ...], kind: Any) -> Node:
        """A constant that reads `bits` where they lie."""
        bits = np.ascontiguousarray(bits)
        self.kept.append(bits)
        return Constant(ov.Tensor(bits, ov.Shape(list(shape)), kind), shared_memory=True)

    def spent_floats(self, bits: Array, dtype: str) -> Node:
        """A matrix [out, in] of a type of TYPES, in memory that can be given back."""
        self.forms.add(MatrixForm(dtype))
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
        if is_spent:
            self.forms.add(MatrixForm.of(form))
        constant = self._spend if is_spent else self.of
        groups = form.shape[1] // form.group
        is_grouped = groups > 1
        self.is_grouped |= is_grouped
        group = form.group if is_grouped else INT8_GROUP
        self.group = min(self.group or group, group)
        shape = (*form.values.shape[:-1], form.shape[1])
        integers = (*shape[:-1], groups, form.group) if is_grouped else shape
        scales = form.scales
        # The plugin makes float32 of scales, in memory that is not given back.
        is_half = is_grouped and not is_spent and form.minimums is None
        is_half &= scales.dtype == np.float16
        wide = "f16" if is_half else "f32"
        scales = scales if is_half else scales.astype(np.float32, copy=False)
        kind = _CODEBOOKS.get(form.codebook) or _INTEGERS[form.bits, form.is_signed]
        node = opset.convert(constant(form.values, integers, kind), wide)
        if form.minimums is not None:
            scales, zeros = _with_zeros(scales, _minimums(form))
            node = opset.subtract(node, opset.constant(zeros[..., None] if is_grouped else zeros))
            constant = self.of  # what is read of these again is not tried
        elif form.zeros is not None:
            zeros = self._zeros(form.zeros, form.bits, (*integers[:-1], 1))
            node = opset.subtract(node, opset.convert(zeros, wide))
        places = (*integers[:-1], 1) if is_grouped else scales.shape
        product = opset.multiply(node, constant(scales, places, TYPES[wide.upper()]))
        if is_grouped:
            product = opset.reshape(product, np.array(shape, np.int64), False)
        return opset.convert(product, "f32") if is_half else product

    def _zeros(self, zeros: Array, bits: int, shape: tuple[int, ...]) -> Node:
        """The integers that stand for 0; those of 4 bits two in a byte, if none is left."""
        flat = zeros.reshape(1, -1)
        if bits == 4 and flat.size % 2 == 0:
            return self.of(pack_nibbles(flat), shape, _INTEGERS[4, False])
        return self.of(flat, shape, _INTEGERS[8, False])

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


def in_pages(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Zeros in memory pages of their own."""
    size = prod(shape) * np.dtype(dtype).itemsize
    return np.ndarray(shape, dtype, mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def give_back(arrays: Iterable[Array]) -> None:
    """Free the memory of what `in_pages` gave; it is read as zeros from now on."""
    for array in arrays:
        assert isinstance(array.base, mmap.mmap)
        array.base.madvise(mmap.MADV_DONTNEED)


def trim() -> None:
    """Give back what the C library holds of memory that was freed; not every one can."""
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is not None:
        release(0)
