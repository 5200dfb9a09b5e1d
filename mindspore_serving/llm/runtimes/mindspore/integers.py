"""Matrices of integers in the layouts of the device's kernels.

    weight only  int8 [inputs, outputs], or qint4x2, two outputs to a byte; scales and offsets
                 [outputs], or [groups, outputs]: `weight_quant_matmul`
    dynamic      int8 [outputs, inputs]; the inputs of each token are rounded by their largest:
                 `dynamic_quant`, `quant_matmul`
    static       int8 [outputs, inputs]; inputs are rounded as the checkpoint says, and its
                 quant_bias contains the bias: `quantise`, `quant_matmul`

What has no such form becomes floats: codebooks, minimums, groups that 32 does not divide, experts
and tables.  Not verified on hardware.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.checkpoint.packing import (
    Packed,
    is_router,
    merged,
    pack,
    pack_nibbles,
    unpack_nibbles,
)
from mindspore_serving.llm.checkpoint.quantized.parts import DYNAMIC, StaticInputs
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.runtimes.mindir.library import mindspore

Array = npt.NDArray[Any]
GROUPS_OF = 32  # inputs; the kernel takes multiples of it


class IntegerForm(NamedTuple):
    """Properties that matrices share which one product computes."""

    bits: int
    group: int = 0  # 0: a scale per output
    has_offset: bool = False
    order: bytes = b""  # of inputs, int64
    inputs: bytes = b""  # how they are rounded, b"" if they are not
    is_shifted: bool = False  # before they are rounded

    @property
    def is_dynamic(self) -> bool:
        return self.inputs == DYNAMIC.encode()

    @property
    def is_static(self) -> bool:
        return self.inputs not in (b"", DYNAMIC.encode())

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of the tensors of a matrix."""
        if self.is_dynamic:
            return ("weight", "scale")
        if self.is_static:
            return ("weight", "scale", "bias")
        return ("weight", "scale", *("offset",) * self.has_offset)

    @property
    def input_parts(self) -> tuple[str, ...]:
        """Return the names of the tensors by which inputs are changed."""
        if self.is_static:
            return ("steps", "zero", *("shift",) * self.is_shifted)
        return ("order",) * bool(self.order)


@dataclass(frozen=True, slots=True)
class Integers:
    """Integers of one matrix, or of several below each other."""

    form: IntegerForm
    packed: Packed | None  # None: static
    static: StaticInputs | None = None


def read_integers(checkpoint: Checkpoint, name: str, bits: int = 0) -> Integers | None:
    """Return the integers of a matrix if the device has a kernel for them.

    A matrix of floats is rounded to `bits`, if not 0, unless it is a router.
    """
    rounding = checkpoint.input_rounding(name)
    if isinstance(rounding, StaticInputs):
        is_shifted = rounding.shift is not None
        form = IntegerForm(8, inputs=rounding.key(), is_shifted=is_shifted)
        return Integers(form, None, rounding)
    packed = checkpoint.packed(name)
    if packed is None and bits and not checkpoint.is_quantized(name) and not is_router(name):
        packed = pack(checkpoint.f32(name), bits)
    if packed is None or packed.codebook or packed.minimums is not None:
        return None
    group = packed.group if packed.is_grouped else 0
    if group % GROUPS_OF or (packed.bits == 4 and packed.shape[0] % 2):
        return None
    order = b"" if packed.order is None else packed.order.astype(np.int64).tobytes()
    form = IntegerForm(packed.bits, group, not packed.is_signed or packed.centre != 0, order)
    if rounding == DYNAMIC and form == IntegerForm(8):
        form = form._replace(inputs=DYNAMIC.encode())
    return Integers(form, packed)


