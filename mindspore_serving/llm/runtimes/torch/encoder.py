"""Encoders in eager PyTorch, on a CPU or a CUDA device."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.decoder import encoder
from mindspore_serving.llm.models.ops import AttentionSpec, DecoderInputs
from mindspore_serving.llm.runtimes.capacity import first_step
from mindspore_serving.llm.runtimes.encoding import (
    EncoderModel,
    lay_out_prompts,
    open_encoder_model,
)
from mindspore_serving.llm.runtimes.torch.attention import TorchCache
from mindspore_serving.llm.runtimes.torch.lora import TorchAdapters
from mindspore_serving.llm.runtimes.torch.opening import DTYPES, open_device, prepare
from mindspore_serving.llm.runtimes.torch.ops import Tensor, TorchOps
from mindspore_serving.llm.runtimes.torch.states import StateCache
from mindspore_serving.llm.runtimes.torch.weights import TorchWeights
from mindspore_serving.llm.step import Vectors


def open_encoder(directory: str | Path, config: EngineConfig) -> "TorchEncoder":
    """The encoder in `directory`, its weights loaded.

    Of `config`: `device`, `dtype` ("auto" is f32), `num_threads`, `max_model_len`.

    Raises StartError: an option that it does not have, a broken or unknown checkpoint.
    """
    prepare(config)
    model = open_encoder_model(directory, config)
    device = open_device(config.device)
    runner = TorchEncoder(model, DTYPES.get(config.dtype, torch.float32), device)
    with first_step():
        runner.run([[0]])
    return runner


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Where a batch's tokens are in attention; see `EncoderLayout`."""

    places: Tensor  # [B, L]
    back: Tensor  # [T]
    is_token: Tensor  # [B, 1, 1, L]


class TorchEncoderOps(TorchOps):
    """`Ops` without a cache, whose attention sees the whole prompt."""

    def __init__(self, weights: TorchWeights, dtype: torch.dtype, device: str) -> None:
        no_cache = TorchCache((0, 1), {}, dtype=dtype, device=device)
        super().__init__(weights, (no_cache, StateCache(None, 0, device)), dtype, TorchAdapters())
        self.rectangle: Rectangle | None = None
        self._added: Tensor | None = None  # to scores, [heads, L, L]

    def add_distances(self, table: Tensor, rows: Sequence[int]) -> None:
        place = self.rectangle
        assert place is not None
        columns = torch.arange(place.places.shape[1], device=table.device)
        places = columns - columns[:, None] + len(rows) // 2
        self._added = table[torch.tensor(rows, device=table.device)[places]].permute(2, 0, 1)

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        place = self.rectangle
        if place is None:
            raise RuntimeError("attention outside of a pass")
        counts = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        pairs = zip((q, k, v), counts, strict=True)
        q, k, v = (x[place.places].unflatten(-1, (n, -1)).transpose(1, 2) for x, n in pairs)
        mask = place.is_token
        if spec.window:
            columns = torch.arange(mask.shape[-1], device=mask.device)
            mask = mask & ((columns[:, None] - columns).abs() < spec.window)
        if self._added is not None:
            mask = self._added.masked_fill(~mask, -torch.inf)
        attend = functional.scaled_dot_product_attention
        is_grouped = spec.num_kv_heads != spec.num_heads
        out = attend(q, k, v, attn_mask=mask, scale=spec.scale, enable_gqa=is_grouped)
        return out.transpose(1, 2).flatten(2).flatten(0, 1)[place.back]


class TorchEncoder:
    """An `EncoderRunner`."""

    def __init__(self, model: EncoderModel, dtype: torch.dtype, device: str) -> None:
        self.vocab_size = model.spec.vocab_size
        self.hidden_size = model.spec.hidden_size
        self.max_model_len = model.max_model_len
        self.num_types = model.num_types
        self._model = model
        self._device = device
        self._weights = TorchWeights(model.checkpoint, dtype, device)
        self._ops: TorchEncoderOps | None = TorchEncoderOps(self._weights, dtype, device)

    def run(
        self, prompts: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> Vectors:
        ops, spec = self._ops, self._model.spec
        if ops is None:
            raise ServingError("the runner is closed")
        layout = lay_out_prompts(prompts, types=types)
        try:
            with torch.inference_mode():
                is_token = torch.from_numpy(layout.is_token).to(self._device)
                ops.rectangle = Rectangle(
                    self._upload(layout.places),
                    self._upload(layout.back),
                    is_token[:, None, None, :],
                )
                token_ids = self._upload(layout.token_ids)
                positions, kinds = self._upload(layout.positions), self._upload(layout.types)
                inputs = DecoderInputs(token_ids, positions, None, types=kinds)
                states: Tensor = encoder(ops, spec, inputs)
                vectors: Vectors = states.float().cpu().numpy()
        except (RuntimeError, IndexError) as error:
            if isinstance(error, ServingError):
                raise
            raise ServingError(f"a step of {layout.num_tokens} tokens failed: {error}") from error
        return vectors

    def close(self) -> None:
        self._ops = None
        self._weights.clear()
        if self._device != "cpu":
            torch.cuda.empty_cache()

    def _upload(self, indices: object) -> Tensor:
        return torch.as_tensor(indices, dtype=torch.int64).to(self._device)
