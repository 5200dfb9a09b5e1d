"""MindIR files like those that MindFormers exports for llm-serving, of operators that a CPU has.

The inputs have its names and order.  Keys and values are parameters [blocks, block size, heads,
head dim] inside, which ScatterNdUpdate writes in place of ReshapeAndCache.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving.llm.checkpoint.conversion import write_other_files
from mindspore_serving.llm.models.opening import open_definition
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.runtimes.mindir.export_cell import DecoderCell
from mindspore_serving.llm.runtimes.mindir.export_weights import Matrices
from mindspore_serving.llm.runtimes.mindir.graphs import dynamic
from mindspore_serving.llm.runtimes.mindir.library import CPU, mindspore, ops, use_device

HIDDEN = -1e30


class _PagedCell(DecoderCell):
    def __init__(self, spec: ModelSpec, matrices: Matrices, sizes: Sequence[int]) -> None:
        super().__init__(spec, matrices)
        num_blocks, self.block_size, self.table_width = sizes
        shape = (num_blocks, self.block_size, spec.num_kv_heads, spec.head_dim)
        for side in ("key_cache", "value_cache"):
            parameters = [
                mindspore.Parameter(
                    mindspore.Tensor(np.zeros(shape, np.float32)),
                    name=f"model.layers.{layer}.attention.{side}",
                    requires_grad=False,
                )
                for layer in spec.layers
            ]
            setattr(self, side, mindspore.ParameterTuple(parameters))
        self.scatter = ops.ScatterNdUpdate()
        self.key_positions = mindspore.Tensor(
            np.arange(self.table_width * self.block_size)[None], mindspore.int32
        )

    def written(self, cache: Any, slots: Any, new: Any) -> Any:
        """Write `new`, [tokens, kv_heads * head_dim], to `slots`; return the cache."""
        slots = slots.astype(mindspore.int32).reshape(-1, 1)
        places = ops.cat((slots // self.block_size, slots % self.block_size), 1)
        new = new.reshape(-1, self.kv_heads, self.head_dim)
        return ops.depend(cache, self.scatter(cache, places, new))

    def angles(self, positions: Any) -> tuple[Any, Any]:
        angles = positions.reshape(-1, 1).astype(mindspore.float32) * self.inv_freq
        angles = angles.expand_dims(1)
        return ops.cos(angles) * self.rope_scale, ops.sin(angles) * self.rope_scale

    def attended_to(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        """Attend from q [B, S, heads, dim] to k, v [B, T, kv_heads, dim]; mask [B, 1, S, T]."""
        batch, count = q.shape[0], q.shape[1]
        q = q.reshape(batch, count, self.kv_heads, self.groups, self.head_dim)
        q = q.transpose(2, 0, 3, 1, 4).reshape(self.kv_heads, batch, -1, self.head_dim)
        k, v = k.transpose(2, 0, 1, 3), v.transpose(2, 0, 1, 3)
        scores = self.product_transposed(q * self.attention_scale, k)
        scores = scores.reshape(self.kv_heads, batch, self.groups, count, -1) + mask
        weights = ops.softmax(scores, -1).reshape(self.kv_heads, batch, self.groups * count, -1)
        out = self.product(weights, v).reshape(
            self.kv_heads, batch, self.groups, count, self.head_dim
        )
        return out.transpose(1, 3, 0, 2, 4).reshape(-1, self.q_size)


class PrefillCell(_PagedCell):
    """One prompt."""

    def construct(self, input_ids: Any, batch_valid_length: Any, slot_mapping: Any) -> Any:
        positions = ops.cumsum(ops.ones_like(input_ids), 1) - 1
        cos, sin = self.angles(positions)
        is_later = positions.expand_dims(1) > positions.expand_dims(2)
        mask = (is_later.astype(mindspore.float32) * HIDDEN).expand_dims(1)
        x = ops.gather(self.embedding, input_ids.reshape(-1), 0)
        for i in range(self.num_layers):
            q, k, v = self.projected(i, self.normed(x, self.attention_norm[i]), cos, sin)
            written = self.written(self.key_cache[i], slot_mapping, k)
            written = ops.depend(written, self.written(self.value_cache[i], slot_mapping, v))
            q = ops.depend(q, written).reshape(1, -1, self.heads, self.head_dim)
            k = k.reshape(1, -1, self.kv_heads, self.head_dim)
            v = v.reshape(1, -1, self.kv_heads, self.head_dim)
            x = x + self.matmul(self.attended_to(q, k, v, mask), self.output[i])
            x = x + self.mlp(i, self.normed(x, self.mlp_norm[i]))
        last = ops.gather(x, batch_valid_length.astype(mindspore.int32) - 1, 0)
        return self.matmul(self.normed(last, self.norm), self.head).expand_dims(1)


class DecodeCell(_PagedCell):
    """One token of each sequence."""

    def construct(
        self, input_ids: Any, batch_valid_length: Any, block_tables: Any, slot_mapping: Any
    ) -> Any:
        lengths = batch_valid_length.astype(mindspore.int32).reshape(-1, 1)
        cos, sin = self.angles(lengths - 1)
        is_beyond = (self.key_positions >= lengths).astype(mindspore.float32) * HIDDEN
        mask = is_beyond.expand_dims(1).expand_dims(1)
        blocks = ops.maximum(block_tables, 0).reshape(-1)
        length = self.table_width * self.block_size
        x = ops.gather(self.embedding, input_ids.reshape(-1), 0)
        for i in range(self.num_layers):
            q, k, v = self.projected(i, self.normed(x, self.attention_norm[i]), cos, sin)
            keys = ops.gather(self.written(self.key_cache[i], slot_mapping, k), blocks, 0)
            values = ops.gather(self.written(self.value_cache[i], slot_mapping, v), blocks, 0)
            keys = keys.reshape(-1, length, self.kv_heads, self.head_dim)
            values = values.reshape(-1, length, self.kv_heads, self.head_dim)
            q = q.reshape(-1, 1, self.heads, self.head_dim)
            x = x + self.matmul(self.attended_to(q, keys, values, mask), self.output[i])
            x = x + self.mlp(i, self.normed(x, self.mlp_norm[i]))
        return self.matmul(self.normed(x, self.norm), self.head).expand_dims(1)


def export_like_llm_serving(
    source: Path,
    target: Path,
    *,
    prompt: int | None = None,
    batch: int | None = None,
    lengths: str = "int32",
    sizes: Sequence[int] = (40, 8, 12),
) -> None:
    """Write prefill and decode of the checkpoint `source` to `target`, with its other files.

    `sizes` are blocks, tokens in a block, and blocks of a sequence.  `prompt` and `batch` are the
    sizes of prompts and of batches that decode; None for any.
    """
    checkpoint, spec, _ = open_definition(source)
    use_device(CPU)
    i32, length = mindspore.int32, getattr(mindspore, lengths)
    target.mkdir()
    matrices = Matrices(checkpoint, spec)
    graphs = {
        "llama_prefill": (
            PrefillCell(spec, matrices, sizes),
            [dynamic((1, prompt), i32), dynamic((1,), length), dynamic((prompt,), i32)],
        ),
        "llama_inc": (
            DecodeCell(spec, matrices, sizes),
            [
                dynamic((batch, 1), i32),
                dynamic((batch,), length),
                dynamic((batch, sizes[2]), i32),
                dynamic((batch,), i32),
            ],
        ),
    }
    for name, (cell, inputs) in graphs.items():
        mindspore.export(cell, *inputs, file_name=str(target / name), file_format="MINDIR")
    write_other_files(source, target, dict(checkpoint.config))
