"""Decoding of the types IQ1, IQ2 and IQ3: codes of a table, with signs and scales.

A code stands for 8 numbers, or of IQ3 for 4.  The tables are those of ggml, in grids.npz, which
scripts/gguf-grids writes.  Knows no file of a model and no runtime.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.checkpoint.gguf.blocks import Bytes, DecodedBlocks, float32

_BITS = np.arange(8, dtype=np.uint8)
_BYTES = np.arange(256, dtype=np.uint8)
# Signs of 8 numbers by a byte, and by 7 bits: the eighth makes the number of minus signs even.
_SIGNS = (1 - 2 * (_BYTES[:, None] >> _BITS & 1)).astype(np.int8)
_PARITY = np.bitwise_xor.reduce(_BYTES[:128, None] >> _BITS & 1, 1)
_EVEN_SIGNS = _SIGNS[_BYTES[:128] | _PARITY << 7]
_SEVENS = np.array([0, 7, 14, 21], np.uint32)
_THREES = np.array([0, 3, 6, 9], np.uint16)


class GridFormat(NamedTuple):
    """A type: inputs that share a scale, and the function that decodes blocks."""

    group: int
    decode: Callable[[Bytes], DecodedBlocks]


@cache
def grid(name: str) -> npt.NDArray[np.int8]:
    """Return the table of a type, [codes, numbers of a code]."""
    with np.load(Path(__file__).with_name("grids.npz"), allow_pickle=False) as tables:
        table: npt.NDArray[np.int8] = tables[name]
    return table


def _view(blocks: Bytes, begin: int, end: int, dtype: type[Any]) -> npt.NDArray[Any]:
    numbers: npt.NDArray[Any] = np.ascontiguousarray(blocks[:, begin:end]).view(dtype)
    return numbers


def _halves(shares: Bytes) -> Bytes:
    """Return the low and the high nibble of each byte, one after the other."""
    both: Bytes = np.stack([shares & 15, shares >> 4], -1)
    return both.reshape(len(shares), -1)


def _decoded(values: npt.NDArray[Any], scales: npt.NDArray[Any]) -> DecodedBlocks:
    return DecodedBlocks(values.reshape(len(values), -1), scales)


def _iq2_xxs(blocks: Bytes) -> DecodedBlocks:
    words = _view(blocks, 2, 66, np.uint32)[:, 1::2]
    codes = blocks[:, 2:].reshape(len(blocks), 8, 8)[:, :, :4]
    signs = _EVEN_SIGNS[words[..., None] >> _SEVENS & 127]
    scales = float32(blocks, 0) * (np.float32(0.5) + (words >> 28)) * np.float32(0.25)
    return _decoded(grid("IQ2_XXS")[codes] * signs, scales.astype(np.float32))


def _iq2_xs(blocks: Bytes) -> DecodedBlocks:
    codes = _view(blocks, 2, 66, np.uint16)
    values = grid("IQ2_XS")[codes & 511] * _EVEN_SIGNS[codes >> 9]
    return _decoded(values, _iq2_scales(blocks, 66))


def _iq2_s(blocks: Bytes) -> DecodedBlocks:
    high = (blocks[:, 66:74, None] >> _BITS[::2] & 3).reshape(len(blocks), -1)
    codes = blocks[:, 2:34] | high.astype(np.uint16) << 8
    return _decoded(grid("IQ2_S")[codes] * _SIGNS[blocks[:, 34:66]], _iq2_scales(blocks, 74))


def _iq2_scales(blocks: Bytes, at: int) -> npt.NDArray[np.float32]:
    shares = _halves(blocks[:, at : at + 8])
    return float32(blocks, 0) * (np.float32(0.5) + shares) * np.float32(0.25)


def _iq3_xxs(blocks: Bytes) -> DecodedBlocks:
    words = _view(blocks, 66, 98, np.uint32)
    signs = _EVEN_SIGNS[words[..., None] >> _SEVENS & 127].reshape(len(blocks), 64, 4)
    scales = float32(blocks, 0) * (np.float32(0.5) + (words >> 28)) * np.float32(0.5)
    return _decoded(grid("IQ3_XXS")[blocks[:, 2:66]] * signs, scales.astype(np.float32))


def _iq3_s(blocks: Bytes) -> DecodedBlocks:
    high = np.unpackbits(np.ascontiguousarray(blocks[:, 66:74]), axis=1, bitorder="little")
    codes = blocks[:, 2:66] | high.astype(np.uint16) << 8
    signs = _SIGNS[blocks[:, 74:106]].reshape(len(blocks), 64, 4)
    scales = float32(blocks, 0) * (1 + 2 * _halves(blocks[:, 106:110]))
    return _decoded(grid("IQ3_S")[codes] * signs, scales)


def _iq1(codes: npt.NDArray[Any], is_below: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    """Return 8 times the numbers of codes, which are an eighth above, or below, -1, 0 and 1."""
    shift = np.where(is_below, np.int8(-1), np.int8(1))
    values: npt.NDArray[np.int8] = grid("IQ1")[codes] * np.int8(8) + shift[..., None]
    return values


def _iq1_s(blocks: Bytes) -> DecodedBlocks:
    words = _view(blocks, 34, 50, np.uint16)
    high = (words[..., None] >> _THREES & 7).reshape(len(blocks), -1)
    values = _iq1(blocks[:, 2:34] | high << 8, np.repeat(words >> 15, 4, 1))
    scales = float32(blocks, 0) * (2 * (words >> 12 & 7) + 1) / np.float32(8)
    return _decoded(values, scales.astype(np.float32))


def _iq1_m(blocks: Bytes) -> DecodedBlocks:
    words = _view(blocks, 48, 56, np.uint16)
    high = _halves(blocks[:, 32:48])
    values = _iq1(blocks[:, :32] | (high & 7).astype(np.uint16) << 8, high >> 3)
    half = np.bitwise_or.reduce(words >> 12 << np.array([0, 4, 8, 12], np.uint16), 1)
    shares = (words[..., None] >> _THREES & 7).reshape(len(blocks), -1)
    scale = half.view(np.float16).astype(np.float32)[:, None]
    return _decoded(values, (scale * (2 * shares + 1) / np.float32(8)).astype(np.float32))


GRIDS: dict[str, GridFormat] = {
    "IQ2_XXS": GridFormat(32, _iq2_xxs),
    "IQ2_XS": GridFormat(16, _iq2_xs),
    "IQ2_S": GridFormat(16, _iq2_s),
    "IQ3_XXS": GridFormat(32, _iq3_xxs),
    "IQ3_S": GridFormat(32, _iq3_s),
    "IQ1_S": GridFormat(32, _iq1_s),
    "IQ1_M": GridFormat(16, _iq1_m),
}
