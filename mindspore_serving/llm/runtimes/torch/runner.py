"""Runner of a language model in PyTorch; `opening` chooses device and dtypes."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.models import Decoder
from mindspore_serving.llm.models.ops import AttentionSpec, DecoderInputs
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.models.stage_arrays import received_width, sent_width
from mindspore_serving.llm.parallel.part import RankPart
from mindspore_serving.llm.runtimes.adapters import BaseModel, Changes
from mindspore_serving.llm.runtimes.layout import (
    Indices,
    Layout,
    LimitedRunner,
    RunnerLimits,
    lay_out,
)
from mindspore_serving.llm.runtimes.torch.attention import (
    BEGIN,
    AttentionPath,
    GatherPath,
    TorchCache,
)
from mindspore_serving.llm.runtimes.torch.collectives import DeviceExchange
from mindspore_serving.llm.runtimes.torch.graphs import (
    POSITION,
    SEQUENCE,
    SLOT,
    TOKEN,
    Capture,
    DecodeGraphs,
    GraphShape,
    batch_sizes,
)
from mindspore_serving.llm.runtimes.torch.invariant import InvariantOps
from mindspore_serving.llm.runtimes.torch.invariant_attention import InvariantPath
from mindspore_serving.llm.runtimes.torch.lora import AdapterTokens, TorchAdapters, adapter_tokens
from mindspore_serving.llm.runtimes.torch.ops import Caches, TorchOps, TorchPass, TorchRankOps
from mindspore_serving.llm.runtimes.torch.states import StateCache, state_pieces
from mindspore_serving.llm.runtimes.torch.weights import TorchWeights
from mindspore_serving.llm.step import Logits, Step, Vectors

ALIGNED = 2  # int64 numbers in 16 bytes: Triton recompiles kernels for less aligned pointers


def upload(arrays: Sequence[Indices], device: str) -> list[torch.Tensor]:
    """Copy `arrays` to the device as int64, in order; the results are views of one tensor."""
    sizes = [-(-array.size // ALIGNED) * ALIGNED for array in arrays]
    host = torch.empty(sum(sizes), dtype=torch.int64, pin_memory=device != "cpu")
    flat = host.numpy()
    begin = 0
    for array, size in zip(arrays, sizes, strict=True):
        flat[begin : begin + array.size] = array.reshape(-1)
        begin += size
    parts = host.to(device, non_blocking=True).split(sizes)
    return [part[: array.size].view(array.shape) for part, array in zip(parts, arrays, strict=True)]


class Readback:
    """Copies float32 rows to the host; up to `num_rows` through reused pinned memory."""

    def __init__(self, num_rows: int, device: str) -> None:
        self._num_rows = 0 if device == "cpu" else num_rows
        self._pinned = torch.empty(0)

    def __call__(self, rows: torch.Tensor) -> Logits:
        """Return `rows`, [rows, features], once they are computed."""
        rows = rows.float()
        array: Logits
        if not 0 < len(rows) <= self._num_rows:
            array = rows.cpu().numpy()
            return array
        if self._pinned.numel() < rows.numel():
            shape = (self._num_rows, rows.shape[1])
            self._pinned = torch.empty(shape, dtype=torch.float32, pin_memory=True).view(-1)
        pinned = self._pinned[: rows.numel()].view(rows.shape)
        pinned.copy_(rows, non_blocking=True)
        torch.cuda.current_stream(rows.device).synchronize()
        array = pinned.numpy()
        return array


@dataclass(frozen=True, slots=True)
class TorchModel:
    """A definition with its weights, dtypes and device."""

    spec: ModelSpec
    decoder: Decoder
    weights: TorchWeights
    adapters: TorchAdapters
    dtype: torch.dtype
    kv_dtype: torch.dtype
    device: str
    part: RankPart | None = None  # the part of the model in this process; None is all
    is_invariant: bool = False  # a row's result does not depend on the other rows
    keeps_latent: bool = False  # the cache of latent attention has latent vectors
    collectives: DeviceExchange | None = None  # of ranks with a device each

    @property
    def cached_heads(self) -> dict[int, tuple[int, int]]:
        """Number of key-value heads and features of each in the cache, by layer."""
        latent = self.spec.latent if self.keeps_latent else None
        if latent is not None:
            return dict.fromkeys(self.spec.attention_layers, (1, latent.kv_rank + latent.rotated))
        return {layer: self.spec.heads[layer] for layer in self.spec.attention_layers}

    def ops(self, caches: Caches, *, is_fused: bool) -> TorchOps:
        """Return the operations to compute with; fused ones by Triton's kernels if `is_fused`."""
        if self.is_invariant:
            return InvariantOps(self.weights, caches, self.dtype, self.adapters)
        kind, rank_kind = TorchOps, TorchRankOps
        if is_fused:
            from mindspore_serving.llm.runtimes.torch.fused import FusedOps, FusedRankOps

            kind, rank_kind = FusedOps, FusedRankOps
        if self.part is None or self.part.exchange is None:
            return kind(self.weights, caches, self.dtype, self.adapters)
        shared = self.part.exchange, self.part.experts
        ops = rank_kind(self.weights, caches, self.dtype, self.adapters, shared)
        ops.collectives = self.collectives
        return ops


