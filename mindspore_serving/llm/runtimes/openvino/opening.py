"""Language models on CPUs by OpenVINO: the default runtime.

A definition is built into one graph with paged attention.  Weights stay in the mapped checkpoint
until the plugin packs them at the first pass; keys and values are in numpy arrays.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import openvino as ov

from mindspore_serving import loading, log
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.checkpoint.quantized.methods import OURS, describe, quantization_of
from mindspore_serving.llm.checkpoint.safetensors import map_now
from mindspore_serving.llm.checkpoint.weights import Checkpoint, from_bf16
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.models.layouts import open_arranged
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.progress import progress
from mindspore_serving.llm.runtimes.adapters import Base, Changes, read_changes
from mindspore_serving.llm.runtimes.capacity import (
    free_main_memory,
    longest_sequence,
    runner_limits,
)
from mindspore_serving.llm.runtimes.layout import RunnerLimits
from mindspore_serving.llm.runtimes.openvino.attention import BLOCK_SIZE, check_paged_attention
from mindspore_serving.llm.runtimes.openvino.feed import Feed
from mindspore_serving.llm.runtimes.openvino.fusion import (
    fusible,
    give_back,
    is_fused_here,
    narrow,
    num_fused,
)
from mindspore_serving.llm.runtimes.openvino.lora import STEP_INPUTS, LoadedAdapters
from mindspore_serving.llm.runtimes.openvino.ops import OpenVINOOps
from mindspore_serving.llm.runtimes.openvino.options import (
    PluginOptions,
    capabilities,
    options_from,
)
from mindspore_serving.llm.runtimes.openvino.states import check_states
from mindspore_serving.llm.runtimes.openvino.weights import Weights
from mindspore_serving.llm.step import Logits, Row, Step, Vectors

T = TypeVar("T")

MAX_DEFAULT_CACHE = 32 * 2**30  # bytes, without kv_cache_memory
MORE_SLOTS = 2  # of states: see `states.fill`
WARM_UP_SECONDS = 1.0  # after the first pass, which packs the weights


def open_runner(
    directory: str | Path, config: EngineConfig, *, properties: Mapping[str, Any] | None = None
) -> "OpenVINORunner":
    """The model in `directory`, compiled, its weights packed and its common sizes warmed up.

    Of `config`: `dtype` and `kv_cache_dtype` as `options_from` says; `quantization` "int8" or
    "int4" for a float checkpoint (one that is quantised already takes half the memory to load);
    `kv_cache_memory`, by default half of the free memory, at most 32 GiB and what `max_num_seqs`
    longest sequences need.  `properties` override those of the plugin.

    Raises StartError: an option that it does not have, a broken or unknown checkpoint, no memory,
    an openvino whose paged attention computes something else.
    """
    check_paged_attention()
    options = options_from(config, capabilities())
    checkpoint = open_arranged(directory)
    spec, decoder = load_definition(checkpoint.config, max_model_len=config.max_model_len)
    if spec.state:
        check_states(options.precision)
    longest_sequence(config, spec)  # refuses a length beyond the model's before it is compiled
    bits = _bits_to_quantise(config, checkpoint, options)
    weights = Weights(checkpoint, options.precision, bits)
    num_features = spec.hidden_size if spec.form.has_pictures and config.max_images else 0
    ops = OpenVINOOps(weights, adapts=config.has_adapters, num_features=num_features)
    model = ops.model(decoder(ops, spec, ops.inputs), spec.vocab_size)
    loading.reached(0.3)
    _tell_widened(weights, checkpoint, options)
    if weights.group:
        map_now(weights.kept)  # the plugin makes no copy of integers
    is_foreign = quantization_of(checkpoint.config).get("quant_method") not in (None, OURS)
    is_exact = weights.has_minimums or (is_foreign and config.dtype == "f32")
    blocks = fusible(model) if options.precision == "bf16" and is_fused_here() else []
    by_rows = not weights.is_grouped and any(block.is_int8 for block in blocks)
    found = options.properties(weights.group, is_exact=is_exact, by_rows=by_rows)
    halves = narrow(blocks)
    weights.kept += halves
    compiled = compile_graph(model, {**found, **(properties or {})})
    if num_fused(compiled) == len(blocks):
        weights.unpacked += halves
    base = Base(spec, ops.ports.shapes, checkpoint.f32) if ops.ports else None
    changes = read_changes(config, base)
    runner = OpenVINORunner(compiled, spec, config, weights, base)
    for adapter, one in changes.items():
        runner.load_adapter(adapter, one)
    return runner


def _tell_widened(weights: Weights, checkpoint: Checkpoint, options: PluginOptions) -> None:
    """Log what the line about the model does not say."""
    is_kept = describe(checkpoint.config).is_kept
    if is_kept and weights.widened:
        log.warning(
            "%d quantised matrices of %s are widened to %s, the first %r: groups of different "
            "sizes, a code without kernels, or experts that are reordered or not quantised alike",
            len(weights.widened), checkpoint.directory.name, options.precision, weights.widened[0],
        )  # fmt: skip


def _bits_to_quantise(
    config: EngineConfig, checkpoint: Checkpoint, options: PluginOptions
) -> int | None:
    stored = quantization_of(checkpoint.config).get("mode") or describe(checkpoint.config).text
    if not stored:
        if options.bits is not None:
            log.warning(
                "quantising %s to %s while loading takes long, and memory for both; "
                "`python -m mindspore_serving.llm.quantize` does it once",
                checkpoint.directory.name,
                config.quantization,
            )
        elif not options.has_bf16 and config.dtype == "auto":
            log.warning(
                "this processor has no bf16: %s computes in f32; `mindspore-serving quantize` to "
                "int8 halves its memory and its time, to float16 saves a little time alone",
                checkpoint.directory.name,
            )
        return options.bits
    if config.quantization not in (None, stored):
        raise StartError(
            f"quantization is {config.quantization!r}, but {checkpoint.directory} is quantised to "
            f"{stored} already; take the float checkpoint, or leave it out"
        )
    return None


def compile_graph(model: ov.Model, properties: Mapping[str, Any]) -> Any:
    """Raises StartError with the plugin's words."""
    try:
        return ov.Core().compile_model(model, "CPU", dict(properties))
    except RuntimeError as error:
        raise StartError(f"openvino cannot compile the model: {error}") from error


