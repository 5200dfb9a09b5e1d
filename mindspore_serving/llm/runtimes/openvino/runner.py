"""Runner of a compiled graph with its cache; `opening` builds the graph."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import openvino as ov

from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.checkpoint.weights import from_bf16
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.stage_arrays import received_width, sent_width
from mindspore_serving.llm.parallel.part import RankPart
from mindspore_serving.llm.runtimes.adapters import BaseModel, Changes
from mindspore_serving.llm.runtimes.capacity import longest_sequence, runner_limits
from mindspore_serving.llm.runtimes.layout import RunnerLimits, SharedCache, requested_rows
from mindspore_serving.llm.runtimes.main_memory import read_main_memory
from mindspore_serving.llm.runtimes.openvino.attention import BLOCK_SIZE
from mindspore_serving.llm.runtimes.openvino.feed import Feed
from mindspore_serving.llm.runtimes.openvino.lora import STEP_INPUTS, LoadedAdapters
from mindspore_serving.llm.runtimes.openvino.ops import HIDDEN, ROUTED
from mindspore_serving.llm.runtimes.openvino.processor import capabilities
from mindspore_serving.llm.runtimes.openvino.ranks import RankSums
from mindspore_serving.llm.runtimes.openvino.repacking import releasing
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from mindspore_serving.llm.runtimes.pages import in_pages, release_pages, release_rows, trim
from mindspore_serving.llm.runtimes.warming import warm_up_within
from mindspore_serving.llm.step import Logits, Row, Step, Vectors

T = TypeVar("T")

EXTRA_SLOTS = 2  # state slots after the runner's: see `states.fill`
WARM_UP_SECONDS = 0.3  # after the first pass, which packs the weights
SHORT = (16, 64)  # tokens of prompts that are warmed up before those that take longer


class OpenVINORunner:
    """A `StoringRunner`; an `AdaptedRunner` if there is a `base`.

    Steps without adapters have a separate request, so that adapters cost them nothing.
    """

    block_size = BLOCK_SIZE
    is_head = False
    draft_ids: npt.NDArray[np.int64] | None = None

    def __init__(
        self,
        compiled: Any,
        part: RankPart,
        config: EngineConfig,
        weights: OpenVINOWeights,
        *,
        base: BaseModel | None = None,
        sums: RankSums | None = None,
        shared: SharedCache | None = None,
    ) -> None:
        spec = part.spec
        self.vocab_size = spec.vocab_size
        self.received_width, self.sent_width = received_width(spec), sent_width(spec)
        self.hidden_size = 0 if spec.kept_layers else spec.hidden_size
        self.rope_switch = spec.rope.switch
        self.base = base
        self.experts = part.experts
        self._part, self._sums = part, sums
        self._kept = weights.constants.kept  # memory of the compiled model's constants
        self._gathered = weights.gathered
        self._requests: list[Any] = [compiled.create_infer_request()]
        self._last: Any = None  # the request that computed the last step
        ports = {port.get_any_name(): port for port in compiled.inputs}
        self._caches = [_Cache(port) for name, port in ports.items() if "_cache." in name]
        self._states = [_Cache(port) for name, port in ports.items() if "_state." in name]
        self._names = [name for name in ports if _is_of_step(name)]
        self._feeds: list[Feed] = []
        self._loaded: LoadedAdapters | None = None
        if base is not None:
            self._requests.append(compiled.create_infer_request())
            self._loaded = LoadedAdapters(self._requests, base.shapes, weights.precision)
        longest = longest_sequence(config, spec)
        self._allocate(RunnerLimits(BLOCK_SIZE, 1, spec.vocab_size, longest))
        self._check = weights.check
        self._check()
        self._pack(weights)
        release_pages(weights.constants.to_release)
        sizes = warm_up_sizes(
            config, self.max_model_len, packs_again=not weights.constants.release_order
        )
        self._warm_up(sizes, shows=shared is None)
        compiled.release_memory()
        trim()
        self.block_bytes = sum(cache.block_bytes for cache in self._caches)
        self.block_format = f"openvino {ov.__version__} {weights.precision} {capabilities()} "
        self.block_format += " ".join(cache.form for cache in [*self._caches, *self._states])
        if shared is None:
            # Only now are the weights packed, so that free memory is known.
            limits = runner_limits(config, spec, self.block_bytes, read_main_memory(), part.size)
            limits = limits.agreed(part.minimum)
            self._allocate(limits)
            self._compute_first()
            trim()
        else:
            limits = shared.limits
            for cache in self._caches:
                cache.share(self._requests, shared.arrays)
            self._feed(limits)
        self.cache_memory = replace(limits.memory, can_release=True)

    def run(self, step: Step) -> Logits:
        """Run a step as `Runner.run` does.  The result is overwritten by the next step."""
        return self.compute(step)

    def embed(self, step: Step) -> Vectors:
        return self.compute(step, embeds=True)

    def compute(
        self, step: Step, hidden_states: Vectors | None = None, *, embeds: bool = False
    ) -> Vectors:
        """Run a step as `LayerStage.compute` does."""
        request = self._infer(step, hidden_states)
        if not self._part.spec.is_last:
            hidden: Vectors = request.get_output_tensor(0).data
            return hidden
        if embeds:
            output = self.hidden_states()
            return output[requested_rows(step)] if self._part.spec.keeps_hidden else output
        output = request.get_output_tensor(0).data
        return output if self._part.exchange is None else self._part.exchange.gather(output)

    def hidden_states(self) -> Vectors:
        """Return the hidden states of the last step, as `HiddenRunner` does."""
        assert self._last is not None
        output: Vectors = self._last.get_output_tensor(1).data
        return output if output.dtype == np.float32 else from_bf16(output.view(np.uint16))

    def output(self, name: str) -> npt.NDArray[Any]:
        """Return a result of the last step without adapters; the next step overwrites it."""
        output: npt.NDArray[Any] = self._requests[0].get_tensor(name).data
        return output

    def _infer(self, step: Step, hidden_states: Vectors | None) -> Any:
        """Compute `step`, and return the request that has its results."""
        if not self._feeds:
            raise ServingError("the runner is closed")
        feed = self._feeds[self._loaded is not None and any(row.adapter for row in step.rows)]
        feed.load(step)
        for source, target in step.copies:
            for cache in self._caches:
                cache.array[target] = cache.array[source]
        if not self._part.spec.is_first:
            if hidden_states is None:  # to warm up
                hidden_states = np.zeros((step.num_tokens, self.received_width), np.float32)
            feed.request.set_tensor(HIDDEN, ov.Tensor(hidden_states, shared_memory=True))
        try:
            feed.request.infer()
        except RuntimeError as error:
            if self._sums is not None and self._sums.error is not None:
                raise self._sums.error from error
            raise ServingError(f"openvino failed in a step: {error}") from error
        self._last = feed.request
        if self.experts is not None and self.experts.layers:
            self.experts.count(feed.request.get_tensor(ROUTED).data)
        return feed.request

    def read_block(self, block: int) -> memoryview:
        return _read(self._caches, block)

    def write_block(self, block: int, content: memoryview) -> None:
        _write(self._caches, block, content)

    @property
    def state_bytes(self) -> int:
        """Bytes of the state in a slot."""
        return sum(state.block_bytes for state in self._states)

    def read_state(self, slot: int) -> memoryview:
        return _read(self._states, slot)

    def write_state(self, slot: int, content: memoryview) -> None:
        _write(self._states, slot, content)

    def release_blocks(self, blocks: Sequence[int]) -> None:
        for cache in self._caches:
            release_rows(cache.array, blocks)

    @property
    def adapters(self) -> Collection[int]:
        return self._loaded.loaded if self._loaded is not None else ()

    def load_adapter(self, adapter: int, changes: Changes) -> None:
        assert self._loaded is not None
        self._loaded.load(adapter, changes)

    def unload_adapter(self, adapter: int) -> None:
        assert self._loaded is not None
        self._loaded.unload(adapter)

    def close(self) -> None:
        self._feeds, self._requests, self._last = [], [], None
        self._caches, self._states = [], []
        self._kept = []
        self._gathered = {}
        self._loaded = None

    def _allocate(self, limits: RunnerLimits) -> None:
        for cache in self._caches:
            cache.allocate(self._requests, limits.num_blocks)
        for state in self._states:
            state.allocate(self._requests, limits.num_slots + EXTRA_SLOTS)
        self._feed(limits)

    def _feed(self, limits: RunnerLimits) -> None:
        self.num_blocks = limits.num_blocks
        self.max_model_len = limits.max_model_len
        self.num_slots = limits.num_slots
        limits = replace(limits, adapters=self.adapters)
        inputs = (self._names, [*self._names, *STEP_INPUTS])
        self._feeds = [
            Feed(request, names, limits, self._gathered, self._part.share_features)
            for request, names in zip(self._requests, inputs, strict=False)
        ]

    def _pack(self, weights: OpenVINOWeights) -> None:
        """Run the first pass, which packs the weights."""
        caches = {cache.name: cache.array[0] for cache in self._caches}
        with releasing(
            [(caches[name], arrays) for name, arrays in weights.constants.release_order]
        ):
            self._compute_first()

    def _compute_first(self) -> None:
        self.run(Step((Row([0], 0, [0], 1),)))

    def _warm_up(self, sizes: list[tuple[int, int]], *, shows: bool) -> None:
        """Run the first pass of each size, which compiles kernels for it."""
        minimum = self._part.minimum
        for num_rows, length in warm_up_within(WARM_UP_SECONDS, sizes, minimum, shows=shows):
            self._check()
            blocks = [0] * -(-length // BLOCK_SIZE)  # one for all, as results are not used
            self.run(Step(tuple(Row([0] * length, 0, blocks, 1) for _ in range(num_rows))))


def _is_of_step(name: str) -> bool:
    kept = ("_cache.", "_state.", "lora.")
    return name != HIDDEN and not any(part in name for part in kept)


def _read(caches: "list[_Cache]", index: int) -> memoryview:
    """Return a copy of block or slot `index` of all `caches`."""
    parts = [cache.array[index].reshape(-1).view(np.uint8) for cache in caches]
    return memoryview(np.concatenate(parts))


def _write(caches: "list[_Cache]", index: int, content: memoryview) -> None:
    """Restore what `_read` has returned."""
    begin = 0
    for cache in caches:
        part = content[begin : begin + cache.block_bytes]
        cache.array[index].reshape(-1).view(np.uint8)[:] = part
        begin += cache.block_bytes


def warm_up_sizes(
    config: EngineConfig, longest: int, *, packs_again: bool = False
) -> list[tuple[int, int]]:
    """Return (rows, tokens of each): the sizes that delay a start the least come first.

    A size that is not among them in time is compiled when it first occurs: 5 to 20 ms.  But if many
    rows may want weights in another order (`packs_again`), they come first: the memory that packing
    takes has to be known before that of the cache is chosen.
    """
    rows = range(1, config.max_num_seqs + 1)
    full = min(config.max_num_batched_tokens, longest)
    prompts = sorted({full, *(n for n in (*SHORT, 256, 1024) if n < full)})
    powers = [n for n in rows if n & (n - 1) == 0]
    other_counts = [n for n in rows if n & (n - 1)]
    first = [(1, 1), (1, full)] if packs_again else [(1, 1)]
    sizes = [*first, *((1, n) for n in SHORT if n < full), *((n, 1) for n in powers[1:])]
    sizes += [*((1, n) for n in prompts), *((n, 1) for n in other_counts)]
    return list(dict.fromkeys(sizes))


class _Cache:
    """Array of one layer's keys or values, or state, which the request reads and writes."""

    def __init__(self, port: Any) -> None:
        self.name = port.get_any_name()
        self._type = port.get_element_type()
        _, *sizes = port.get_partial_shape()
        self._block_shape = tuple(size.get_length() for size in sizes)
        self.form = f"{self.name} {self._type} {self._block_shape}"
        # numpy has no bfloat16; copies need none.
        self._bits = np.dtype(f"u{self._type.size}")
        self.block_bytes: int = prod(self._block_shape) * self._type.size
        self.array: npt.NDArray[Any] = np.zeros(0, self._bits)

    def allocate(self, requests: Sequence[Any], num_blocks: int) -> None:
        """Allocate zeros in pages of 4 KiB, which take memory when they are first written.

        Memory of other arrays that was released is not used again for them.
        """
        self._set(requests, in_pages((num_blocks, *self._block_shape), self._bits))

    def share(self, requests: Sequence[Any], arrays: Mapping[str, npt.NDArray[np.uint8]]) -> None:
        """Use the array of this name.  Raises StartError if it has another form."""
        array = arrays.get(self.name)
        form = "no such cache" if array is None else f"bytes {array.shape[1:]}"
        *outer, width = self._block_shape
        if array is None or array.shape[1:] != (*outer, width * self._type.size):
            raise StartError(f"openvino needs {self.form}, but the other runtime has {form}")
        self._set(requests, array.view(self._bits))

    def _set(self, requests: Sequence[Any], array: npt.NDArray[Any]) -> None:
        self.array = array
        for request in requests:
            request.set_tensor(self.name, ov.Tensor(array, ov.Shape(list(array.shape)), self._type))
