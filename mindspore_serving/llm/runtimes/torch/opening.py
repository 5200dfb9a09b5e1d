"""Opening of language models in PyTorch: the reference runtime on CPUs, and the runtime for CUDA.

On a CPU it computes in float32, operation by operation.  On a CUDA device it computes in bfloat16,
by the same operations except for attention, which reads the paged cache by Triton kernels
(`kernels`), and the work between matrix products (`fused`); a step in which every sequence has one
new token and no adapter is launched as one CUDA graph (`graphs`).  Without Triton, or where its
kernels give wrong results on the device, attention is computed as on a CPU and without graphs, and
a warning is logged.

Without a device, tests run the kernels in Triton's interpreter and compile them for absent devices,
and test the graphs with a substitute on the CPU; tests marked `gpu` run all of it.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mindspore_serving import log
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.ops import AttentionSpec
from mindspore_serving.llm.parallel.group import Grid
from mindspore_serving.llm.parallel.part import (
    RankPart,
    open_head_part,
    open_part,
    parallel_text,
    rank_options,
)
from mindspore_serving.llm.runtimes.adapters import BaseModel, read_changes
from mindspore_serving.llm.runtimes.capacity import (
    DeviceMemory,
    cache_block_bytes,
    check_logits,
    first_step,
    runner_limits,
)
from mindspore_serving.llm.runtimes.layout import Layout, RunnerLimits, lay_out
from mindspore_serving.llm.runtimes.main_memory import MainMemory, read_main_memory
from mindspore_serving.llm.runtimes.torch.attention import AttentionPath, GatherPath
from mindspore_serving.llm.runtimes.torch.collectives import BACKENDS, DeviceExchange
from mindspore_serving.llm.runtimes.torch.graphs import CudaCapture
from mindspore_serving.llm.runtimes.torch.invariant import check_deterministic, check_kernels
from mindspore_serving.llm.runtimes.torch.lora import TorchAdapters
from mindspore_serving.llm.runtimes.torch.runner import TorchModel, TorchRunner, upload
from mindspore_serving.llm.runtimes.torch.weights import TorchWeights
from mindspore_serving.llm.step import Row, Step

if TYPE_CHECKING:
    from mindspore_serving.llm.runtimes.torch.paged import PagedPath

# Largest accepted difference of attention by kernels and by PyTorch, relative to the largest value.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
CHECKED_LENGTHS = ((1, 1), (1, 700), (5, 40), (90, 130))  # new tokens, length with them
FALLBACK = "so keys and values are gathered in every step, and there are no CUDA graphs"
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
SHARE_OF_DEVICE = 0.9  # share of the device's memory that is free after loading the weights


def open_runner(directory: str | Path, config: EngineConfig) -> TorchRunner:
    """Open the model in `directory`, with its weights loaded.

    Of `config`: `device` "auto" (CUDA if available), "cpu", "cuda" or "cuda:1"; `dtype` "auto" (f32
    on a CPU, bf16 on CUDA), "f32", "f16", "bf16"; `kv_cache_dtype` the same, with "auto" for
    `dtype`. Quantised weights are dequantised.

    Raises StartError: an unsupported option, a broken or unknown checkpoint, not enough memory.
    """
    return start_runner(open_model(directory, config), config)


def open_head(directory: str | Path, config: EngineConfig) -> TorchRunner:
    """Open the prediction head of the model in `directory`, as `open_runner`."""
    part = open_head_part(directory, config)
    return start_runner(open_model(directory, config, part=part), config)


def open_rank(directory: str | Path, config: EngineConfig, grid: Grid) -> TorchRunner:
    """Open the part of the model that this rank of `grid` holds, as `open_runner`.

    Without a device of CUDA ranks compute on the CPU, else each on a device.
    """
    config = rank_options(config, torch.get_num_threads(), takes_adapters=True)
    config = replace(config, device=rank_device(config, grid))
    model = open_model(directory, config, grid)
    try:
        return start_runner(model, config)
    except BaseException:
        if model.collectives is not None:
            model.collectives.close()
        raise


def rank_device(config: EngineConfig, grid: Grid) -> str:
    """Return the device of this rank.  Raises StartError if there are too few."""
    device, rank, links = open_device(config.device), grid.everyone.rank, grid.everyone.links
    if device == "cpu":
        return device
    text, count = f"{parallel_text(config)} on CUDA devices", torch.cuda.device_count()
    if device != "cuda":
        raise StartError(f'{text}, but device is {device!r}: set "cuda", each rank takes one')
    if links.num_local < links.size:
        raise StartError(f"{text}, which have to be of one machine: leave rank_machines out")
    if config.expert_parallel:
        raise StartError(f"{text}, but experts are divided by expert_parallel: leave it out")
    if count < links.size:
        raise StartError(
            f'{text}, but PyTorch sees {count}, expected at least {links.size}: set device="cpu" '
            "to compute without them"
        )
    return f"cuda:{rank}"


def open_model(
    directory: str | Path, config: EngineConfig, grid: Grid | None = None,
    *, part: RankPart | None = None,
) -> TorchModel:  # fmt: skip
    """Open the model of `open_runner` or `open_rank`; its weights are loaded at their first use."""
    set_num_threads(config)
    part = part or open_part(directory, config, grid)
    device = open_device(config.device)
    dtype = DTYPES.get(config.dtype, torch.float32 if device == "cpu" else torch.bfloat16)
    kv_dtype = DTYPES.get(config.kv_cache_dtype, dtype)
    if config.deterministic:
        check_deterministic(config, part.spec, dtype, device)
    weights = TorchWeights(part.checkpoint, dtype, device)
    collectives = None
    if part.exchange is not None and part.grid is not None and device.split(":")[0] in BACKENDS:
        group = part.grid.peers
        collectives = DeviceExchange(group, part.exchange, part.spec.vocab_size, device)
    return TorchModel(
        spec=part.spec,
        decoder=part.decoder,
        weights=weights,
        adapters=TorchAdapters(),
        dtype=dtype,
        kv_dtype=kv_dtype,
        device=device,
        part=part,
        is_invariant=config.deterministic,
        keeps_latent=_keeps_latent(part, config, device),
        collectives=collectives,
    )


def _keeps_latent(part: RankPart, config: EngineConfig, device: str) -> bool:
    """Return whether the cache of latent attention has latent vectors, on a CPU.

    Else it has the keys and values of every head: the kernel on CUDA needs values as wide as keys,
    adapters may change the matrix that expands latent vectors, and ranks have some heads each.
    """
    is_plain = not (config.deterministic or config.has_adapters) and part.exchange is None
    return part.spec.latent is not None and device == "cpu" and is_plain


def start_runner(model: TorchModel, config: EngineConfig) -> TorchRunner:
    """Load the weights of `model`, allocate its cache and, on CUDA, compile and capture.

    Raises StartError: weights that do not fit the model, not enough memory.
    """
    spec = model.spec
    layers, base = _load(model, has_adapters=config.has_adapters)
    if model.is_invariant:
        check_kernels(model.weights.names())
    kernels = None
    is_bidirectional = spec.architecture.has_bidirectional_images and config.max_images > 0
    if is_bidirectional and model.device != "cpu":
        log.warning("the attention kernel has no bidirectional attention, %s", FALLBACK)
    elif model.device != "cpu":
        setting = AttentionSetting(model.dtype, model.kv_dtype, config.block_size, model.device)
        with torch.cuda.device(model.device):
            kernels = open_kernels(layers, setting)
    block_bytes = cache_block_bytes(
        config, spec, model.kv_dtype.itemsize, num_latent=int(model.keeps_latent)
    )
    memory, part = _read_memory(model.device), model.part
    limits = runner_limits(config, spec, block_bytes, memory, part.size if part else 1)
    if part is not None:
        limits = limits.agreed(part.minimum)
    limits = replace(limits, adapters=model.adapters.loaded)
    runner = TorchRunner(model, limits, kernels, num_rows=config.max_num_seqs)
    runner.base = base
    for adapter, changes in read_changes(config, base).items():
        runner.load_adapter(adapter, changes)
    if model.device != "cpu":
        _warm_up(runner, model, config, can_capture=kernels is not None)
    return runner


def _load(model: TorchModel, *, has_adapters: bool) -> tuple[set[AttentionSpec], BaseModel | None]:
    """Load every weight by computing one token.

    Returns the kinds of attention of the layers, and the base model of adapters, if there are any.

    Raises StartError if the checkpoint does not fit.
    """
    runner = TorchRunner(model, RunnerLimits(1, 1, model.spec.vocab_size, 1))
    model.adapters.used = set() if has_adapters else None
    with first_step():
        logits = runner.run(Step((Row([0], 0, [0], 1),)))
    if model.spec.is_last:
        check_logits(logits, model.spec)
    if not has_adapters:
        return runner.attention_specs, None
    weights = model.weights
    shapes = model.adapters.settle(weights.names())
    return runner.attention_specs, BaseModel(model.spec, shapes, weights.checkpoint)


def _warm_up(
    runner: TorchRunner, model: TorchModel, config: EngineConfig, *, can_capture: bool
) -> None:
    """Compute the longest piece of a prompt, and capture the graphs.

    The piece shows whether memory is enough; if graphs cannot be captured, a warning says why.
    """
    length = min(config.max_num_batched_tokens, runner.max_model_len)
    blocks = [0] * -(-length // runner.block_size)
    try:
        runner.run(Step((Row([0] * length, 0, blocks, 1),)))
    except ServingError as error:
        raise StartError(
            f"a step of max_num_batched_tokens={config.max_num_batched_tokens} failed: {error}; "
            "lower it, or kv_cache_memory"
        ) from error
    if not can_capture:
        return
    if model.part is not None and model.part.size > 1:
        log.warning("no CUDA graphs: ranks exchange results within a step")
        return
    if model.spec.rope.switch:
        log.warning("no CUDA graphs: rotary positions depend on the length of a sequence")
        return
    if model.spec.keeps_hidden or not model.spec.is_first:
        log.warning("no CUDA graphs: a prediction head reads hidden states between launches")
        return
    if model.spec.mixture:
        log.warning("no CUDA graphs: experts are chosen on the host, between launches")
        return
    if model.spec.state:
        log.warning("no CUDA graphs: state slots are chosen on the host, between launches")
        return
    try:
        runner.use_graphs(CudaCapture(model.device), config.max_num_seqs)
    except RuntimeError as error:
        log.warning("no CUDA graphs: they cannot be captured here: %s", error)


def set_num_threads(config: EngineConfig) -> None:
    """Set PyTorch's number of threads, if `config` has one."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)