class OpenVINORunner:
    """An `AdaptedRunner`, if there is a `base`.  Steps without adapters have a request of their
    own, so that they pay for none."""

    block_size = BLOCK_SIZE

    def __init__(
        self,
        compiled: Any,
        spec: ModelSpec,
        config: EngineConfig,
        weights: Weights,
        base: Base | None = None,
    ) -> None:
        self.vocab_size = spec.vocab_size
        self.hidden_size = spec.hidden_size
        self.is_rounded = weights.precision != "f32"
        self.base = base
        self._kept = weights.kept  # the arrays that the compiled model's constants refer to
        self._requests: list[Any] = [compiled.create_infer_request()]
        ports = {port.get_any_name(): port for port in compiled.inputs}
        self._caches = [_Cache(port) for name, port in ports.items() if "_cache." in name]
        self._states = [_Cache(port) for name, port in ports.items() if "_state." in name]
        kept = ("_cache.", "_state.", "lora.")
        self._names = [name for name in ports if not any(part in name for part in kept)]
        self._feeds: list[Feed] = []
        self._loaded: LoadedAdapters | None = None
        if base is not None:
            self._requests.append(compiled.create_infer_request())
            self._loaded = LoadedAdapters(self._requests, base.shapes, weights.precision)
        longest = longest_sequence(config, spec)
        self._allocate(RunnerLimits(BLOCK_SIZE, 1, spec.vocab_size, longest))
        self._warm_up(config)  # with every token in one block, as nothing is read
        give_back(weights.unpacked)
        # Only now the weights are packed, and what is free is known.
        free = min(free_main_memory(), MAX_DEFAULT_CACHE)
        block_bytes = sum(cache.block_bytes for cache in self._caches)
        self._allocate(runner_limits(config, spec, block_bytes, free_memory=free))

    def run(self, step: Step) -> Logits:
        """As `Runner.run`.  The result is overwritten by the next one."""
        return self._infer(step, 0)

    def embed(self, step: Step) -> Vectors:
        found = self._infer(step, 1)
        return found if found.dtype == np.float32 else from_bf16(found.view(np.uint16))

    def _infer(self, step: Step, output: int) -> Vectors:
        if not self._feeds:
            raise ServingError("the runner is closed")
        feed = self._feeds[self._loaded is not None and any(row.adapter for row in step.rows)]
        feed.load(step)
        for source, target in step.copies:
            for cache in self._caches:
                cache.array[target] = cache.array[source]
        try:
            feed.request.infer()
        except RuntimeError as error:
            raise ServingError(f"openvino failed in a step: {error}") from error
        found: Vectors = feed.request.get_output_tensor(output).data
        return found

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
        self._feeds, self._requests = [], []
        self._caches, self._states = [], []
        self._kept = []
        self._loaded = None

    def _allocate(self, limits: RunnerLimits) -> None:
        self.num_blocks = limits.num_blocks
        self.max_model_len = limits.max_model_len
        self.num_slots = limits.num_slots
        for cache in self._caches:
            cache.allocate(self._requests, limits.num_blocks)
        for state in self._states:
            state.allocate(self._requests, limits.num_slots + MORE_SLOTS)
        limits = replace(limits, adapters=self.adapters)
        inputs = (self._names, [*self._names, *STEP_INPUTS])
        self._feeds = [
            Feed(request, names, limits)
            for request, names in zip(self._requests, inputs, strict=False)
        ]

    def _warm_up(self, config: EngineConfig) -> None:
        """The first pass packs the weights; the first of each size compiles kernels for it."""
        for num_rows, length in within(WARM_UP_SECONDS, warm_up_sizes(config, self.max_model_len)):
            blocks = [0] * -(-length // BLOCK_SIZE)
            self.run(Step(tuple(Row([0] * length, 0, blocks, 1) for _ in range(num_rows))))


def within(seconds: float, sizes: list[T]) -> Iterator[T]:
    """The first of `sizes` to warm up, and those that begin within `seconds` after it."""
    deadline = None
    for size in progress(sizes, "warming up"):
        if deadline is not None and time.monotonic() > deadline:
            return
        yield size
        deadline = deadline or time.monotonic() + seconds


def warm_up_sizes(config: EngineConfig, longest: int) -> list[tuple[int, int]]:
    """(rows, tokens of each), the likeliest first: one sequence, full prompts, then batches."""
    rows = range(1, config.max_num_seqs + 1)
    full = min(config.max_num_batched_tokens, longest)
    prompts = sorted({full, *(n for n in (16, 64, 256, 1024) if n < full)}, reverse=True)
    powers = [n for n in rows if n & (n - 1) == 0]
    others = [n for n in rows if n & (n - 1)]
    sizes = [(1, 1), *((1, n) for n in prompts), *((n, 1) for n in (*powers[1:], *others))]
    return list(dict.fromkeys(sizes))


class _Cache:
    """One layer's keys or values, or state: an array that the request reads and writes."""

    def __init__(self, port: Any) -> None:
        self._name = port.get_any_name()
        self._type = port.get_element_type()
        _, *sizes = port.get_partial_shape()
        self._block_shape = tuple(size.get_length() for size in sizes)
        # numpy has no bfloat16; copies need none.
        self._bits = np.dtype(f"u{self._type.size}")
        self.block_bytes: int = prod(self._block_shape) * self._type.size
        self.array: npt.NDArray[Any] = np.zeros(0, self._bits)

    def allocate(self, requests: Sequence[Any], num_blocks: int) -> None:
        """Zeros that take memory when they are first written."""
        shape = (num_blocks, *self._block_shape)
        self.array = np.zeros(shape, self._bits)
        for request in requests:
            request.set_tensor(self._name, ov.Tensor(self.array, ov.Shape(list(shape)), self._type))
