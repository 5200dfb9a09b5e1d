"""Decoding of GGUF's blocks to integers with a scale, and often a minimum, per group of inputs.

The integers are those of the file, without rounding; scales and minimums are float32, or float16
where the file has that. Knows no file and no runtime.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.checkpoint.gguf.blocks import Bytes, DecodedBlocks, float16, float32
from mindspore_serving.llm.checkpoint.gguf.grids import GRIDS
from mindspore_serving.llm.checkpoint.gguf.types import BY_NAME
from mindspore_serving.llm.checkpoint.packing import CHUNK, Packed, pack_nibbles

# Values of the sixteen codes of IQ4_NL and IQ4_XS.
CODEBOOK = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)


class BlockFormat(NamedTuple):
    """Decoded form of a type.

    `bits` of an integer, inputs that share a scale, dtype of the scale, the centre that makes
    integers signed if there are minimums (else 0), the function that decodes blocks, and the
    codebook of codes.
    """

    bits: int
    group: int
    scale: type[Any]
    centre: int
    decode: Callable[[Bytes], DecodedBlocks]
    codebook: str = ""


def decode(kind: str, rows: Bytes, inputs: int) -> Packed:
    """Decode the `rows` [outputs, bytes] of a tensor of type `kind`, each of `inputs` numbers."""
    fmt, outputs = FORMATS[kind], len(rows)
    groups, num_blocks = inputs // fmt.group, inputs // BY_NAME[kind].block
    dtype = np.int8 if fmt.bits == 8 else np.uint8
    values = np.empty((outputs, inputs * fmt.bits // 8), dtype)
    scales = np.empty((outputs, groups), fmt.scale)
    minimums = np.empty((outputs, groups), np.float32) if fmt.centre else None
    step = max(1, CHUNK // inputs)  # rows at a time, which limits intermediate arrays
    for begin in range(0, outputs, step):
        some = slice(begin, begin + step)
        blocks = fmt.decode(rows[some].reshape(-1, rows.shape[1] // num_blocks))
        integers = _signed(blocks.integers.reshape(-1, inputs), fmt.centre)
        values[some] = integers if fmt.bits == 8 else pack_nibbles(integers.view(np.uint8) & 15)
        scales[some] = blocks.scales.reshape(-1, groups)
        if minimums is not None and blocks.minimums is not None:
            minimums[some] = blocks.minimums.reshape(-1, groups)
    return Packed(
        values, scales, fmt.bits, (outputs, inputs), fmt.group, minimums, fmt.centre,
        codebook=fmt.codebook,
    )  # fmt: skip


def _nibbles(blocks: Bytes) -> Bytes:
    """Return the low nibbles of all bytes, and then the high ones."""
    return np.concatenate([blocks & 15, blocks >> 4], 1)


def _fields(blocks: Bytes, bits: int, width: int) -> Bytes:
    """Return fields of `bits`: of each `width` bytes the lowest fields, then the next ones."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    some: Bytes = blocks.reshape(len(blocks), -1, 1, width) >> shifts
    some &= (1 << bits) - 1
    return some.reshape(len(blocks), -1)


def _fifth_bits(blocks: Bytes) -> Bytes:
    """Return the 32 bits of 4 bytes, each as 0 or 16."""
    return np.unpackbits(blocks, axis=1, bitorder="little") << 4


def _signed(integers: Bytes, zero: int) -> npt.NDArray[np.int8]:
    """Subtract `zero` and return signed integers."""
    return integers.view(np.int8) - np.int8(zero) if zero else integers.view(np.int8)


def _q4_0(blocks: Bytes) -> DecodedBlocks:
    return DecodedBlocks(_signed(_nibbles(blocks[:, 2:]), 8), float16(blocks, 0))


def _q4_1(blocks: Bytes) -> DecodedBlocks:
    return DecodedBlocks(_nibbles(blocks[:, 4:]), float16(blocks, 0), float32(blocks, 2))


def _q5_0(blocks: Bytes) -> DecodedBlocks:
    integers = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return DecodedBlocks(_signed(integers, 16), float16(blocks, 0))


def _q5_1(blocks: Bytes) -> DecodedBlocks:
    integers = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return DecodedBlocks(integers, float16(blocks, 0), float32(blocks, 2))


def _q8_0(blocks: Bytes) -> DecodedBlocks:
    return DecodedBlocks(blocks[:, 2:].view(np.int8), float16(blocks, 0))


def _q2_k(blocks: Bytes) -> DecodedBlocks:
    shares, integers = blocks[:, :16], _fields(blocks[:, 16:80], 2, 32)
    return DecodedBlocks(
        integers, float32(blocks, 80) * (shares & 15), -float32(blocks, 82) * (shares >> 4)
    )


