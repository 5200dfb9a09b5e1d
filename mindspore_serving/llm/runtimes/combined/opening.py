"""Opening of a model in the native runtime, and then in OpenVINO over the same cache."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.configuration import decoded_bytes
from mindspore_serving.llm.checkpoint.gguf.files import is_gguf
from mindspore_serving.llm.checkpoint.gguf.pieces import open_gguf
from mindspore_serving.llm.config import LOW_MEMORY, EngineConfig
from mindspore_serving.llm.runtimes.capacity import runner_limits
from mindspore_serving.llm.runtimes.combined.runner import CombinedRunner
from mindspore_serving.llm.runtimes.layout import SharedCache
from mindspore_serving.llm.runtimes.main_memory import MainMemory, read_main_memory
from mindspore_serving.llm.runtimes.native.cache import PagedCache
from mindspore_serving.llm.runtimes.native.codes import CacheType
from mindspore_serving.llm.runtimes.native.opening import compute_first, plan_model
from mindspore_serving.llm.runtimes.native.runner import NativeRunner, PlannedModel
from mindspore_serving.llm.runtimes.openvino.options import options_from
from mindspore_serving.llm.runtimes.openvino.processor import kept_capabilities

LIBRARY_BYTES = 160 << 20  # of OpenVINO, its compiled graph, and the activations of a step
SHARE_OF_FREE = 0.8  # largest share of free memory that the packed weights may take


def open_runner(directory: str | Path, config: EngineConfig) -> CombinedRunner:
    """Open the model in `directory` natively, and start to open it in OpenVINO.

    Both have a cache of the type that OpenVINO chooses by `dtype` and `kv_cache_dtype`.  With
    `memory` "low" or `deterministic` there is only the native runtime.

    Raises StartError: an unsupported model, a broken or unknown checkpoint, not enough memory.
    """
    kind = cache_type(config)
    model = plan_model(directory, config)
    if model.spec.state is not None:
        raise StartError(
            f"{model.spec.architecture_name} has layers with a recurrent state, which the runtimes "
            "native and openvino store differently: use one of these runtimes"
        )
    block_bytes = PagedCache(model.ops.layers, kind, config.block_size, 1).block_bytes
    memory, reserved = read_main_memory(), 0
    if config.memory != LOW_MEMORY and not config.deterministic:
        reserved = _reserved(Path(directory), model, memory)
    memory = replace(memory, available=memory.available - reserved)
    limits = runner_limits(config, model.spec, block_bytes, memory)
    with_spare_block = replace(limits, num_blocks=limits.num_blocks + 1)
    native = NativeRunner(model, with_spare_block, kind, config.num_threads)
    compute_first(native, directory, limits.num_blocks)
    runner = CombinedRunner(native, limits)
    if reserved:
        _pack(runner, Path(directory), config)
    return runner


def cache_type(config: EngineConfig) -> CacheType:
    """Return the type of keys and values that both runtimes have.  Raises StartError for u8."""
    if config.kv_cache_dtype == "u8":
        raise StartError(
            "kv_cache_dtype is 'u8', in which the runtimes native and openvino store keys "
            "differently: use f16, bf16 or f32, or one of these runtimes"
        )
    options = options_from(config, kept_capabilities(config.num_threads))
    is_bf16 = options.precision == "bf16"  # in which the plugin stores bf16 for f16
    return CacheType.BF16 if is_bf16 else CacheType[options.cache_precision.upper()]


def _reserved(directory: Path, model: PlannedModel, memory: MainMemory) -> int:
    """Return the bytes that OpenVINO will take; 0, which is logged, if there are not as many."""
    if is_gguf(directory):
        size = decoded_bytes(open_gguf(directory))
    else:
        size = model.weights.checkpoint.num_bytes
    needed = size + LIBRARY_BYTES
    if needed <= memory.available * SHARE_OF_FREE:
        return needed
    log.warning(
        "%s: the native runtime computes all steps: packed for openvino the weights take %.1f GB, "
        "and %.1f GB of memory are free", directory.name, needed / 1e9, memory.available / 1e9,
    )  # fmt: skip
    return 0


def _pack(runner: CombinedRunner, directory: Path, config: EngineConfig) -> None:
    def prepare() -> None:
        from mindspore_serving.llm.runtimes.openvino.attention import check_paged_attention

        check_paged_attention()

    def opens(shared: SharedCache) -> Any:
        from mindspore_serving.llm.runtimes.openvino.opening import open_shared

        return open_shared(directory, config, shared)

    runner.pack(directory.name, prepare, opens, config.max_num_batched_tokens)
