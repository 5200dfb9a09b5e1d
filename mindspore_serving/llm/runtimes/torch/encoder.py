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
from mindspore_serving.llm.runtimes.torch.opening import DTYPES, open_device, set_num_threads
from mindspore_serving.llm.runtimes.torch.ops import Tensor, TorchOps
from mindspore_serving.llm.runtimes.torch.states import StateCache
from mindspore_serving.llm.runtimes.torch.weights import TorchWeights
from mindspore_serving.llm.step import Vectors


def open_encoder(directory: str | Path, config: EngineConfig) -> "TorchEncoder":
    """Open the encoder in `directory`, with its weights loaded.

    Of `config`: `device`, `dtype` ("auto" is f32), `num_threads`, `max_model_len`.

    Raises StartError: an unsupported option, a broken or unknown checkpoint.
    """
    set_num_threads(config)
    model = open_encoder_model(directory, config)
    device = open_device(config.device)
    runner = TorchEncoder(model, DTYPES.get(config.dtype, torch.float32), device)
    with first_step():
        runner.run([[0]])
    return runner


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Cells of a batch's padded rectangle, [B, L], in attention; see `EncoderLayout`."""

    token_of_cell: Tensor  # [B, L]
    cell_of_token: Tensor  # [T]
    is_token: Tensor  # [B, 1, 1, L]


class TorchEncoderOps(TorchOps):
    """`Ops` without a cache, whose attention sees complete prompts."""

    def __init__(self, weights: TorchWeights, dtype: torch.dtype, device: str) -> None:
        no_cache = TorchCache((0, 1), {}, dtype=dtype, device=device)
        super().__init__(weights, (no_cache, StateCache(None, 0, device)), dtype, TorchAdapters())
        self.rectangle: Rectangle | None = None
        self._bias: Tensor | None = None  # of the scores by distance, [heads, L, L]

    def add_distances(self, table: Tensor, rows: Sequence[int]) -> None:
        rectangle = self.rectangle
        assert rectangle is not None
        columns = torch.arange(rectangle.token_of_cell.shape[1], device=table.device)
        distances = columns - columns[:, None] + len(rows) // 2
        self._bias = table[torch.tensor(rows, device=table.device)[distances]].permute(2, 0, 1)

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        rectangle = self.rectangle
        if rectangle is None:
            raise RuntimeError("attention outside of a pass")
        counts = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        pairs = zip((q, k, v), counts, strict=True)
        q, k, v = (
            x[rectangle.token_of_cell].unflatten(-1, (n, -1)).transpose(1, 2) for x, n in pairs
        )
        mask = rectangle.is_token
        if spec.window:
            columns = torch.arange(mask.shape[-1], device=mask.device)
            mask = mask & ((columns[:, None] - columns).abs() < spec.window)
        if self._bias is not None:
            mask = self._bias.masked_fill(~mask, -torch.inf)
        attend = functional.scaled_dot_product_attention
        is_grouped = spec.num_kv_heads != spec.num_heads
        out = attend(q, k, v, attn_mask=mask, scale=spec.scale, enable_gqa=is_grouped)
        return out.transpose(1, 2).flatten(2).flatten(0, 1)[rectangle.cell_of_token]


class TorchEncoder:
    """An `EncoderRunner` in PyTorch."""

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
                    self._upload(layout.token_of_cell),
                    self._upload(layout.cell_of_token),
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
