"""Language models as MindSpore graphs that live on the device of their weights and cache.

The definition is recorded (`recording`), compiled once for prompts without a past and once for
every other step, and runs with any number of tokens, sequences and blocks.  On a CPU it computes in
float32, by operators composed of plain ones.  On Ascend it is not verified on hardware.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mindspore_serving import log
from mindspore_serving.backends.ascend_installation import check_installation
from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.quantized.methods import describe, quantization_of
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.part import RankPart, open_part
from mindspore_serving.llm.runtimes.adapters import BaseModel, read_changes
from mindspore_serving.llm.runtimes.capacity import (
    DeviceMemory,
    cache_block_bytes,
    first_step,
    longest_sequence,
    runner_limits,
)
from mindspore_serving.llm.runtimes.layout import RunnerLimits
from mindspore_serving.llm.runtimes.main_memory import MainMemory, read_main_memory
from mindspore_serving.llm.runtimes.mindir.library import (
    ASCEND,
    CPU,
    mindspore,
    soc_version,
    use_device,
)
from mindspore_serving.llm.runtimes.mindspore import nodes
from mindspore_serving.llm.runtimes.mindspore.dtypes import choose_dtype
from mindspore_serving.llm.runtimes.mindspore.latent import why_expanded
from mindspore_serving.llm.runtimes.mindspore.lora import DeviceAdapters
from mindspore_serving.llm.runtimes.mindspore.primitives import AUTO, broken_primitives
from mindspore_serving.llm.runtimes.mindspore.primitives.contracts import SOC_310P
from mindspore_serving.llm.runtimes.mindspore.primitives.selftest import KERNEL_VARIABLES
from mindspore_serving.llm.runtimes.mindspore.runner import (
    TARGETS,
    GraphRunner,
    GraphTarget,
    PhaseGraphs,
)
from mindspore_serving.llm.runtimes.mindspore.weights import GraphWeights
from mindspore_serving.llm.step import Row, Runner, Step

BITS = {"int8": 8, "int4": 4}

SHARE_OF_DEVICE = 0.9  # of its memory; the rest is for what the runtime allocates later


def open_runner(directory: str | Path, config: EngineConfig) -> Runner:
    """Open the model in `directory`, with its weights loaded and its graphs compiled.

    Of `config`: `device` "auto", which is "cpu", or "ascend"; `dtype` "auto" or "f32" on a CPU,
    which has fast kernels for nothing else, and "auto" (bf16 if the SoC has it, else f16), "bf16"
    or "f16" on Ascend; `kv_cache_dtype` "auto" or the same.  Quantised weights are integers on
    Ascend and dequantised on a CPU; `quantization` "int8" or "int4" rounds floats for Ascend.

    Raises StartError: an unsupported option, a broken or unknown checkpoint, not enough memory.
    """
    target = find_target(config)
    part = open_part(directory, config)
    if target.name == ASCEND:  # in other processes, before this one takes the device
        check_installation()
        target = replace(target, composed=broken_primitives(config.composed_primitives))
    target = compute_on(target, config)
    graphs = open_graphs(part, target, config)
    adapters = _adapters(graphs, part, config)  # first, as the cache takes the rest of the memory
    runner = GraphRunner(graphs, cache_limits(graphs, part, config), adapters)
    runner.warm_up()
    return runner


def _adapters(graphs: PhaseGraphs, part: RankPart, config: EngineConfig) -> DeviceAdapters | None:
    """Return the adapters of `config` on the device, None if there are none now or later."""
    if not config.has_adapters:
        return None
    with _fitting():
        uses = graphs.adapter_uses(config.block_size)
    adapters = DeviceAdapters(BaseModel(part.spec, uses, part.checkpoint), graphs.dtype)
    for number, changes in read_changes(config, adapters.base).items():
        adapters.load(number, changes)
    return adapters


def find_target(config: EngineConfig) -> GraphTarget:
    """Return the device of `config`.  Raises StartError for options that it does not take."""
    target = TARGETS["ascend" if config.device == "ascend" else "cpu"]
    if target.name == CPU and config.composed_primitives != AUTO:
        raise StartError(
            f"composed_primitives is {config.composed_primitives!r}, but all operators are "
            "composed on a CPU; leave it out, or choose device ascend"
        )
    if target.name == CPU:
        choose_dtype(config)  # refuses others before the model is read
    return target


def compute_on(target: GraphTarget, config: EngineConfig, number: int = 0) -> GraphTarget:
    """Compute on device `number` of `target`; return it with its dtype."""
    if target.name == ASCEND:
        os.environ.update(KERNEL_VARIABLES | os.environ)
    use_device(target.name, number)
    soc = soc_version() if target.name == ASCEND else ""
    lacking = frozenset({"mla"} if soc == SOC_310P else ())
    composed = target.composed | lacking
    return replace(target, dtype=choose_dtype(config, soc), soc=soc, composed=composed)


def open_graphs(part: RankPart, target: GraphTarget, config: EngineConfig) -> PhaseGraphs:
    """Return the graphs of `part`, which are recorded and compiled at their first use."""
    with _fitting():
        weights = _weights(part.checkpoint, target, config)
        reason = why_expanded(
            part.spec, target.filling, target.composed, has_adapters=config.has_adapters
        )
        if reason and part.spec.latent:
            log.warning("the cache has keys and values of every head, as %s", reason)
        return PhaseGraphs(part.spec, part.decoder, weights, target, keeps_latent=not reason)


@contextmanager
def _fitting() -> Iterator[None]:
    """Raise StartError for weights that do not fit the model."""
    try:
        yield
    except StartError:
        raise
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        raise StartError(f"the weights do not fit config.json: {error_text(error)}") from error


def cache_limits(graphs: PhaseGraphs, part: RankPart, config: EngineConfig) -> RunnerLimits:
    """Return the limits that all ranks can hold."""
    element_size = 4 if graphs.target.name == CPU else 2
    block_bytes = cache_block_bytes(
        config, part.spec, element_size, num_latent=int(graphs.keeps_latent)
    )
    memory = _memory(graphs, config, block_bytes)
    if isinstance(memory, DeviceMemory):  # each rank has its device
        memory = replace(memory, free=memory.free * part.size)
    return runner_limits(config, part.spec, block_bytes, memory, part.size).agreed(part.minimum)


def _weights(checkpoint: Checkpoint, target: GraphTarget, config: EngineConfig) -> GraphWeights:
    """Return weights that are integers where the device has kernels for them.

    A CPU has none: for one token, a product that widens integers first takes 10 times as long as
    one of float32 with 8 bits, and 20 times with 4.
    """
    stored = quantization_of(checkpoint.config).get("mode") or describe(checkpoint.config).text
    if stored and config.quantization not in (None, stored):
        raise StartError(
            f"quantization is {config.quantization!r}, but {checkpoint.directory} is already "
            f"quantised to {stored}; use the float checkpoint, or leave quantization out"
        )
    has_kernels = target.filling == nodes.ASCEND
    if config.quantization and not has_kernels:
        raise StartError(
            f"quantization is {config.quantization!r}, but the runtime mindspore has kernels for "
            "integers on Ascend alone; leave quantization out, or use the runtime openvino"
        )
    bits = 0 if stored or not config.quantization else BITS[config.quantization]
    return GraphWeights(
        checkpoint, f"mindspore.{target.dtype}", keeps_integers=has_kernels, bits=bits,
        is_fractal=target.is_fractal,
    )  # fmt: skip


def _memory(
    graphs: PhaseGraphs, config: EngineConfig, block_bytes: int
) -> MainMemory | DeviceMemory:
    """Return what the cache may take.

    Of a device, its memory but what the weights and the largest prompt of a step reserve.
    """
    if graphs.target.name == CPU:
        return read_main_memory()
    num_tokens = min(config.max_num_batched_tokens, longest_sequence(config, graphs.spec))
    num_blocks = -(-num_tokens // config.block_size)
    vocab_size = graphs.spec.vocab_size
    probe = GraphRunner(graphs, RunnerLimits(config.block_size, num_blocks, vocab_size, num_tokens))
    with first_step():
        probe.run(Step((Row([0] * num_tokens, 0, range(num_blocks), 1),)))
    probe.release_cache()
    total = mindspore.hal.get_device_properties(0, graphs.target.name).total_memory
    reserved = mindspore.runtime.max_memory_reserved()
    return device_memory(total, reserved, block_bytes, num_tokens)


def device_memory(total: int, reserved: int, block_bytes: int, num_tokens: int) -> DeviceMemory:
    """Return what remains for the cache, in bytes, as do all numbers but `num_tokens`.

    `reserved` is for the weights and a step of `num_tokens`.  Raises StartError if no block of
    `block_bytes` fits, with what to lower.
    """
    free = int(total * SHARE_OF_DEVICE) - reserved
    taken = f"weights and a step of {num_tokens} tokens take {reserved >> 20} MiB"
    if free < block_bytes:
        raise StartError(
            f"{taken} of the device's {total >> 20} MiB, which leaves no block of keys and values "
            f"({block_bytes >> 10} KiB); lower max_num_batched_tokens or max_model_len, or use "
            "quantised weights"
        )
    return DeviceMemory(
        free, f"{SHARE_OF_DEVICE * 100:g} % of the device's {total >> 20} MiB; {taken}"
    )
