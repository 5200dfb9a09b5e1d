"""Opening of language models in the native runtime: a plan, and the weights of the mapped file."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from mindspore_serving import loading
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.pieces import open_gguf
from mindspore_serving.llm.checkpoint.weights import Checkpoint, Gather, to_f32
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.part import open_part
from mindspore_serving.llm.runtimes.adapters import BaseModel, read_changes
from mindspore_serving.llm.runtimes.capacity import first_step, longest_sequence, runner_limits
from mindspore_serving.llm.runtimes.main_memory import read_main_memory
from mindspore_serving.llm.runtimes.native.attention import Memory
from mindspore_serving.llm.runtimes.native.attention_tasks import AttentionTasks
from mindspore_serving.llm.runtimes.native.cache import PagedCache
from mindspore_serving.llm.runtimes.native.codes import CacheType
from mindspore_serving.llm.runtimes.native.interpreter import PlanArrays, execute
from mindspore_serving.llm.runtimes.native.kernels.formats import FORMATS
from mindspore_serving.llm.runtimes.native.kernels.products import product_address
from mindspore_serving.llm.runtimes.native.lora import AdapterTable
from mindspore_serving.llm.runtimes.native.ops import NativeOps, TokenIds
from mindspore_serving.llm.runtimes.native.products import Team
from mindspore_serving.llm.runtimes.native.runner import NativeRunner, PlannedModel
from mindspore_serving.llm.runtimes.native.weights import NativeWeights
from mindspore_serving.llm.step import Row, Step

CACHE_TYPES = {
    "auto": CacheType.F16,
    "f32": CacheType.F32,
    "f16": CacheType.F16,
    "bf16": CacheType.BF16,
    "u8": CacheType.U8,
}


def open_runner(directory: str | Path, config: EngineConfig) -> NativeRunner:
    """Open the model in `directory`, whose matrices stay in the mapped file.

    Of `config`: `kv_cache_dtype` "auto", which is f16, or a name of `CACHE_TYPES`.

    Raises StartError: an unsupported model, a broken or unknown checkpoint, not enough memory.
    """
    model = plan_model(directory, config)
    kind = CACHE_TYPES[config.kv_cache_dtype]
    block_bytes = PagedCache(model.ops.layers, kind, config.block_size, 1).block_bytes
    limits = runner_limits(config, model.spec, block_bytes, read_main_memory())
    base = None
    if config.has_adapters:
        base = BaseModel(model.spec, model.adapters.shapes, model.weights.checkpoint)
    changes = read_changes(config, base)
    runner = NativeRunner(model, limits, kind, config.num_threads, base)
    compute_first(runner, directory)
    for adapter, change in changes.items():
        runner.load_adapter(adapter, change)
    return runner


def compute_first(runner: NativeRunner, directory: str | Path, block: int = 0) -> None:
    """Compute a first step in `block`.

    Raises StartError: not enough memory, logits that are not numbers.
    """
    loading.reached(0.5)  # texts are read beside the step, which needs no lock of Python
    with first_step():
        logits = runner.run(Step((Row([0], 0, [block], 1),)))
    if np.isnan(logits).any():
        raise StartError(
            f"{directory} has weights or scales that are not numbers (NaN): it is damaged; "
            "download or convert it again"
        )


def compile_early(path: Path) -> None:
    """Compile, or read from the cache, what the model of a GGUF file needs; for another thread."""
    numbers, rows, table = (np.zeros((1,) * count, np.int64) for count in (1, 2, 3))
    threads = Team(0, 0)
    tasks = AttentionTasks.of(1, 1)
    planned = PlanArrays(rows, np.zeros((1, 1), np.float32), rows, numbers, threads, tasks)
    execute.address(planned, Memory(0, rows, numbers, numbers, table), 1)
    tensors = open_gguf(path).tensors.values()
    for kind in {tensor.kind for tensor in tensors if len(tensor.shape) > 1}:
        if kind in FORMATS:
            product_address(FORMATS[kind])


def plan_model(directory: str | Path, config: EngineConfig) -> PlannedModel:
    """Return the plan of the model in `directory`.  Raises StartError as `open_runner`."""
    part = open_part(directory, config)
    checkpoint, spec = part.checkpoint, part.spec
    weights = NativeWeights(checkpoint)
    has_images = spec.architecture.has_features(config.max_images, config.max_audios)
    if has_images and spec.architecture.has_bidirectional_images:
        raise StartError(
            "tokens of an image see one another, and the native runtime computes a few tokens at a "
            "time: use the openvino or the torch runtime, or set max_images=0 to serve texts only"
        )
    adapters = AdapterTable()
    ops = NativeOps(
        weights,
        switches=bool(spec.rope.switch),
        adapters=adapters if config.has_adapters else None,
        num_features=spec.image_features if has_images else 0,
        has_axes=bool(spec.rope.axes),
    )
    logits = part.decoder(ops, spec, ops.inputs)
    if logits.width != spec.vocab_size:
        raise StartError(
            f"the output matrix has {logits.width} rows, but config.json has vocab_size "
            f"{spec.vocab_size}"
        )
    if ops.last_hidden is None:
        raise StartError("the definition does not call ops.hidden")
    _check_tables(ops, weights, longest_sequence(config, spec), spec.vocab_size)
    logits.storage.is_kept = True
    gathers = tuple((lookup, _gather_of(checkpoint, lookup.table)) for lookup in ops.lookups)
    outputs = (logits, ops.last_hidden)
    return PlannedModel(spec, ops.recorder.plan(), ops, weights, adapters, gathers, *outputs)


def _check_tables(ops: NativeOps, weights: NativeWeights, longest: int, vocab_size: int) -> None:
    """Raise StartError for a table that lacks rows of tokens or positions."""
    for lookup in ops.lookups:
        needed, what = longest, "max_model_len"
        if isinstance(lookup.ids, TokenIds):
            needed, what = min(lookup.ids.limit, vocab_size), "vocab_size"
        rows = weights.shape(lookup.table)[0]
        if rows < needed:
            raise StartError(f"tensor {lookup.table!r} has {rows} rows, but {what} is {needed}")


def _gather_of(checkpoint: Checkpoint, name: str) -> Gather:
    """Return a function that reads rows of a table as float32."""
    gather = checkpoint.gatherer(name)
    if gather is not None:
        return gather
    if checkpoint.is_quantized(name):
        table = checkpoint.f32(name)
        return lambda rows: table[rows]
    stored = checkpoint.stored(name)
    bits = stored.bits.reshape(stored.shape)

    def read(rows: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        return to_f32(type(stored)(stored.dtype, (len(rows), bits.shape[1]), bits[rows]), name)

    return read
