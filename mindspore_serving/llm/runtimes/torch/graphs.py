"""CUDA graphs of decoding steps, in which every sequence has one new token; one per batch size.

A graph is launched as a whole: on a fast device, launching operations one by one takes longer than
computing them.  Inputs that change from step to step are in tensors that are reused.  A batch is
padded to the next size with tokens in a block that no sequence has.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import torch

from mindspore_serving.llm.progress import progress
from mindspore_serving.llm.runtimes.layout import Layout
from mindspore_serving.llm.runtimes.torch.attention import BEGIN, COUNT, LENGTH, TABLE

Work: TypeAlias = Callable[[], None]  # reads and writes tensors that stay where they are
Capture: TypeAlias = Callable[[Work], Work]  # returns a function that repeats the work
Compute: TypeAlias = Callable[[torch.Tensor], torch.Tensor]  # rows, see below -> logits

# Columns of a row: a token, and from SEQUENCE on its sequence, as in `AttentionPath.decoding`.
TOKEN, POSITION, SLOT = range(3)
SEQUENCE = 4  # aligned to 16 bytes, as arrays of other steps are


@dataclass(frozen=True, slots=True)
class GraphShape:
    """Sizes that graphs share: up to `max_batch` sequences of `width` blocks, and a spare block.

    Padding tokens are in the block `scratch`.
    """

    max_batch: int
    width: int
    vocab_size: int
    block_size: int
    scratch: int
    device: str


def batch_sizes(max_batch: int) -> list[int]:
    """Return the batch sizes to capture, up to `max_batch`.

    They are 1, 2, 4, multiples of 8 to 256, then of 128, and `max_batch`.
    """
    sizes = [1, 2, 4, *range(8, 257, 8), *range(384, max_batch, 128)]
    return [size for size in sizes if size < max_batch] + [max_batch]


class DecodeGraphs:
    """Graphs of decoding steps, by batch size."""

    def __init__(self, compute: Compute, graph_shape: GraphShape) -> None:
        is_cuda = graph_shape.device != "cpu"
        rows_shape = (graph_shape.max_batch, SEQUENCE + TABLE + graph_shape.width)
        self._compute = compute
        self._host = torch.zeros(rows_shape, dtype=torch.int64, pin_memory=is_cuda)
        self._host_rows = self._host.numpy()
        self._host_rows[:, SLOT] = graph_shape.scratch * graph_shape.block_size
        self._host_rows[:, SEQUENCE + BEGIN] = np.arange(graph_shape.max_batch)
        self._host_rows[:, SEQUENCE + COUNT :] = 1
        self._host_rows[:, SEQUENCE + TABLE :] = graph_shape.scratch
        self._padding = self._host_rows[:, : SEQUENCE + TABLE + 1].copy()
        self._rows = self._host.to(graph_shape.device)
        self._logits = torch.zeros(
            (graph_shape.max_batch, graph_shape.vocab_size), device=graph_shape.device
        )
        self._sizes: list[int] = []
        self._replays: dict[int, Work] = {}

    def capture(self, capture: Capture, sizes: Sequence[int]) -> None:
        """Record a graph for each of `sizes`, which ascend; the largest first, for its memory."""
        for size in progress(sizes[::-1], "warming up"):
            self._replays[size] = capture(partial(self._work, size))
        self._sizes = list(sizes)

    def run(self, layout: Layout) -> torch.Tensor | None:
        """Return the logits, float32 [rows, vocab_size], or None if no graph fits.

        They are valid until the next step.  The step before has to be complete, as it is when its
        logits have been read.
        """
        count = len(layout.spans)
        if not self._sizes or count > self._sizes[-1] or not _is_decoding(layout):
            return None
        size = self._sizes[bisect_left(self._sizes, count)]
        self._describe(layout, count, size)
        self._rows[:size].copy_(self._host[:size], non_blocking=True)
        self._replays[size]()
        return self._logits[:count]

    def _work(self, size: int) -> None:
        self._logits[:size].copy_(self._compute(self._rows[:size]))

    def _describe(self, layout: Layout, count: int, size: int) -> None:
        rows = self._host_rows
        rows[:count, TOKEN] = layout.token_ids
        rows[:count, SLOT] = layout.slots
        rope_positions = layout.rope_positions  # equal in all parts, as the tokens are of texts
        rows[:count, POSITION] = (
            layout.positions if rope_positions is None else rope_positions[:, 0]
        )
        rows[:count, SEQUENCE + LENGTH] = layout.positions + 1
        for row, span in zip(rows, layout.spans, strict=False):
            row[SEQUENCE + TABLE : SEQUENCE + TABLE + len(span.blocks)] = span.blocks
        rows[count:size, : self._padding.shape[1]] = self._padding[count:size]


def _is_decoding(layout: Layout) -> bool:
    """Return whether each sequence has one new token, of no image, no adapter, and wants logits."""
    count = len(layout.spans)
    is_decoding = 0 < count == len(layout.token_ids) == len(layout.rows)
    is_decoding = is_decoding and layout.features is None
    return is_decoding and not any(span.adapter for span in layout.spans)


class CudaCapture:
    """Recorder of CUDA graphs that share one memory pool: no two may run at a time."""

    def __init__(self, device: str) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def __call__(self, work: Work) -> Work:
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            work()  # loads kernels and fills caches, which cannot be recorded
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        replay: Work = graph.replay
        return replay
