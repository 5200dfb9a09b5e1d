"""Arrays in memory pages of their own, whose memory can be returned to the system in parts."""

import ctypes
import mmap
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

_MMAP_THRESHOLD = -3  # of mallopt(3)
Array: TypeAlias = npt.NDArray[Any]


def in_pages(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Allocate zeros in pages of their own, which take memory when they are first written."""
    size = prod(shape) * np.dtype(dtype).itemsize
    return np.ndarray(shape, dtype, mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def release_pages(arrays: Iterable[Array]) -> None:
    """Release the memory of arrays from `in_pages`; they are read as zeros from now on."""
    for array in arrays:
        _mapping(array).madvise(mmap.MADV_DONTNEED)


def release_rows(array: Array, rows: Iterable[int], num_rows: int | None = None) -> None:
    """Release the memory of `rows` of an array from `in_pages`, which may be read as zeros then.

    Rows are of the first dimension, or `num_rows` equal parts of the array.  Pages that other rows
    share stay.
    """
    mapping, row_bytes = _mapping(array), array.nbytes // (num_rows or len(array))
    for first, end in runs(rows):
        begin = -(-first * row_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        length = end * row_bytes // mmap.PAGESIZE * mmap.PAGESIZE - begin
        if length > 0:
            mapping.madvise(mmap.MADV_DONTNEED, begin, length)


def runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Iterate over (first, last + 1) of the runs of successive numbers in `numbers`."""
    first = end = -1
    for number in sorted(numbers):
        if number != end:
            if first >= 0:
                yield first, end
            first = number
        end = number + 1
    if first >= 0:
        yield first, end


def trim() -> None:
    """Return freed memory of the C library to the system, if it can."""
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is not None:
        release(0)


def map_large_allocations() -> None:
    """Let the C library take pages of their own for 256 KiB and more, which it returns when freed.

    It would learn from the first large ones to keep such memory for later, in pieces.
    """
    choose = getattr(ctypes.CDLL(None), "mallopt", None)
    if choose is not None:
        choose(_MMAP_THRESHOLD, 1 << 18)


def _mapping(array: Array) -> mmap.mmap:
    assert isinstance(array.base, mmap.mmap)
    return array.base
