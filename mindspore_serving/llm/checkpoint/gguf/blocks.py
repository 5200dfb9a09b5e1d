"""Decoded blocks of GGUF, and the numbers that all types store alike."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[Any]  # uint8
Floats: TypeAlias = npt.NDArray[Any]


class DecodedBlocks(NamedTuple):
    """Blocks [n, bytes] as integers [n, numbers], and scales and minimums [n, groups]."""

    integers: npt.NDArray[Any]  # int8; with minimums uint8, before the centre is subtracted
    scales: Floats
    minimums: Floats | None = None


def float16(blocks: Bytes, at: int) -> Floats:
    """Return the float16 at byte `at` of each block, [n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)


def float32(blocks: Bytes, at: int) -> npt.NDArray[np.float32]:
    """Return the float16 at byte `at` of each block as float32, [n, 1]."""
    return float16(blocks, at).astype(np.float32)
