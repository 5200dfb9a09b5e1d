"""Keys and values of the native runtime, in pages whose memory can be returned to the system.

A layer's keys, and its values, are [num_blocks, kv_heads, block_size, bytes of a row].
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.runtimes.layout import Indices
from mindspore_serving.llm.runtimes.native.attention import HEAD_BYTES
from mindspore_serving.llm.runtimes.native.codes import CacheType
from mindspore_serving.llm.runtimes.native.ops import PlannedLayer
from mindspore_serving.llm.runtimes.pages import in_pages, release_rows

_ITEM_BYTES = {CacheType.F32: 4, CacheType.F16: 2, CacheType.BF16: 2, CacheType.U8: 1}


def row_bytes(kind: CacheType, head_dim: int) -> int:
    """Return the bytes of the keys, or of the values, of one head and token."""
    size = head_dim * _ITEM_BYTES[kind]
    return size + HEAD_BYTES if kind is CacheType.U8 else size


class PagedCache:
    """Keys and values of all layers."""

    def __init__(
        self, layers: Sequence[PlannedLayer], kind: CacheType, block_size: int, num_blocks: int
    ) -> None:
        self.arrays: dict[str, npt.NDArray[np.uint8]] = {}  # keys and values, by OpenVINO's names
        rows = []
        for layer in layers:
            width = -(-row_bytes(kind, layer.head_dim) // 4) * 4  # rows of integers begin aligned
            shape = (num_blocks, layer.num_heads, block_size, width)
            pair = [in_pages(shape, np.uint8) for _ in range(2)]
            names = (f"{name}_cache.{layer.layer}" for name in ("key", "value"))
            self.arrays.update(zip(names, pair, strict=True))
            addresses = (array.ctypes.data for array in pair)
            rows.append((*addresses, kind, block_size, layer.num_heads, layer.head_dim, width))
        self.table = np.array(rows, np.int64).reshape(len(rows), 7)
        self.block_bytes = sum(array.nbytes for array in self.arrays.values()) // num_blocks

    def copy(self, source: Indices, target: Indices) -> None:
        """Copy blocks `source` to `target`; all are read before any is written."""
        for array in self.arrays.values():
            array[target] = array[source]

    def read(self, block: int) -> memoryview:
        parts = [array[block].reshape(-1) for array in self.arrays.values()]
        return memoryview(np.concatenate(parts))

    def replace(self, block: int, content: memoryview) -> None:
        begin = 0
        for array in self.arrays.values():
            end = begin + array[block].nbytes
            array[block].reshape(-1)[:] = content[begin:end]
            begin = end

    def release(self, blocks: Sequence[int]) -> None:
        for array in self.arrays.values():
            release_rows(array, blocks)

    def clear(self) -> None:
        self.arrays.clear()
