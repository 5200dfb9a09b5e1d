"""Arrays whose memory is returned in parts."""

import mmap
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mindspore_serving.llm.runtimes.pages import in_pages, release_rows, runs

PAGE = mmap.PAGESIZE


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([], []),
        ([3], [(3, 4)]),
        ([2, 1, 0], [(0, 3)]),
        ([0, 1, 5, 7, 6], [(0, 2), (5, 8)]),
    ],
)
def test_runs_of_successive_numbers(numbers: list[int], expected: list[tuple[int, int]]) -> None:
    assert list(runs(numbers)) == expected


def test_released_rows_are_zeros_and_return_their_memory() -> None:
    array = in_pages((64, 1 << 20), np.uint8)
    array[...] = 7
    before = resident()
    release_rows(array, [*range(10, 50), 60])
    assert before - resident() > 38 << 20
    assert not array[10:50].any()
    assert not array[60].any()
    assert (array[[0, 9, 50, 59, 61, 63]] == 7).all()


def test_pages_that_other_rows_share_stay() -> None:
    """Rows of 1.5 pages: rows 1 and 2 are the pages 1.5 to 4.5, of which 2 and 3 are whole."""
    array = in_pages((4, PAGE * 3 // 2), np.uint8)
    array[...] = 7
    release_rows(array, [1, 2])
    flat = array.reshape(-1, PAGE // 2)
    assert [bool(half.any()) for half in flat] == [True] * 4 + [False] * 4 + [True] * 4
    release_rows(array, [3])  # its first half page is shared with row 2
    assert [bool(half.any()) for half in flat[8:]] == [True, True, False, False]


def test_rows_may_be_parts_of_a_first_dimension() -> None:
    array = in_pages((2, 3, PAGE), np.uint8)
    array[...] = 7
    release_rows(array, [2, 3], 6)
    assert array.any(2).tolist() == [[True, True, False], [False, True, True]]


def test_a_cache_of_torch_takes_memory_when_blocks_are_written() -> None:
    torch = pytest.importorskip("torch")
    from mindspore_serving.llm.runtimes.torch.attention import TorchCache

    before = resident()
    cache = TorchCache((1000, 32), {0: (8, 64), 1: (8, 64)}, dtype=torch.bfloat16, device="cpu")
    size = sum(stored.nbytes for pair in cache.layers.values() for stored in pair)
    assert size > 100 << 20
    assert resident() - before < size // 10
    for keys, values in cache.layers.values():
        keys.fill_(1)
        values.fill_(1)
    assert resident() - before > size * 0.9
    cache.release(range(1, 1000))
    assert resident() - before < size // 10
    assert cache.layers[1][0][0].eq(1).all()
    assert cache.layers[1][0][1].eq(0).all()


LARGE = """
import ctypes
from mindspore_serving.llm.runtimes.pages import map_large_allocations

class Numbers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

library = ctypes.CDLL(None)
library.mallinfo2.restype = Numbers
if {maps}:
    map_large_allocations()
bytearray(16 << 20)  # freed: from now on the library keeps blocks of that size
before = library.mallinfo2().d
kept = [bytearray(1 << 20) for _ in range(4)]
print(library.mallinfo2().d - before)  # blocks in pages of their own
"""


@pytest.mark.parametrize(("maps", "expected"), [(True, "4"), (False, "0")])
def test_large_blocks_of_the_library_have_pages_of_their_own(maps: bool, expected: str) -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("the C library is another one than glibc")
    command = [sys.executable, "-c", LARGE.format(maps=maps)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.strip() == expected
