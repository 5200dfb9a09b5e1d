"""Arrays as constants of an OpenVINO graph, and the release of their memory after packing.

Native code still refers to released memory, but does not read it.  Integers times scales are in the
pattern by which the plugin multiplies.  Knows no checkpoint.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Constant

from mindspore_serving.llm.checkpoint.packing import Packed, pack_nibbles
from mindspore_serving.llm.runtimes.openvino.nodes import name_of
from mindspore_serving.llm.runtimes.pages import in_pages

Node: TypeAlias = Any  # of OpenVINO
Array: TypeAlias = npt.NDArray[Any]

INT8_GROUP = 128  # group of activations, free to choose if int8 weights have one scale per output
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
    "f8e4m3": ov.Type.f8e4m3,  # the plugin converts them to floats when it packs them
    "f8e5m2": ov.Type.f8e5m2,
}


class MatrixForm(NamedTuple):
    """Storage of a matrix: type, group size, and whether it has zero points.

    `kind` is a float type of TYPES or `int8` and so on; `group` is the number of inputs that share
    a scale, 0 for all inputs of an output.
    """

    kind: str
    group: int = 0
    has_zeros: bool = False

    @classmethod
    def of(cls, packed: Packed) -> "MatrixForm":
        group = packed.group if packed.is_grouped else 0
        return cls(f"int{packed.bits}", group, packed.zeros is not None)


class Constants:
    """Constants of one graph, and their arrays."""

    def __init__(self) -> None:
        self.group = 0  # smallest group of inputs that shares a scale; 0 without quantised matrices
        self.is_grouped = False  # a quantised matrix has more than one scale per output
        self.kept: list[Array] = []
        # Matrices and their scales, of `kept`, in separate memory pages, by the names of their
        # nodes; without those from which rows are gathered.
        self.releasable: dict[str, Array] = {}
        self.minimums: dict[str, Array] = {}  # as `releasable`: what is added to their products
        self.forms: set[MatrixForm] = set()  # storage of `releasable`
        self.to_release: list[Array] = []  # of `kept`: arrays that are not read after packing
        self.release_order: list[tuple[str, list[Array]]] = []  # see `packing_order`

    def of(self, bits: Array, shape: tuple[int, ...], kind: Any) -> Node:
        """Return a constant that reads `bits` in place."""
        bits = np.ascontiguousarray(bits)
        self.kept.append(bits)
        return Constant(ov.Tensor(bits, ov.Shape(list(shape)), kind), shared_memory=True)

    def releasable_floats(self, bits: Array, dtype: str) -> Node:
        """Return a matrix [out, in] of a type of TYPES, in memory that can be released."""
        self.forms.add(MatrixForm(dtype))
        return self._releasable(bits, bits.shape, TYPES[dtype])

    def minimum(self, packed: Packed) -> Node:
        """Return the minimums of a matrix's groups, [out, groups] float32, in releasable memory."""
        minimums = _minimums(packed)
        return self._releasable(minimums, minimums.shape, ov.Type.f32, self.minimums)

    def scaled(self, packed: Packed, *, is_releasable: bool = False) -> Node:
        """Return integers times scales in the pattern by which the plugin multiplies.

            groups per output    integers               scales and zero points
            one                  [out, in]              [out, 1]
            more                 [out, groups, group]   [out, groups, 1], then as [out, in]

        The arrays of `packed` may be stacks of several matrices, with one more axis in front.  With
        `is_releasable` they are not read after packing.  A matrix with minimums subtracts float
        zero points.
        """
        if is_releasable:
            self.forms.add(MatrixForm.of(packed))
        constant = self._releasable if is_releasable else self.of
        groups = packed.shape[1] // packed.group
        is_grouped = groups > 1
        self.is_grouped |= is_grouped
        # With a group over the number of inputs the plugin computes joined matrices wrongly.
        group = packed.group if is_grouped else min(INT8_GROUP, packed.shape[1])
        self.group = min(self.group or group, group)
        shape = (*packed.values.shape[:-1], packed.shape[1])
        integers = (*shape[:-1], groups, packed.group) if is_grouped else shape
        scales = packed.scales
        # The plugin converts scales to float32, in memory that is not released.
        is_half = is_grouped and not is_releasable and packed.minimums is None
        is_half &= scales.dtype == np.float16
        wide = "f16" if is_half else "f32"
        scales = scales if is_half else scales.astype(np.float32, copy=False)
        kind = _CODEBOOKS.get(packed.codebook) or _INTEGERS[packed.bits, packed.is_signed]
        node = opset.convert(constant(packed.values, integers, kind), wide)
        if packed.minimums is not None:
            scales, zeros = _with_zeros(scales, _minimums(packed))
            node = opset.subtract(node, opset.constant(zeros[..., None] if is_grouped else zeros))
            constant = self.of  # not known to be read only once, so not releasable
        elif packed.zeros is not None:
            zeros = self._zeros(packed.zeros, packed.bits, (*integers[:-1], 1))
            node = opset.subtract(node, opset.convert(zeros, wide))
        scales_shape = (*integers[:-1], 1) if is_grouped else scales.shape
        product = opset.multiply(node, constant(scales, scales_shape, TYPES[wide.upper()]))
        if is_grouped:
            product = opset.reshape(product, np.array(shape, np.int64), False)
        return opset.convert(product, "f32") if is_half else product

    def _zeros(self, zeros: Array, bits: int, shape: tuple[int, ...]) -> Node:
        """Return the zero points; those of 4 bits are two in a byte if their number is even."""
        flat = zeros.reshape(1, -1)
        if bits == 4 and flat.size % 2 == 0:
            return self.of(pack_nibbles(flat), shape, _INTEGERS[4, False])
        return self.of(flat, shape, _INTEGERS[8, False])

    def _releasable(
        self, bits: Array, shape: tuple[int, ...], kind: Any, target: dict[str, Array] | None = None
    ) -> Node:
        """Return a constant as `of` does, of a copy that can be released after packing."""
        copy = in_pages(bits.shape, bits.dtype)
        copy[...] = bits
        node = self.of(copy, shape, kind)
        arrays = self.releasable if target is None else target
        arrays[name_of(node)] = copy
        return node


def _minimums(packed: Packed) -> Array:
    """Return what is added to integers times scales, [out, groups] float32."""
    assert packed.minimums is not None
    minimums: Array = packed.minimums + packed.centre * packed.scales.astype(np.float32)
    return minimums


def _with_zeros(scales: Array, minimums: Array) -> tuple[Array, Array]:
    """Rewrite scale * integer + minimum as scale * (integer - zero), all float32."""
    wide = scales.astype(np.float32)
    flat = (wide == 0) & (minimums != 0)  # a group of one value, whatever its integers are
    wide[flat] = np.abs(minimums[flat]) * np.float32(2.0**-30)
    return wide, np.divide(-minimums, wide, out=np.zeros_like(wide), where=wide != 0)
