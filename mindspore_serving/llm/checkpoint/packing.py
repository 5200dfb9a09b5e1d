"""Storage of quantised weights: integers with a scale per group of inputs.

`llm.quantize` writes float16 scales:

    int8   int8 [out, in],                          float16 scales [out, 1]
    int4   uint8 [out, in / 2], low nibble first,   float16 scales [out, in / group]

int4 may be asymmetric: unsigned, with zeros, uint8 [out, in / group]. A stored tensor `name` holds
the integers, `name`.scale the scales, `name`.zero the zeros; bits and group follow from dtypes and
shapes. Plain arithmetic on arrays; knows no file and no runtime.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.codebooks import CODEBOOKS
from mindspore_serving.llm.checkpoint.rounding import round_4, round_8

GROUP = 128  # inputs that share an int4 scale, if it divides the number of inputs
SMALLEST_GROUP = 32
CHUNK = 2**17  # weights that are processed at a time: intermediate arrays stay in a core's cache
ROUTERS = (
    *("mlp.gate.weight", "block_sparse_moe.gate.weight", "router.weight", "router.layer.weight"),
    "router.proj.weight",
    "shared_expert_gate.weight",
)


@dataclass(frozen=True, slots=True)
class Packed:
    """A quantised matrix.  `shape` and `group` count inputs, not bytes.

    A weight is (integer + `centre` - zero) * scale + minimum, and a code of a `codebook` is looked
    up first. Integers are signed, but unsigned with `zeros` or a `codebook`. `centre` makes the
    integers of formats with `minimums` symmetric about 0.
    """

    values: npt.NDArray[Any]  # int8 or uint8 [out, in], or uint8 [out, in / 2]
    scales: npt.NDArray[Any]  # float16 or float32 [out, in / group]
    bits: int
    shape: tuple[int, int]
    group: int
    minimums: npt.NDArray[np.float32] | None = None  # as scales
    centre: int = 0
    zeros: npt.NDArray[np.uint8] | None = None  # [out, in / group]
    codebook: str = ""  # a key of CODEBOOKS, if integers are codes
    order: npt.NDArray[np.int64] | None = None  # [in]: the input of each column

    @property
    def is_signed(self) -> bool:
        """True if the integers are signed."""
        return self.zeros is None and not self.codebook

    @property
    def is_plain(self) -> bool:
        """True if the integers are no codes, and in the order of the inputs."""
        return self.order is None and not self.codebook

    @property
    def is_grouped(self) -> bool:
        """True if an output has several scales."""
        return self.group < self.shape[1]

    def rows(self, some: slice | npt.NDArray[np.intp]) -> "Packed":
        """Return some of the outputs, in the order of their indices."""
        values = self.values[some]
        return replace(
            self,
            values=values,
            scales=self.scales[some],
            shape=(len(values), self.shape[1]),
            minimums=None if self.minimums is None else self.minimums[some],
            zeros=None if self.zeros is None else self.zeros[some],
        )


def is_packed(dtype: str) -> bool:
    """Return whether a stored dtype means integers of `llm.quantize`: other weights are floats."""
    return dtype in ("I8", "U8")


def packed_tensor(
    name: str,
    values: npt.NDArray[Any],
    scales: npt.NDArray[np.float16],
    zeros: npt.NDArray[np.uint8] | None = None,
) -> Packed:
    """Build a matrix; raise StartError naming the tensor if its parts do not fit each other."""
    bits = 8 if values.dtype == np.int8 else 4
    outputs, width = values.shape if values.ndim == 2 else (0, 0)
    inputs = width * (8 // bits)
    groups = scales.shape[1] if scales.ndim == 2 and scales.shape[0] == outputs else 0
    if not groups or inputs % groups:
        raise StartError(
            f"tensor {name!r} is {list(values.shape)} of {values.dtype} with scales "
            f"{list(scales.shape)}, expected [out, in] with [out, groups]"
        )
    if zeros is not None and (zeros.shape != scales.shape or bits == 8):
        raise StartError(
            f"tensor {name!r} is {bits} bit with scales {list(scales.shape)} and zeros "
            f"{list(zeros.shape)}, expected 4 bit, and zeros as scales"
        )
    return Packed(values, scales, bits, (outputs, inputs), inputs // groups, zeros=zeros)


def is_router(name: str) -> bool:
    """Return whether a matrix is a router: it is small, and rounding would change its choices."""
    return name.endswith(ROUTERS)


def packed_form(inputs: int, bits: int, group: int = GROUP) -> tuple[int, int]:
    """Return (bits, group) for a matrix with `inputs` inputs, if `bits` are requested.

    int4 falls back to a smaller group, and then to int8, if `group` does not divide the inputs.
    """
    while group >= SMALLEST_GROUP and inputs % group:
        group //= 2
    return (4, group) if bits == 4 and group >= SMALLEST_GROUP else (8, inputs)


def pack(
    weight: npt.NDArray[np.float32],
    bits: int,
    group: int = GROUP,
    *,
    has_zeros: bool = False,
) -> Packed:
    """Round a matrix [out, in] to 8 or 4 bits, with the group of `packed_form`.

    int4 may have zeros.
    """
    outputs, inputs = weight.shape
    bits, group = packed_form(inputs, bits, group)
    groups = inputs // group
    values = np.empty((outputs, inputs * bits // 8), np.int8 if bits == 8 else np.uint8)
    scales = np.empty((outputs, groups), np.float16)
    zeros = np.empty((outputs, groups), np.uint8) if has_zeros and bits == 4 else None
    rows = max(1, CHUNK // inputs)  # limits intermediate arrays
    for begin in range(0, outputs, rows):
        some = slice(begin, begin + rows)
        grouped = weight[some].reshape(-1, groups, group)
        if bits == 8:
            integers, scales[some] = round_8(grouped)
            values[some] = integers.reshape(-1, inputs)
            continue
        integers, scales[some], group_zeros = round_4(grouped, has_zeros=has_zeros)
        values[some] = pack_nibbles(integers.reshape(-1, inputs))
        if zeros is not None:
            zeros[some] = group_zeros
    return Packed(values, scales, bits, (outputs, inputs), group, zeros=zeros)


def merged(some: Sequence[Packed], merge: Callable[[Sequence[Any]], Any]) -> Packed:
    """Merge matrices of one form by np.stack or np.concatenate of their arrays.

    The shape is that of the first one, with as many outputs as there are rows of values.
    """
    first, arrays = some[0], dict[str, Any]()
    for name in ("values", "scales", "minimums", "zeros"):
        if getattr(first, name) is not None:
            arrays[name] = merge([getattr(packed, name) for packed in some])
    return replace(first, **arrays, shape=(len(arrays["values"]), first.shape[1]))


def requantize_8(packed: Packed, group: int) -> Packed:
    """Convert to int8 with a scale per `group` inputs, a multiple of the present group.

    The result has no zeros or minimums. Rounding again adds an error of at most 1/254 of the
    largest weight of a group.
    """
    outputs, inputs = packed.shape
    values = np.empty((outputs, inputs), np.int8)
    scales = np.empty((outputs, inputs // group), np.float32)
    rows = max(1, CHUNK // inputs)
    for begin in range(0, outputs, rows):
        some = slice(begin, begin + rows)
        grouped = unpack(packed.rows(some)).reshape(-1, inputs // group, group)
        integers, scales[some] = round_8(grouped)
        values[some] = integers.reshape(-1, inputs)
    return Packed(values, scales, 8, packed.shape, group)


def integers_of_codes(packed: Packed) -> Packed:
    """Return codes of f4e2m1 as int8, exactly: twice their values, with half the scales."""
    doubled = (2 * CODEBOOKS["f4e2m1"]).astype(np.int8)
    values, scales = doubled[unpack_nibbles(packed.values)], packed.scales * np.float32(0.5)
    return replace(packed, values=values, scales=scales, bits=8, codebook="")


def pack_nibbles(integers: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Pack integers under 16 [rows, in] into bytes [rows, in / 2], low nibble first."""
    high: npt.NDArray[np.uint8] = np.left_shift(integers[:, 1::2], 4, dtype=np.uint8)
    return integers[:, 0::2] | high


def unpack_nibbles(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Undo `pack_nibbles`."""
    nibbles: npt.NDArray[np.uint8] = np.stack([values & 15, values >> 4], -1)
    return nibbles.reshape(len(values), -1)


def unpack(packed: Packed) -> npt.NDArray[np.float32]:
    """Decode to float32 [out, in]."""
    outputs, inputs = packed.shape
    values = packed.values
    if packed.bits == 4:
        values = unpack_nibbles(values)
        if packed.is_signed:
            values = (values ^ 8).astype(np.int8) - np.int8(8)  # sign-extend bit 3
    if packed.codebook:
        values = CODEBOOKS[packed.codebook][values]
    grouped = values.reshape(outputs, inputs // packed.group, packed.group).astype(np.float32)
    if packed.zeros is not None:
        grouped -= packed.zeros[..., None]
    if packed.centre:
        grouped += packed.centre
    grouped *= packed.scales.astype(np.float32)[..., None]
    if packed.minimums is not None:
        grouped += packed.minimums[..., None]
    matrix = grouped.reshape(outputs, inputs)
    if packed.order is None:
        return matrix
    result = np.empty_like(matrix)
    result[:, packed.order] = matrix
    return result