def _q3_k(blocks: Bytes) -> DecodedBlocks:
    high, low = _fields(blocks[:, :32], 1, 32), _fields(blocks[:, 32:96], 2, 32)
    shares = _fields(blocks[:, 96:104], 4, 8) | _fields(blocks[:, 104:108], 2, 4) << 4
    return DecodedBlocks(_signed(low | high << 2, 4), float32(blocks, 108) * _signed(shares, 32))


def _shares_k(blocks: Bytes) -> tuple[Bytes, Bytes]:
    """Return the 8 factors of the scale and of the minimum, of 6 bits each, packed in 12 bytes."""
    first, second, mixed = blocks[:, :4], blocks[:, 4:8], blocks[:, 8:12]
    scales = np.concatenate([first & 63, mixed & 15 | first >> 6 << 4], 1)
    return scales, np.concatenate([second & 63, mixed >> 4 | second >> 6 << 4], 1)


def _q4_k(blocks: Bytes) -> DecodedBlocks:
    scales, minimums = _shares_k(blocks[:, 4:16])
    integers = _fields(blocks[:, 16:], 4, 32)
    return DecodedBlocks(integers, float32(blocks, 0) * scales, -float32(blocks, 2) * minimums)


def _q5_k(blocks: Bytes) -> DecodedBlocks:
    scales, minimums = _shares_k(blocks[:, 4:16])
    integers = _fields(blocks[:, 48:], 4, 32) | _fields(blocks[:, 16:48], 1, 32) << 4
    return DecodedBlocks(integers, float32(blocks, 0) * scales, -float32(blocks, 2) * minimums)


def _q6_k(blocks: Bytes) -> DecodedBlocks:
    integers = _fields(blocks[:, :128], 4, 64) | _fields(blocks[:, 128:192], 2, 32) << 4
    shares = blocks[:, 192:208].view(np.int8)
    return DecodedBlocks(_signed(integers, 32), float32(blocks, 208) * shares)


def _iq4_nl(blocks: Bytes) -> DecodedBlocks:
    return DecodedBlocks(CODEBOOK[_nibbles(blocks[:, 2:])], float16(blocks, 0))


def _iq4_xs(blocks: Bytes) -> DecodedBlocks:
    high, low = _fields(blocks[:, 2:4], 2, 1), _fields(blocks[:, 4:8], 4, 1)
    integers = CODEBOOK[_fields(blocks[:, 8:], 4, 16)]
    return DecodedBlocks(integers, float32(blocks, 0) * _signed(low | high << 4, 32))


def _mxfp4(blocks: Bytes) -> DecodedBlocks:
    powers = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 127)
    return DecodedBlocks(_nibbles(blocks[:, 1:]), powers)


def _tq1_0(blocks: Bytes) -> DecodedBlocks:
    """Decode five numbers of a byte, which is their number in base 3, times 256 / 243."""
    parts = ((blocks[:, :32], 5), (blocks[:, 32:48], 5), (blocks[:, 48:52], 4))
    digits = [
        (part[:, None, :] * np.array([3**i for i in range(count)], np.uint8)[:, None]).reshape(
            len(blocks), -1
        )
        for part, count in parts
    ]
    integers = (np.concatenate(digits, 1).astype(np.uint16) * 3 >> 8).astype(np.uint8)
    return DecodedBlocks(_signed(integers, 1), float16(blocks, 52))


def _tq2_0(blocks: Bytes) -> DecodedBlocks:
    return DecodedBlocks(_signed(_fields(blocks[:, :64], 2, 32), 1), float16(blocks, 64))


_F16, _F32 = np.float16, np.float32
FORMATS: dict[str, BlockFormat] = {
    "Q4_0": BlockFormat(4, 32, _F16, 0, _q4_0),
    "Q4_1": BlockFormat(4, 32, _F16, 8, _q4_1),
    "Q5_0": BlockFormat(8, 32, _F16, 0, _q5_0),
    "Q5_1": BlockFormat(8, 32, _F16, 16, _q5_1),
    "Q8_0": BlockFormat(8, 32, _F16, 0, _q8_0),
    "Q2_K": BlockFormat(4, 16, _F32, 2, _q2_k),
    "Q3_K": BlockFormat(4, 16, _F32, 0, _q3_k),
    "Q4_K": BlockFormat(4, 32, _F32, 8, _q4_k),
    "Q5_K": BlockFormat(8, 32, _F32, 16, _q5_k),
    "Q6_K": BlockFormat(8, 16, _F32, 0, _q6_k),
    "IQ4_NL": BlockFormat(8, 32, _F16, 0, _iq4_nl),
    "IQ4_XS": BlockFormat(8, 32, _F32, 0, _iq4_xs),
    "MXFP4": BlockFormat(4, 32, _F32, 0, _mxfp4, "f4e2m1"),
    "TQ1_0": BlockFormat(4, 256, _F16, 0, _tq1_0),
    "TQ2_0": BlockFormat(4, 256, _F16, 0, _tq2_0),
    **{name: BlockFormat(8, row.group, _F32, 0, row.decode) for name, row in GRIDS.items()},
}
