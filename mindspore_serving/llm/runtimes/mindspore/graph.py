"""Language models as MindSpore's static graphs, compiled in this process when they are opened.

The graph is `export_cell.DecoderCell`, as in MindIR files, compiled once for every bucket of
sequences and new tokens over one copy of the weights.  Only the length of the past is dynamic:
buckets of it would multiply the graphs.  It has been run on CPUs only.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving.backends.mindir import LOCK  # one for the process
from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.opening import open_definition
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.progress import progress
from mindspore_serving.llm.runtimes.capacity import (
    cache_block_bytes,
    check_logits,
    first_step,
    runner_limits,
)
from mindspore_serving.llm.runtimes.layout import Layout, TokenSpan
from mindspore_serving.llm.runtimes.main_memory import read_main_memory
from mindspore_serving.llm.runtimes.mindir.cache import F32, I32, GraphCall
from mindspore_serving.llm.runtimes.mindir.export_cell import DecoderCell
from mindspore_serving.llm.runtimes.mindir.export_weights import Matrices, check_exportable
from mindspore_serving.llm.runtimes.mindir.graphs import decoder_inputs, run_graph
from mindspore_serving.llm.runtimes.mindir.library import mindspore, use_device
from mindspore_serving.llm.runtimes.mindir.runner import DenseRunner

MIN_WIDTH = 16  # new tokens of the smallest graph for prompts; with fewer a call is hardly faster


@dataclass(frozen=True, slots=True)
class Buckets:
    """Shapes of graphs.

    `batches` maps new tokens per sequence to numbers of sequences, both ascending.
    """

    batches: Mapping[int, tuple[int, ...]]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Shapes (sequences, new tokens of each) of all graphs, the largest first."""
        return [
            (batch, width)
            for width in sorted(self.batches, reverse=True)
            for batch in reversed(self.batches[width])
        ]

    def calls(self, layout: Layout) -> Iterator[GraphCall]:
        """Iterate over the calls that compute `layout`.

        Raises ServingError for a row wider than any graph.
        """
        by_width: defaultdict[int, list[TokenSpan]] = defaultdict(list)
        for span in layout.spans:
            by_width[self._width(span.end - span.begin)].append(span)
        for width, spans in sorted(by_width.items()):
            batches = self.batches[width]
            for first in range(0, len(spans), batches[-1]):
                part = tuple(spans[first : first + batches[-1]])
                batch = next(batch for batch in batches if batch >= len(part))
                yield GraphCall(part, width, batch - len(part))

    def _width(self, count: int) -> int:
        for width in self.batches:
            if count <= width:
                return width
        raise ServingError(
            f"a row has {count} new tokens, but the graphs accept at most {max(self.batches)}; "
            "raise max_num_batched_tokens"
        )


def buckets(config: EngineConfig, max_model_len: int) -> Buckets:
    """Return the buckets, in powers of two.

    For sequences that decode, or verify draft tokens, there are up to max_num_seqs of them; for
    pieces of prompts one, of up to max_num_batched_tokens or the longest sequence.
    """
    longest = min(config.max_num_batched_tokens, max_model_len)
    batches: dict[int, tuple[int, ...]] = dict.fromkeys(_powers(MIN_WIDTH, longest), (1,))
    decoding = tuple(_powers(1, config.max_num_seqs))
    batches |= {1: decoding, _powers(1, 1 + (config.num_speculative_tokens or 0))[-1]: decoding}
    return Buckets(dict(sorted(batches.items())))


def _powers(first: int, limit: int) -> list[int]:
    """Return `first`, twice that and so on, up to the first number that is not below `limit`."""
    powers = [first]
    while powers[-1] < limit:
        powers.append(powers[-1] * 2)
    return powers


def open_graphs(directory: str | Path, config: EngineConfig, target: str) -> DenseRunner:
    """Open the model in `directory`, compiled for every bucket on `target`.

    Raises StartError: a broken checkpoint or one that is not shaped like Llama, not enough memory.
    """
    checkpoint, spec, _ = open_definition(directory, max_model_len=config.max_model_len)
    check_exportable(spec)
    use_device(target)
    try:
        with LOCK:
            decoder = DecoderCell(spec, Matrices(checkpoint, spec))
    except StartError:
        raise
    except (ValueError, TypeError, RuntimeError) as error:
        raise StartError(f"the weights do not fit config.json: {error_text(error)}") from error
    block_bytes = cache_block_bytes(config, spec, element_size=4)
    limits = runner_limits(config, spec, block_bytes, read_main_memory())
    graphs = CompiledGraphs(decoder, spec, buckets(config, limits.max_model_len))
    return DenseRunner(spec, graphs, limits)


class BucketCell(mindspore.nn.Cell):  # type: ignore[misc]
    """The decoder for one bucket: a separate graph over the decoder's parameters."""

    def __init__(self, decoder: DecoderCell) -> None:
        super().__init__(auto_prefix=False)
        self.decoder = decoder

    def construct(self, *inputs: Any) -> Any:
        return self.decoder(*inputs)


class CompiledGraphs:
    """`DenseGraphs` with a graph for each shape of `buckets`, compiled at construction."""

    def __init__(self, decoder: DecoderCell, spec: ModelSpec, buckets: Buckets) -> None:
        """Compile the graphs.  Raises StartError if the weights do not fit `spec`."""
        self._buckets = buckets
        self._graphs: dict[tuple[int, int], Any] = {}
        for batch, width in progress(buckets.shapes, "graphs"):
            cell = BucketCell(decoder)
            cell.set_inputs(*decoder_inputs(spec, width, batch))
            # Graph mode is not set for the process, as other models may be eager.
            self._graphs[batch, width] = cell.compile_and_run
            with first_step():
                logits, *_ = self.run(_zeros(spec, batch, width))
            check_logits(logits, spec)

    def calls(self, layout: Layout) -> Iterable[GraphCall]:
        return self._buckets.calls(layout)

    def run(self, inputs: Sequence[I32 | F32]) -> tuple[F32, F32, F32]:
        batch, width = inputs[0].shape
        return run_graph(self._graphs[batch, width], inputs)


def _zeros(spec: ModelSpec, batch: int, width: int) -> list[I32 | F32]:
    """Return inputs of a call with one logit and a past of one token."""
    tokens = np.zeros((batch, width), np.int32)
    past = np.zeros((spec.num_kv_heads, batch, 1, spec.head_dim), np.float32)
    mask = np.zeros((batch, width, 1 + width), np.float32)
    return [tokens, tokens, np.zeros(1, np.int32), mask, *[past] * (2 * spec.num_layers)]
