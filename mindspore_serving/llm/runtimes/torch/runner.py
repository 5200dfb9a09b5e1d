"""A language model computed by PyTorch, step by step; `opening` says on which devices and in which
dtypes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.models import Decoder
from mindspore_serving.llm.models.ops import AttentionSpec, Inputs
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.runtimes.layout import Layout, LimitedRunner, RunnerLimits, lay_out
from mindspore_serving.llm.runtimes.torch.attention import (
    BEGIN,
    AttentionPath,
    GatherPath,
    PagedCache,
)
from mindspore_serving.llm.runtimes.torch.graphs import (
    POSITION,
    SEQUENCE,
    SLOT,
    TOKEN,
    Capture,
    DecodeGraphs,
    Frame,
    batch_sizes,
)
from mindspore_serving.llm.runtimes.torch.lora import Adapters, chosen_adapters
from mindspore_serving.llm.runtimes.torch.ops import Pass, TorchOps, Weights
from mindspore_serving.llm.runtimes.torch.transfer import Readback, upload
from mindspore_serving.llm.step import Logits, Step, Vectors

Compute: TypeAlias = Callable[[TorchOps, Layout], Logits]


@dataclass(frozen=True, slots=True)
class TorchModel:
    """A definition with its weights, and what it is computed in and on."""

    spec: ModelSpec
    decoder: Decoder
    weights: Weights
    adapters: Adapters
    dtype: torch.dtype
    kv_dtype: torch.dtype
    device: str


class TorchRunner(LimitedRunner):
    """A `Runner`.  Its cache is allocated when it is made, with one block more than `num_blocks`,
    for the padding of a batch.  `path` None gathers; up to `num_rows` logits come back through
    pinned memory."""

    def __init__(
        self,
        model: TorchModel,
        limits: RunnerLimits,
        path: AttentionPath | None = None,
        *,
        num_rows: int = 1,
    ) -> None:
        super().__init__(limits)
        spec = model.spec
        shape = (limits.num_blocks + 1, limits.block_size, spec.num_kv_heads, spec.head_dim)
        self._model = model
        self._path = path or GatherPath(limits.block_size)
        self._cache = PagedCache(shape, spec.num_layers, dtype=model.kv_dtype, device=model.device)
        self._ops: TorchOps | None = TorchOps(
            model.weights, self._cache, model.dtype, model.adapters
        )
        self._graphs: DecodeGraphs | None = None
        self._readback = Readback(num_rows, model.device)
        self.hidden_size = spec.hidden_size

    def run(self, step: Step) -> Logits:
        """As `Runner.run`.  Raises ServingError, also for what PyTorch raises."""
        return self._run(step, self._logits)

    def embed(self, step: Step) -> Vectors:
        """As `EmbeddingRunner.embed`."""
        return self._run(step, self._hidden)

    def use_graphs(self, capture: Capture, most: int) -> None:
        """From now on, compute steps of up to `most` sequences with one new token each by graphs
        that `capture` records.  Raises RuntimeError, also for what CUDA cannot record."""
        limits = self._limits
        width = -(-limits.max_model_len // limits.block_size)
        frame = Frame(
            most, width, limits.vocab_size, limits.block_size, limits.num_blocks, self._model.device
        )
        graphs = DecodeGraphs(self._decoded, frame)
        with self._computing():
            graphs.capture(capture, batch_sizes(most))
        self._graphs = graphs

    def _run(self, step: Step, compute: Compute) -> Logits:
        if self._ops is None:
            raise ServingError("the runner is closed")
        layout = lay_out(step, self._limits)
        try:
            with self._computing():
                self._copy(step)
                return compute(self._ops, layout)
        except (RuntimeError, IndexError) as error:
            if isinstance(error, ServingError):
                raise
            raise ServingError(f"a step of {step.num_tokens} tokens failed: {error}") from error

    def close(self) -> None:
        """Drop cache and weights.  A closed runner refuses every step."""
        self._ops = None
        self._graphs = None
        self._cache.layers.clear()
        self._model.weights.clear()
        self._model.adapters.clear()
        if self._model.device != "cpu":
            torch.cuda.empty_cache()

    @property
    def attention_specs(self) -> set[AttentionSpec]:
        """Of the layers that have been computed."""
        return set() if self._ops is None else self._ops.specs

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Every thread has a device of its own, which kernels are launched on."""
        is_cuda = self._model.device != "cpu"
        device = torch.cuda.device(self._model.device) if is_cuda else nullcontext()
        with device, torch.inference_mode():
            yield

    def _copy(self, step: Step) -> None:
        if step.copies:
            (copies,) = upload([np.array(step.copies)], self._model.device)
            self._cache.copy(*copies.unbind(1))

    def _logits(self, ops: TorchOps, layout: Layout) -> Logits:
        if not layout.spans:
            return np.zeros((0, self.vocab_size), np.float32)
        logits = self._graphs.run(layout) if self._graphs is not None else None
        return self._readback(self._pass(ops, layout) if logits is None else logits)

    def _hidden(self, ops: TorchOps, layout: Layout) -> Vectors:
        if not layout.spans:
            return np.zeros((0, self.hidden_size), np.float32)
        self._pass(ops, layout)
        if ops.last_hidden is None:
            raise RuntimeError("the definition does not say what its hidden state is")
        return self._readback(ops.last_hidden)

    def _pass(self, ops: TorchOps, layout: Layout) -> torch.Tensor:
        plan, chosen = self._path.plan(layout), chosen_adapters(layout)
        inputs = (layout.token_ids, layout.positions, layout.rows)
        token_ids, positions, rows, slots, *rest = upload(
            [*inputs, layout.slots, *chosen.values(), *plan.arrays], self._model.device
        )
        adapters = tuple(zip(chosen, rest, strict=False))
        ops.begin(Pass(slots, plan.attention(rest[len(chosen) :]), adapters))
        logits: torch.Tensor = self._model.decoder(
            ops, self._model.spec, Inputs(token_ids, positions, rows)
        )
        return logits

    def _decoded(self, rows: torch.Tensor) -> torch.Tensor:
        """As `graphs.Compute`."""
        if self._ops is None:
            raise ServingError("the runner is closed")
        sequences = rows[:, SEQUENCE:]
        self._ops.begin(Pass(rows[:, SLOT], self._path.decoding(sequences)))
        inputs = Inputs(rows[:, TOKEN], rows[:, POSITION], sequences[:, BEGIN])
        logits: torch.Tensor = self._model.decoder(self._ops, self._model.spec, inputs)
        return logits
