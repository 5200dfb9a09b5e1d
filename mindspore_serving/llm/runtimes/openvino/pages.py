"""Arrays whose memory can be given back while native code still refers to it."""

import ctypes
import mmap
from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


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