class TorchRunner(LimitedRunner):
    """A `StoringRunner`; an `AdaptedRunner` if it has a `base`.

    Its cache has one block more than `num_blocks`, for padding.  `path` is that of Triton's
    attention kernel, with which other operations are fused; None gathers keys and values.  Up to
    `num_rows` logits are read back through pinned memory.
    """

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
        blocks = (limits.num_blocks + 1, limits.block_size)
        heads, latent = model.cached_heads, spec.latent if model.keeps_latent else None
        self._model = model
        default = InvariantPath if model.is_invariant else GatherPath
        self._path: AttentionPath = path or default(limits.block_size)
        self._cache = TorchCache(
            blocks, heads, dtype=model.kv_dtype, device=model.device,
            latent=latent.kv_rank if latent else 0,
        )  # fmt: skip
        num_tensors = 1 if latent else 2
        self.block_bytes = num_tensors * sum(map(math.prod, heads.values())) * limits.block_size
        self.block_bytes *= model.kv_dtype.itemsize
        self.cache_memory = replace(limits.memory, can_release=model.device == "cpu")
        self.block_format = f"torch {torch.__version__} {model.device} {model.dtype} "
        self.block_format += f"{model.kv_dtype} {limits.block_size} {heads}"
        self._states = StateCache(spec.state, limits.num_slots, model.device)
        self.state_bytes = self._states.state_bytes
        self._ops: TorchOps | None = model.ops(
            (self._cache, self._states), is_fused=path is not None
        )
        self._graphs: DecodeGraphs | None = None
        self._readback = Readback(num_rows, model.device)
        self.experts = model.part.experts if model.part else None
        self.received_width, self.sent_width = received_width(spec), sent_width(spec)
        self.hidden_size = 0 if spec.kept_layers else spec.hidden_size
        self.rope_switch = spec.rope.switch
        self.base: BaseModel | None = None

    def load_adapter(self, adapter: int, changes: Changes) -> None:
        self._model.adapters.load(adapter, changes)

    def unload_adapter(self, adapter: int) -> None:
        self._model.adapters.unload(adapter)

    def run(self, step: Step) -> Logits:
        """Run a step as `Runner.run` does.  Raises ServingError, also for PyTorch's errors."""
        return self.compute(step)

    def embed(self, step: Step) -> Vectors:
        return self.compute(step, embeds=True)

    def compute(
        self, step: Step, hidden_states: Vectors | None = None, *, embeds: bool = False
    ) -> Vectors:
        """Run a step as `LayerStage.compute` does."""
        if self._ops is None:
            raise ServingError("the runner is closed")
        layout = lay_out(step, self._limits)
        try:
            with self._computing():
                if step.copies:
                    (copies,) = upload([np.array(step.copies)], self._model.device)
                    self._cache.copy(*copies.unbind(1))
                if not layout.spans:
                    width = self.hidden_size if embeds else self.vocab_size
                    return np.zeros((0, width), np.float32)
                result = self._computed(self._ops, layout, hidden_states, embeds=embeds)
                if self._model.collectives is not None:
                    self._model.collectives.wait()
                return self._readback(result)
        except (RuntimeError, IndexError) as error:
            if isinstance(error, ServingError):
                raise
            raise ServingError(f"a step of {step.num_tokens} tokens failed: {error}") from error

    def hidden_states(self) -> Vectors:
        """Return the hidden states of the last step, as `HiddenRunner` does."""
        assert self._ops is not None
        assert self._ops.last_hidden is not None
        with self._computing():
            hidden: Vectors = self._ops.last_hidden.float().cpu().numpy()
        return hidden

    def read_block(self, block: int) -> memoryview:
        with self._computing():
            return self._cache.read(block)

    def write_block(self, block: int, content: memoryview) -> None:
        with self._computing():
            self._cache.replace(block, content)

    def read_state(self, slot: int) -> memoryview:
        with self._computing():
            return self._states.read(slot)

    def write_state(self, slot: int, content: memoryview) -> None:
        with self._computing():
            self._states.replace(slot, content)

    def release_blocks(self, blocks: Sequence[int]) -> None:
        """Return the memory of `blocks` to the system, on a CPU."""
        self._cache.release(blocks)

    def use_graphs(self, capture: Capture, max_batch: int) -> None:
        """Capture CUDA graphs of steps of up to `max_batch` sequences with one new token each.

        `capture` records them.  Raises RuntimeError, also for operations that CUDA cannot capture.
        """
        limits = self._limits
        width = -(-limits.max_model_len // limits.block_size)
        frame = GraphShape(
            max_batch,
            width,
            limits.vocab_size,
            limits.block_size,
            limits.num_blocks,
            self._model.device,
        )
        graphs = DecodeGraphs(self._decoded, frame)
        with self._computing():
            graphs.capture(capture, batch_sizes(max_batch))
        self._graphs = graphs

    def close(self) -> None:
        """Drop cache and weights.  A closed runner refuses every step."""
        self._ops = None
        self._graphs = None
        self._cache.clear()
        self._states.layers.clear()
        self._model.weights.clear()
        self._model.adapters.clear()
        if self._model.collectives is not None:
            self._model.collectives.close()
        if self._model.device != "cpu":
            torch.cuda.empty_cache()

    @property
    def attention_specs(self) -> set[AttentionSpec]:
        """Kinds of attention of the layers that have been computed."""
        return set() if self._ops is None else self._ops.specs

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Select the device for this thread, and disable gradients."""
        is_cuda = self._model.device != "cpu"
        device = torch.cuda.device(self._model.device) if is_cuda else nullcontext()
        with device, torch.inference_mode():
            yield

    def _computed(
        self, ops: TorchOps, layout: Layout, hidden_states: Vectors | None, *, embeds: bool
    ) -> torch.Tensor:
        """Return the logits, or with `embeds` the hidden states, of the requested tokens."""
        if self._graphs is not None and not embeds:
            logits = self._graphs.run(layout)
            if logits is not None:
                return logits
        result = self._pass(ops, layout, hidden_states)
        if not embeds or not self._model.spec.is_last:
            return result
        if ops.last_hidden is None:
            raise RuntimeError("the definition does not call ops.hidden")
        if self._model.spec.keeps_hidden:
            return ops.last_hidden[torch.from_numpy(layout.rows).to(self._model.device)]
        return ops.last_hidden

    def _pass(self, ops: TorchOps, layout: Layout, hidden_states: Vectors | None) -> torch.Tensor:
        plan, adapters = self._path.plan(layout), adapter_tokens(layout)
        numbers = (
            *(layout.token_ids, layout.positions, layout.rows),
            *(layout.uses_long_rope, layout.slots),
        )
        token_arrays = list(chain.from_iterable(adapters.values()))
        token_ids, positions, rows, uses_long_rope, slots, *rest = upload(
            [*numbers, *token_arrays, *plan.arrays], self._model.device
        )
        token_tensors, plan_tensors = rest[: len(token_arrays)], rest[len(token_arrays) :]
        chosen = tuple(map(AdapterTokens, adapters, token_tensors[::2], token_tensors[1::2]))
        pieces = state_pieces(layout) if self._model.spec.state else ()
        ops.begin(TorchPass(slots, plan.attention(plan_tensors), chosen, pieces))
        stage_input = self._hidden_of(layout, hidden_states)
        inputs = DecoderInputs(
            token_ids, positions, rows, stage_input, uses_long_rope=uses_long_rope
        )
        result = self._decode(ops, replace(inputs, **self._of_images(layout)))
        if self.experts is not None and ops.routed:
            self.experts.count(torch.cat(ops.routed, 1).numpy())
        return result

    def _hidden_of(self, layout: Layout, hidden_states: Vectors | None) -> torch.Tensor | None:
        """Return the output of the stage before this one; zeros while weights are loaded."""
        spec = self._model.spec
        if spec.is_first:
            return None
        if hidden_states is None:
            hidden_states = np.zeros((len(layout.token_ids), self.received_width), np.float32)
        return torch.from_numpy(hidden_states).to(self._model.device, self._model.dtype)

    def _of_images(self, layout: Layout) -> dict[str, torch.Tensor]:
        """Return the inputs of `DecoderInputs` that images have, if there are any."""
        features, device = layout.features, self._model.device
        inputs = {}
        if layout.rope_positions is not None:
            inputs["rope_positions"] = torch.as_tensor(layout.rope_positions, device=device)
        if self._model.part is not None:
            features = self._model.part.share_features(features)
        if features is not None and self._model.spec.is_first:
            inputs["features"] = torch.as_tensor(features.vectors, device=device)
            inputs["feature_rows"] = torch.as_tensor(features.positions, device=device)
        return inputs

    def _decoded(self, rows: torch.Tensor) -> torch.Tensor:
        """Compute the logits of a decoding step, as `graphs.Compute`."""
        if self._ops is None:
            raise ServingError("the runner is closed")
        sequences = rows[:, SEQUENCE:]
        self._ops.begin(TorchPass(rows[:, SLOT], self._path.decoding(sequences)))
        inputs = DecoderInputs(rows[:, TOKEN], rows[:, POSITION], sequences[:, BEGIN])
        return self._decode(self._ops, inputs)

    def _decode(self, ops: TorchOps, inputs: DecoderInputs) -> torch.Tensor:
        logits: torch.Tensor = self._model.decoder(ops, self._model.spec, inputs)
        return logits
