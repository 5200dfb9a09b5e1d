"""Language models in eager PyTorch: the check of every other runtime, and the way to CUDA.

On a CPU it computes in float32; on a CUDA device in bfloat16, by the same operations.  There are
no CUDA graphs and no kernels of its own: a step is launched operation by operation, which bounds
small models on a fast device.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models import Decoder, load_definition
from mindspore_serving.llm.models.layouts import arranged
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.runtimes.base import Inputs
from mindspore_serving.llm.runtimes.capacity import capacity, free_main_memory
from mindspore_serving.llm.runtimes.layout import Layout, Limits, check_copies, lay_out
from mindspore_serving.llm.runtimes.torch_attention import PagedCache, grouped
from mindspore_serving.llm.runtimes.torch_lora import (
    Adapters,
    chosen_adapters,
    load_adapters,
)
from mindspore_serving.llm.runtimes.torch_ops import Pass, TorchOps, Weights
from mindspore_serving.llm.step import Logits, Row, Step, Vectors
from mindspore_serving.llm.weights import Checkpoint

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
Compute: TypeAlias = Callable[[TorchOps, Layout], Logits]
SHARE_OF_DEVICE = 0.9  # of the device's memory that is free once the weights are there


def open_runner(directory: str | Path, config: EngineConfig) -> "TorchRunner":
    """The model in `directory`, its weights loaded, ready to run.

    Of `config`: `device` "auto" (CUDA where there is one), "cpu", "cuda" or "cuda:1"; `dtype`
    "auto" (f32 on a CPU, bf16 on CUDA), "f32", "f16", "bf16"; `kv_cache_dtype` the same, "auto"
    being `dtype`.  A quantised checkpoint is computed with as floats.

    Raises StartError: an option it has not, a broken or unknown checkpoint, no memory.
    """
    if config.quantization is not None:
        raise StartError(
            f"quantization is {config.quantization!r}, but the torch runtime computes with floats: "
            "leave it out, or take the openvino runtime"
        )
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    checkpoint = arranged(Checkpoint.open(directory))
    spec, decoder = load_definition(checkpoint.config, max_model_len=config.max_model_len)
    device = open_device(config.device)
    dtype = open_dtype("dtype", config.dtype, torch.float32 if device == "cpu" else torch.bfloat16)
    kv_dtype = open_dtype("kv_cache_dtype", config.kv_cache_dtype, dtype)
    weights = Weights(checkpoint, dtype, device)
    adapters = load_adapters(config.adapters, weights.has, weights.__getitem__)
    model = Model(spec, decoder, weights, adapters, dtype, kv_dtype, device)
    num_adapters = len(config.adapters)
    _load(model, num_adapters)
    held = capacity(config, spec, element_size=kv_dtype.itemsize, free_memory=_free_memory(device))
    limits = Limits(config.block_size, held.num_blocks, spec.vocab_size, held.max_model_len)
    return TorchRunner(model, replace(limits, num_adapters=num_adapters))


@dataclass(frozen=True, slots=True)
class Model:
    """A definition with its weights, and what it is computed in and on."""

    spec: ModelSpec
    decoder: Decoder
    weights: Weights
    adapters: Adapters
    dtype: torch.dtype
    kv_dtype: torch.dtype
    device: str


class TorchRunner:
    """A `Runner`.  Its cache is allocated when it is made."""

    def __init__(self, model: Model, limits: Limits) -> None:
        spec = model.spec
        shape = (limits.num_blocks, limits.block_size, spec.num_kv_heads, spec.head_dim)
        self._model = model
        self._limits = limits
        self._cache = PagedCache(shape, spec.num_layers, dtype=model.kv_dtype, device=model.device)
        self._ops: TorchOps | None = TorchOps(
            model.weights, self._cache, model.dtype, model.adapters
        )
        self.block_size = limits.block_size
        self.num_blocks = limits.num_blocks
        self.vocab_size = limits.vocab_size
        self.hidden_size = spec.hidden_size
        self.num_adapters = limits.num_adapters
        self.max_model_len = limits.max_model_len

    def run(self, step: Step) -> Logits:
        """As `Runner.run`.  Raises ServingError, also for what PyTorch raises."""
        return self._run(step, self._logits)

    def embed(self, step: Step) -> Vectors:
        """As `EmbeddingRunner.embed`."""
        return self._run(step, self._hidden)

    def _run(self, step: Step, compute: Compute) -> Logits:
        if self._ops is None:
            raise ServingError("the runner is closed")
        layout = lay_out(step, self._limits)
        check_copies(step, self.num_blocks)
        try:
            with torch.inference_mode():
                self._copy(step)
                return compute(self._ops, layout)
        except (RuntimeError, IndexError) as error:
            if isinstance(error, ServingError):
                raise
            raise ServingError(f"a step of {step.num_tokens} tokens failed: {error}") from error

    def close(self) -> None:
        """Drop cache and weights.  A closed runner refuses every step."""
        self._ops = None
        self._cache.layers.clear()
        self._model.weights.clear()
        self._model.adapters.clear()
        if self._model.device != "cpu":
            torch.cuda.empty_cache()

    def _copy(self, step: Step) -> None:
        if step.copies:
            source, target = self._upload(step.copies).unbind(1)
            self._cache.copy(source, target)

    def _logits(self, ops: TorchOps, layout: Layout) -> Logits:
        if not layout.spans:
            return np.zeros((0, self.vocab_size), np.float32)
        return _download(self._pass(ops, layout))

    def _hidden(self, ops: TorchOps, layout: Layout) -> Vectors:
        if not layout.spans:
            return np.zeros((0, self.hidden_size), np.float32)
        self._pass(ops, layout)
        if ops.last_hidden is None:
            raise RuntimeError("the definition does not say what its hidden state is")
        return _download(ops.last_hidden)

    def _pass(self, ops: TorchOps, layout: Layout) -> torch.Tensor:
        adapters = chosen_adapters(layout, self._upload)
        ops.begin(Pass(self._upload(layout.slots), grouped(layout, self._upload), adapters))
        inputs = Inputs(
            self._upload(layout.token_ids),
            self._upload(layout.positions),
            self._upload(layout.rows),
        )
        logits: torch.Tensor = self._model.decoder(ops, self._model.spec, inputs)
        return logits

    def _upload(self, indices: object) -> torch.Tensor:
        return torch.as_tensor(indices, dtype=torch.int64).to(self._model.device)


def _download(tensor: torch.Tensor) -> Logits:
    array: Logits = tensor.float().cpu().numpy()
    return array


def _load(model: Model, num_adapters: int) -> None:
    """Load every weight by computing one token without and one with each adapter; StartError if
    the checkpoint does not fit, or an adapter."""
    runner = TorchRunner(model, Limits(1, 1, model.spec.vocab_size, 1, num_adapters))
    try:
        logits = runner.run(Step(tuple(Row([0], 0, [0], 1, i) for i in range(num_adapters + 1))))
        model.adapters.check_used()
    except StartError:
        raise
    except ServingError as error:
        raise StartError(f"the weights do not fit config.json, or memory: {error}") from error
    if logits.shape[1] != model.spec.vocab_size:
        raise StartError(
            f"the output matrix has {logits.shape[1]} rows, but config.json has vocab_size "
            f"{model.spec.vocab_size}"
        )


def open_device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if name != "cpu" and (kind != "cuda" or (index and not index.isdigit())):
        raise StartError(f'device is {name!r}, expected "auto", "cpu", "cuda" or "cuda:<index>"')
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise StartError(
            f"device is {name!r}, but {torch.cuda.device_count()} CUDA devices are here"
        )
    return name


def open_dtype(option: str, name: str, default: torch.dtype) -> torch.dtype:
    if name == "auto":
        return default
    if name not in DTYPES:
        raise StartError(f"{option} is {name!r}, expected auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def _free_memory(device: str) -> int:
    if device == "cpu":
        return free_main_memory()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return int(free * SHARE_OF_DEVICE)
