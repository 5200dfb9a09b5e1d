"""A step as the inputs of a graph: flat tokens, lengths of sequences, tables of blocks."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.runtimes.layout import Layout, TokenSpan
from mindspore_serving.llm.runtimes.mindspore.nodes import INCREMENT, PREFILL

I32 = npt.NDArray[np.int32]
HIDDEN = np.float32(-10000)  # added to the score of a masked key
MAX_KEYS = 1 << 16  # keys of a call, which are copied in each layer
MAX_PADDING = 1.5  # times the keys of a call without padding, beyond FREE_KEYS
FREE_KEYS = 2048  # keys whose padding costs less than another call


class GraphInputs(NamedTuple):
    """Arrays of a call, int32: T tokens of B sequences in at most M blocks each."""

    input_ids: I32  # [T]
    positions: I32  # [T]
    slot_mapping: I32  # [T], block * block_size + offset
    batch_valid_length: I32  # [B], tokens with the new ones
    q_seq_lens: I32  # [B], new tokens
    block_tables: I32  # [B, M], padded with 0
    logit_rows: I32  # [rows], at least one
    uses_long_rope: I32  # [T]
    num_logits: int

    def arrays(self) -> dict[str, I32]:
        """Return the arrays by the names of the graph's inputs."""
        return {name: value for name, value in self._asdict().items() if name != "num_logits"}

    @property
    def is_prefill(self) -> bool:
        """True if no sequence has tokens in the cache."""
        return bool(np.array_equal(self.batch_valid_length, self.q_seq_lens))

    @property
    def phase(self) -> str:
        """Phase of the graph that computes them."""
        return PREFILL if self.is_prefill else INCREMENT


def graph_inputs(layout: Layout, spans: tuple[TokenSpan, ...]) -> GraphInputs:
    """Return the inputs that compute `spans`, which follow each other in `layout`."""
    begin, end = spans[0].begin, spans[-1].end
    rows = layout.rows[(layout.rows >= begin) & (layout.rows < end)] - begin
    width = max(len(span.blocks) for span in spans)
    tables = np.zeros((len(spans), width), np.int32)
    for table, span in zip(tables, spans, strict=True):
        table[: len(span.blocks)] = span.blocks
    part = slice(begin, end)
    return GraphInputs(
        layout.token_ids[part].astype(np.int32),
        layout.positions[part].astype(np.int32),
        layout.slots[part].astype(np.int32),
        np.array([span.length for span in spans], np.int32),
        np.array([span.end - span.begin for span in spans], np.int32),
        tables,
        # Operators refuse empty tensors: the logits of one token are computed, and dropped.
        (rows if len(rows) else np.zeros(1, np.int64)).astype(np.int32),
        layout.uses_long_rope[part].astype(np.int32),
        len(rows),
    )


def kernel_mask(
    inputs: GraphInputs, *, is_prefill: bool, is_bf16: bool, is_complete: bool = False
) -> npt.NDArray[np.float32]:
    """Return `attn_mask` as Ascend's attention kernels read it.

    Flash attention repeats a mask of 128 tokens along the diagonal: 1 in bfloat16, -10000 in
    float16.  If it `is_complete` it covers the longest sequence.  Paged attention reads a row for
    each token, -10000 at the keys after it, if a sequence has several new tokens, and nothing
    otherwise.
    """
    if is_prefill:
        size = int(inputs.q_seq_lens.max()) if is_complete else 128
        return np.triu(np.full((size, size), 1 if is_bf16 else HIDDEN, np.float32), 1)
    if inputs.q_seq_lens.max() == 1:
        return np.zeros((1, 1), np.float32)
    keys = np.arange(inputs.batch_valid_length.max())
    return np.where(keys > inputs.positions[:, None], HIDDEN, np.float32(0))


def similar_spans(spans: tuple[TokenSpan, ...]) -> Iterator[tuple[TokenSpan, ...]]:
    """Split a step where queries are padded to the most of a call, and keys to the longest.

    Iterates over runs of neighbours with as many new tokens and keys of similar numbers: those that
    decode are one call, each prompt is another.
    """
    begin, num_keys, longest = 0, 0, 0
    for index, span in enumerate(spans):
        padded = (index - begin + 1) * max(longest, span.length)
        is_similar = _width(span) == _width(spans[begin]) and padded <= MAX_KEYS
        is_similar &= padded <= MAX_PADDING * (num_keys + span.length) + FREE_KEYS
        if index > begin and not is_similar:
            yield spans[begin:index]
            begin, num_keys, longest = index, 0, 0
        num_keys, longest = num_keys + span.length, max(longest, span.length)
    yield spans[begin:]


def _width(span: TokenSpan) -> int:
    return span.end - span.begin
