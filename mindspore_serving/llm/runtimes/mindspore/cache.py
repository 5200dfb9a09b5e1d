"""Keys and values of a MindSpore runtime, on its device.

On a CPU they are pages of numpy arrays that the tensors share, so that blocks are copied in place
and their memory can be returned to the system.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mindspore_serving.llm.runtimes.layout import Indices
from mindspore_serving.llm.runtimes.mindir.library import CPU, in_fractal_format, mindspore, mint
from mindspore_serving.llm.runtimes.mindspore.cell import CacheShape
from mindspore_serving.llm.runtimes.pages import in_pages, release_rows


class DeviceCache:
    """Caches of all layers, [num_blocks, block_size, kv_heads, head_dim] each.

    Of latent attention `keys` are latent vectors and `values` their rotated parts.
    Both are the graphs' inputs.
    """

    def __init__(
        self, num_blocks: int, shapes: Sequence[CacheShape], target: str, dtype: Any
    ) -> None:
        """Allocate it; a device has flat caches in its format of tiles."""
        self._arrays: list[Any] = []
        sizes = [(num_blocks, *each.sizes[part]) for part in range(2) for each in shapes]
        if target == CPU:
            kind = mindspore.dtype_to_nptype(dtype)
            self._arrays = [in_pages(size, kind) for size in sizes]
            tensors = [mindspore.Tensor.from_numpy(array) for array in self._arrays]
        else:
            tensors = [mint.zeros(size, dtype=dtype) for size in sizes]
            if any(each.is_flat for each in shapes):
                tensors = [in_fractal_format(each) for each in tensors]
        self.keys = mindspore.mutable(tensors[: len(shapes)])
        self.values = mindspore.mutable(tensors[len(shapes) :])

    def copy(self, source: Indices, target: Indices) -> None:
        """Copy blocks `source` to `target`; all are read before any is written."""
        if self._arrays:
            for array in self._arrays:
                array[target] = array[source]
            return
        read, written = (mindspore.Tensor(each.astype(np.int32)) for each in (source, target))
        for cache in (*self.keys, *self.values):
            cache[written] = cache[read]

    def release(self, blocks: Sequence[int]) -> None:
        """Return the memory of `blocks` to the system; a device keeps its memory."""
        for array in self._arrays:
            release_rows(array, blocks)

    def clear(self) -> None:
        self.keys = self.values = []
        self._arrays.clear()
