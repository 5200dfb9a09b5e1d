"""Runner over MindIR files of llm-serving, which keep keys and values in parameters.

A prompt is computed alone, padded to the size of the file, all sequences that decode in one call.
The files' block 0 is reserved for padding, so the engine's block n is block n + 1 there.  What a
file has no inputs for (the rest of a prompt whose beginning is in the cache, draft tokens) is
computed token by token.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mindspore_serving import log
from mindspore_serving.backends.mindir import LOCK, to_array
from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.checkpoint.model_files import CONFIG, read_json
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.runtimes.capacity import longest_sequence
from mindspore_serving.llm.runtimes.layout import (
    Indices,
    LimitedRunner,
    RunnerLimits,
    TokenSpan,
    lay_out,
)
from mindspore_serving.llm.runtimes.mindir.graphs import dynamic, load_graph, share_weights
from mindspore_serving.llm.runtimes.mindir.library import ASCEND, CPU, mindspore, ops, use_device
from mindspore_serving.llm.runtimes.mindir.paged_files import (
    LENGTHS,
    SLOTS,
    TABLES,
    TOKENS,
    PagedFile,
    PagedFiles,
    is_cache,
)
from mindspore_serving.llm.step import Logits, Step

F32 = npt.NDArray[np.float32]
_UNUSED_BLOCK = -1  # pads a row of the block tables
_PADDING_SLOT = 0  # of the reserved block


class PagedGraph:
    """A loaded file, compiled once for all shapes that it accepts."""

    def __init__(self, file: PagedFile) -> None:
        self.file = file
        self.cell = load_graph(file.path)

    def declare_inputs(self) -> None:
        """Declare sizes that are open in the file; otherwise each new shape is compiled."""
        self.cell.set_inputs(
            *(
                dynamic(
                    [None if size < 0 else size for size in spec.shape or ()],
                    mindspore.Tensor.from_numpy(np.zeros(1, spec.dtype)).dtype,
                )
                for spec in self.file.inputs.values()
            )
        )

    def run(self, inputs: Mapping[str, Indices]) -> F32:
        """Return the logits, [rows, vocab].  Raises ServingError."""
        try:
            tensors = [
                mindspore.Tensor.from_numpy(np.ascontiguousarray(inputs[name], spec.dtype))
                for name, spec in self.file.inputs.items()
            ]
            outputs = self.cell(*tensors)
            logits = to_array(outputs[0] if isinstance(outputs, tuple | list) else outputs)
        except Exception as error:  # MindSpore raises every kind
            raise ServingError(f"{self.file.path.name} failed: {error_text(error)}") from error
        return logits.reshape(-1, logits.shape[-1]).astype(np.float32, copy=False)


@dataclass(slots=True)
class _Remaining:
    """Tokens of a row that are not computed yet; their logits go to `output` from `first` on."""

    span: TokenSpan
    next: int  # offset of the next token in the row
    first: int  # offset of the first token whose logits are returned
    output: F32

    @property
    def count(self) -> int:
        return self.span.end - self.span.begin

    def store(self, offset: int, logits: F32) -> None:
        if offset >= self.first:
            self.output[offset - self.first] = logits


class PagedRunner(LimitedRunner):
    """A `Runner` over the two graphs, whose parameters are shared."""

    def __init__(self, prefill: PagedGraph, decode: PagedGraph, limits: RunnerLimits) -> None:
        super().__init__(limits)
        self._graphs: tuple[PagedGraph, PagedGraph] | None = (prefill, decode)
        self._width = decode.file.size(TABLES, 1) or -(-limits.max_model_len // limits.block_size)

    def run(self, step: Step) -> Logits:
        """Run a step as `Runner.run` does.  Raises ServingError, also for MindSpore's errors.

        No row may read from the cache what another row of the same step writes.
        """
        if self._graphs is None:
            raise ServingError("the runner is closed")
        prefill, decode = self._graphs
        layout = lay_out(step, self._limits)
        output = np.zeros((len(layout.rows), self.vocab_size), np.float32)
        remaining, begin = [], 0
        for row, span in zip(step.rows, layout.spans, strict=True):
            end = begin + row.num_logits
            first = len(row.tokens) - row.num_logits
            remaining.append(_Remaining(span, 0, first, output[begin:end]))
            begin = end
        tokens, slots = layout.token_ids, layout.slots + self.block_size
        with LOCK:
            self._copy(decode, step.copies)
            for prompt in remaining:
                if prompt.span.start == 0:
                    self._prefill(prefill, prompt, tokens, slots)
            size = decode.file.size(TOKENS, 0) or len(remaining)
            while pending := [left for left in remaining if left.next < left.count]:
                for index in range(0, len(pending), size):
                    self._decode(decode, pending[index : index + size], tokens, slots)
        return output

    def warm_up(self) -> None:
        """Compile both graphs by computing padding.  Raises ServingError if they do not fit."""
        assert self._graphs is not None
        prefill, decode = self._graphs
        nothing = np.zeros(0, np.int64)
        with LOCK:
            for logits in (
                prefill.run(self._prompt(prefill.file, nothing, nothing)),
                decode.run(self._rows(decode.file, [], nothing, nothing)),
            ):
                if logits.shape[1] != self.vocab_size:
                    raise ServingError(
                        f"their logits are of {logits.shape[1]} tokens, but {CONFIG} has a "
                        f"vocabulary of {self.vocab_size}"
                    )

    def close(self) -> None:
        """Drop cache and weights.  A closed runner refuses every step."""
        self._graphs = None

    def _prefill(self, graph: PagedGraph, row: _Remaining, tokens: Indices, slots: Indices) -> None:
        """Compute the tokens of a prompt up to the first whose logits are returned, or to its end.

        The graph returns the logits of its last token.
        """
        count = min(row.first + 1, row.count, graph.file.size(TOKENS, 1) or row.count)
        new = slice(row.span.begin, row.span.begin + count)
        logits = graph.run(self._prompt(graph.file, tokens[new], slots[new]))
        row.store(count - 1, logits[count - 1 if len(logits) >= count > 1 else 0])
        row.next = count

    def _decode(
        self, graph: PagedGraph, rows: Sequence[_Remaining], tokens: Indices, slots: Indices
    ) -> None:
        """Compute the next token of each of `rows`."""
        logits = graph.run(self._rows(graph.file, rows, tokens, slots))
        for row, values in zip(rows, logits, strict=False):  # behind them is padding
            row.store(row.next, values)
            row.next += 1

    @staticmethod
    def _prompt(file: PagedFile, tokens: Indices, slots: Indices) -> dict[str, Indices]:
        size = file.size(TOKENS, 1) or max(1, len(tokens))
        padding = size - len(tokens)
        return {
            TOKENS: np.pad(tokens, (0, padding))[None],
            LENGTHS: np.array([max(1, len(tokens))]),
            SLOTS: np.pad(slots, (0, padding), constant_values=_PADDING_SLOT),
        }

    def _rows(
        self, file: PagedFile, rows: Sequence[_Remaining], tokens: Indices, slots: Indices
    ) -> dict[str, Indices]:
        """Return the inputs of a call; rows beyond `rows` have one token in the reserved block."""
        size = file.size(TOKENS, 0) or max(1, len(rows))
        token_ids, lengths = np.zeros((size, 1), np.int64), np.ones(size, np.int64)
        slot_mapping = np.full(size, _PADDING_SLOT, np.int64)
        tables = np.full((size, self._width), _UNUSED_BLOCK, np.int64)
        tables[:, 0] = 0
        for index, row in enumerate(rows):
            token, length = row.span.begin + row.next, row.span.start + row.next + 1
            token_ids[index], lengths[index] = tokens[token], length
            slot_mapping[index] = slots[token]
            blocks = row.span.blocks[: -(-length // self.block_size)] + 1
            tables[index, : len(blocks)] = blocks
        return {TOKENS: token_ids, LENGTHS: lengths, SLOTS: slot_mapping, TABLES: tables}

    @staticmethod
    def _copy(graph: PagedGraph, copies: Iterable[tuple[int, int]]) -> None:
        """Copy blocks (from, to) of all layers; all are read before any is written."""
        pairs = np.array(list(copies), np.int32).reshape(-1, 2) + 1
        if not len(pairs):
            return
        source, target = (mindspore.Tensor.from_numpy(pairs[:, side].copy()) for side in (0, 1))
        for name, parameter in graph.cell.parameters_dict().items():
            if is_cache(name):
                ops.scatter_update(parameter, target, ops.gather(parameter, source, 0))


def open_paged(directory: Path, files: PagedFiles, config: EngineConfig) -> PagedRunner:
    """Open the files of llm-serving in `directory`, loaded and compiled.

    Raises StartError: no Ascend device for operators that need one, files that do not fit
    config.json, options that the files contradict.
    """
    if config.is_set("block_size") and config.block_size != files.block_size:
        raise StartError(
            f"block_size is {config.block_size}, but the cache in {files.decode.path.name} has "
            f"blocks of {files.block_size}: leave block_size out"
        )
    spec, _ = load_definition(read_json(directory / CONFIG), max_model_len=config.max_model_len)
    needed = sorted({*files.prefill.ascend_operators, *files.decode.ascend_operators})
    target = ASCEND if config.device == "ascend" else CPU
    if needed and target == CPU:
        raise StartError(
            f"{files.decode.path.name} has {', '.join(needed)}, which only Ascend devices compute: "
            "give device=ascend there, or serve the model's checkpoint instead"
        )
    use_device(target)
    with LOCK:
        prefill, decode = PagedGraph(files.prefill), PagedGraph(files.decode)
        share_weights(prefill.cell, decode.cell)
        for graph in (prefill, decode):
            graph.declare_inputs()
    limits = _limits(files, spec.vocab_size, longest_sequence(config, spec))
    _warn_of_slow_options(config, limits.max_model_len)
    runner = PagedRunner(prefill, decode, limits)
    try:
        runner.warm_up()
    except ServingError as error:
        raise StartError(f"the MindIR files in {directory} cannot be used: {error}") from error
    return runner


def _limits(files: PagedFiles, vocab_size: int, longest: int) -> RunnerLimits:
    blocks = files.num_blocks - 1  # without the reserved one
    longest = min(longest, blocks * files.block_size)
    width = files.decode.size(TABLES, 1)
    if width is not None:
        longest = min(longest, width * files.block_size)
    return RunnerLimits(files.block_size, blocks, vocab_size, longest)


def _warn_of_slow_options(config: EngineConfig, longest: int) -> None:
    if config.kv_cache_memory is not None:
        log.warning("kv_cache_memory has no effect: the MindIR files have their cache inside")
    if config.enable_prefix_caching or config.max_num_batched_tokens < longest:
        log.warning(
            "the MindIR files compute a prompt in one call, and its rest behind a prefix hit or a "
            "chunk token by token: set enable_prefix_caching=false and max_num_batched_tokens=%d",
            longest,
        )