def attention_of(config: Any, default: str, **exceptions: str) -> dict[str, str]:
    """Return the attention for each part of a library's model: `default`, but for `exceptions`.

    No part is left out, as a name in config.json could refer to code elsewhere.
    """
    parts = dict.fromkeys(config.sub_configs, default)
    return {"": default, **parts, **{k: x for k, x in exceptions.items() if k in parts}}


def open_device(name: str) -> str:
    """Return PyTorch's name of the device.  Raises StartError for a wrong or missing device."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if name != "cpu" and (kind != "cuda" or (index and not index.isdigit())):
        raise StartError(f'device is {name!r}, expected "auto", "cpu", "cuda" or "cuda:<index>"')
    if kind == "cuda" and int(index or 0) >= (count := torch.cuda.device_count()):
        why = "" if torch.version.cuda else f": PyTorch {torch.__version__} here is built for CPUs"
        raise StartError(f"device is {name!r}, but PyTorch sees {count} CUDA devices{why}")
    return name


def _read_memory(device: str) -> MainMemory | DeviceMemory:
    if device == "cpu":
        return read_main_memory()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    share = f"{SHARE_OF_DEVICE:.0%}".replace("%", " %")
    return DeviceMemory(int(free * SHARE_OF_DEVICE), f"{share} of the free memory of {device}")


@dataclass(frozen=True, slots=True)
class AttentionSetting:
    """Setting of attention: dtypes, block size and device."""

    dtype: torch.dtype
    kv_dtype: torch.dtype
    block_size: int
    device: str


def open_kernels(specs: Collection[AttentionSpec], setting: AttentionSetting) -> "PagedPath | None":
    """Return the path by Triton kernels for layers of `specs`, checked against PyTorch.

    Returns None, and logs why, if the kernels cannot be used.
    """
    try:
        from mindspore_serving.llm.runtimes.torch.paged import PagedPath
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "triton":
            raise
        log.warning("triton is not installed, %s; `pip install triton` changes that", FALLBACK)
        return None
    processors = torch.cuda.get_device_properties(setting.device).multi_processor_count
    if len({(spec.num_kv_heads, spec.head_dim) for spec in specs}) > 1:
        log.warning("layers have heads of different sizes, %s", FALLBACK)
        return None
    for spec in specs:
        if spec.sinks:
            log.warning("the attention kernel has no sinks, %s", FALLBACK)
            return None
        path = PagedPath.of(spec, setting.dtype, setting.block_size, processors)
        try:
            paths = (path, replace(path, num_processors=1))
            difference = max(deviation(candidate, spec, setting) for candidate in paths)
        except Exception as error:  # Triton's own, or of the compiler that it calls
            log.warning("the attention kernel does not run here, %s: %s", FALLBACK, error)
            return None
        if not difference <= TOLERANCE[setting.dtype]:
            log.warning("the attention kernel is off by %.2g here, %s", difference, FALLBACK)
            return None
    return path


def deviation(path: AttentionPath, spec: AttentionSpec, setting: AttentionSetting) -> float:
    """Return the largest difference of `path` from gathering on random numbers.

    It is relative to the largest value.
    """
    layout = _layout(setting.block_size)
    generator = torch.Generator().manual_seed(0)
    num_blocks = sum(len(span.blocks) for span in layout.spans)
    shape = (num_blocks, setting.block_size, spec.num_kv_heads, spec.head_dim)

    def random(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(setting.device, dtype)

    keys, values = (random(shape, setting.kv_dtype) for _ in range(2))
    q = random((len(layout.slots), spec.num_heads * spec.head_dim), setting.dtype)
    outputs = []
    for candidate in (path, GatherPath(setting.block_size)):
        plan = candidate.plan(layout)
        attention = plan.attention(upload(plan.arrays, setting.device))
        outputs.append(attention.attend(keys, values, q, spec).float())
    return float((outputs[0] - outputs[1]).abs().max() / outputs[1].abs().max())


def _layout(block_size: int) -> Layout:
    rows, begin = [], 0
    for num_new, length in CHECKED_LENGTHS:
        end = begin - (-length // block_size)
        rows.append(Row([0] * num_new, length - num_new, range(begin, end), 1))
        begin = end
    return lay_out(
        Step(tuple(rows)), RunnerLimits(block_size, begin, 1, max(n for _, n in CHECKED_LENGTHS))
    )
