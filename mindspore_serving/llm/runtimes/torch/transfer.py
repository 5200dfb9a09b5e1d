"""Between main memory and the device: a step's indices there in one transfer, its logits back.

On CUDA both go through pinned memory, so that neither waits for anything but the step itself.
"""

from collections.abc import Sequence

import torch

from mindspore_serving.llm.runtimes.layout import Indices
from mindspore_serving.llm.step import Logits

ALIGNED = 2  # int64 numbers in 16 bytes: a kernel is compiled anew for pointers less aligned


def upload(arrays: Sequence[Indices], device: str) -> list[torch.Tensor]:
    """`arrays` on the device, int64, in order; views of one tensor."""
    sizes = [-(-array.size // ALIGNED) * ALIGNED for array in arrays]
    host = torch.empty(sum(sizes), dtype=torch.int64, pin_memory=device != "cpu")
    flat = host.numpy()
    begin = 0
    for array, size in zip(arrays, sizes, strict=True):
        flat[begin : begin + array.size] = array.reshape(-1)
        begin += size
    parts = host.to(device, non_blocking=True).split(sizes)
    return [part[: array.size].view(array.shape) for part, array in zip(parts, arrays, strict=True)]


class Readback:
    """Takes float32 rows off the device; up to `num_rows` by pinned memory, which is reused."""

    def __init__(self, num_rows: int, device: str) -> None:
        self._num_rows = 0 if device == "cpu" else num_rows
        self._pinned = torch.empty(0)

    def __call__(self, rows: torch.Tensor) -> Logits:
        """`rows`, [rows, features], when they are computed."""
        rows = rows.float()
        array: Logits
        if not 0 < len(rows) <= self._num_rows:
            array = rows.cpu().numpy()
            return array
        if self._pinned.numel() < rows.numel():
            shape = (self._num_rows, rows.shape[1])
            self._pinned = torch.empty(shape, dtype=torch.float32, pin_memory=True).view(-1)
        pinned = self._pinned[: rows.numel()].view(rows.shape)
        pinned.copy_(rows, non_blocking=True)
        torch.cuda.current_stream(rows.device).synchronize()
        array = pinned.numpy()
        return array