def weight_layout(packed: Packed) -> tuple[Array, Array, Array | None]:
    """Return the integers, scales and offsets of `weight_quant_matmul`.

    The integers are int8, [inputs, outputs], or with 4 bits [inputs, outputs / 2].
    """
    middle = 1 << (packed.bits - 1)
    offset: Array | None = None
    if packed.zeros is not None:
        offset = middle - packed.zeros.astype(np.float32)
    elif packed.centre:
        offset = np.full(packed.scales.shape, packed.centre, np.float32)
    values = packed.values
    if packed.bits == 4:
        nibbles = unpack_nibbles(values) ^ np.uint8(0 if packed.is_signed else middle)
        values = pack_nibbles(np.ascontiguousarray(nibbles.T)).view(np.int8)
    else:
        values = values if packed.is_signed else (values ^ np.uint8(middle)).view(np.int8)
        values = np.ascontiguousarray(values.T)
    return values, _by_group(packed.scales, packed), _by_group(offset, packed)


def _by_group(numbers: Any, packed: Packed) -> Any:
    """Return numbers [outputs, groups] as the kernel has them, [groups, outputs] or [outputs]."""
    if numbers is None:
        return None
    turned = numbers.astype(np.float32).T
    return np.ascontiguousarray(turned if packed.is_grouped else turned[0])


def joined(some: Sequence[Integers]) -> Integers:
    """Join matrices of one form, one below the other."""
    first = some[0]
    if first.static is not None:
        statics = [each.static for each in some if each.static is not None]
        arrays = {
            field: np.concatenate([getattr(each, field) for each in statics])
            for field in ("values", "deq_scale", "quant_bias")
        }
        return Integers(first.form, None, replace(first.static, **arrays))
    return replace(first, packed=merged([s.packed for s in some if s.packed], np.concatenate))


def tensors_of(integers: Integers, dtype: str, *, stored_as_nibbles: bool) -> dict[str, Any]:
    """Return the tensors of a product by the names of `parts`.

    `dtype` is that of the inputs and results.
    """
    packed = integers.packed
    if integers.static is not None:
        scale = integers.static.deq_scale
        # For float16 results the kernel takes the bits of float32.
        bits = scale.view(np.int32).astype(np.int64) if dtype == "float16" else scale
        return {
            "weight": _tensor(integers.static.values),
            "scale": _tensor(bits),
            "bias": _tensor(integers.static.quant_bias),
        }
    assert packed is not None
    if integers.form.is_dynamic:
        # The kernel takes no scales in float16.
        wide = mindspore.bfloat16 if dtype == "bfloat16" else mindspore.float32
        scale = _tensor(packed.scales[:, 0].astype(np.float32)).astype(wide)
        return {"weight": _tensor(packed.values), "scale": scale}
    element_type = getattr(mindspore, dtype)
    values, scale, offset = weight_layout(packed)
    is_int4 = integers.form.bits == 4 and stored_as_nibbles
    weight = mindspore.Tensor(values, dtype=mindspore.qint4x2) if is_int4 else _tensor(values)
    tensors = {"weight": weight, "scale": _tensor(scale).astype(element_type)}
    if offset is not None:
        tensors["offset"] = _tensor(offset).astype(element_type)
    return tensors


def input_tensors(form: IntegerForm, static: StaticInputs | None, dtype: str) -> dict[str, Any]:
    """Return the tensors by which inputs are changed, by the names of `input_parts`.

    The kernel that rounds divides by the steps where zeros are int8, and multiplies by their
    inverse where they have the inputs' dtype.
    """
    if static is None:
        return {"order": _tensor(np.frombuffer(form.order, np.int64).astype(np.int32))}
    element_type = getattr(mindspore, dtype)
    zero, divides = _tensor(static.offset), static.offset.dtype == np.int8
    tensors = {
        "steps": _tensor(static.scale if divides else 1 / static.scale).astype(element_type),
        "zero": zero if divides else zero.astype(element_type),
    }
    if static.shift is not None:
        tensors["shift"] = _tensor(static.shift).astype(element_type)
    return tensors


def _tensor(array: Any) -> Any:
    return mindspore.Tensor.from_numpy(np.ascontiguousarray(array))
