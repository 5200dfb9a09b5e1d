"""A Llama-shaped decoder as a MindSpore graph for MindIR files: any batch, any past.

The graph has no state: keys and values of the past are inputs, those of the new tokens outputs, and
its caller keeps the cache.  Knows no file and no scheduler.

MindSpore's graph compiler reads its methods, so they use only what the compiler supports.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.runtimes.mindir.export_weights import roles
from mindspore_serving.llm.runtimes.mindir.library import mindspore, ops

Tensor: TypeAlias = Any  # a mindspore.Tensor
Matrices: TypeAlias = Mapping[str, npt.NDArray[np.float32]]


class DecoderCell(mindspore.nn.Cell):  # type: ignore[misc]
    """The decoder of `spec` over B sequences with S new tokens each, after T tokens of the cache.

    Inputs: token_ids and positions, int32 [B, S]; rows, int32 [R], indices of the B * S tokens
    whose logits are returned; mask, float32 [B, S, T + S], added to the scores; then keys and
    values of each layer, float32 [kv_heads, B, T, head_dim], already rotated by their positions.

    Outputs: logits [R, vocab]; the new keys and values, [layers, kv_heads, B, S, head_dim] each.

    If `spec` has the layers of a stage, a stage that is not the first takes hidden states, float32
    [B, S, hidden], in place of token_ids; one that is not the last returns those of the rows, [R,
    hidden], in place of logits.

    `matrices` are `export_weights.Matrices`.
    """

    def __init__(self, spec: ModelSpec, matrices: Matrices) -> None:
        super().__init__()
        self.heads = spec.num_heads
        self.kv_heads = spec.num_kv_heads
        self.groups = spec.num_heads // spec.num_kv_heads
        self.head_dim = spec.head_dim
        self.half = len(spec.rope.inv_freq)
        self.q_size = spec.q_size
        self.kv_size = spec.kv_size
        self.mlp_size = spec.intermediate_size
        self.num_layers = len(spec.layers)
        self.hidden_size = spec.hidden_size
        self.is_first = spec.is_first
        self.is_last = spec.is_last
        self.eps = spec.norm_eps
        self.attention_scale = spec.attention_scale
        self.has_qkv_bias = spec.qkv_bias
        self.has_output_bias = spec.output_bias
        self.has_gate_bias = spec.gate_bias
        self.has_down_bias = spec.mlp_bias
        self.has_qk_norm = spec.qk_norm
        self.rope_scale = spec.rope.scale
        self.inv_freq = mindspore.Tensor(np.array(spec.rope.inv_freq, np.float32))
        if spec.is_first:
            self.embedding = _parameter("embedding", matrices)
        if spec.is_last:
            self.norm = _parameter("norm", matrices)
            self.head = _parameter("head", matrices)
        for role in roles(spec):
            parameters = [_parameter(f"{i}.{role}", matrices) for i in spec.layers]
            setattr(self, role, mindspore.ParameterTuple(parameters))
        self.matmul = ops.MatMul()  # ops.matmul is 20 times slower with dynamic shapes
        self.product = ops.BatchMatMul()
        self.product_transposed = ops.BatchMatMul(transpose_b=True)

    def construct(
        self,
        tokens_or_hidden: Tensor,
        positions: Tensor,
        rows: Tensor,
        mask: Tensor,
        *cache: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute a call; see the class for inputs and outputs."""
        batch, count = positions.shape
        mask = mask.expand_dims(1)
        angles = positions.reshape(-1, 1).astype(mindspore.float32) * self.inv_freq
        angles = angles.expand_dims(1)
        cos = ops.cos(angles) * self.rope_scale
        sin = ops.sin(angles) * self.rope_scale
        if self.is_first:
            x = ops.gather(self.embedding, tokens_or_hidden.reshape(-1), 0)
        else:
            x = tokens_or_hidden.reshape(-1, self.hidden_size)
        new_keys = []
        new_values = []
        for i in range(self.num_layers):
            q, k, v = self.projected(i, self.normed(x, self.attention_norm[i]), cos, sin)
            q = q.reshape(batch, count, self.kv_heads, self.groups, self.head_dim)
            q = q.transpose(2, 0, 3, 1, 4)
            k = k.reshape(batch, count, self.kv_heads, self.head_dim).transpose(2, 0, 1, 3)
            v = v.reshape(batch, count, self.kv_heads, self.head_dim).transpose(2, 0, 1, 3)
            out = self.attended(q, (k, v), (cache[2 * i], cache[2 * i + 1]), mask)
            out = out.transpose(1, 3, 0, 2, 4).reshape(-1, self.q_size)
            out = self.matmul(out, self.output[i])
            if self.has_output_bias:
                out = out + self.output_bias[i]
            x = x + out
            x = x + self.mlp(i, self.normed(x, self.mlp_norm[i]))
            new_keys.append(k)
            new_values.append(v)
        x = ops.gather(x, rows, 0)
        if self.is_last:
            x = self.matmul(self.normed(x, self.norm), self.head)
        return x, ops.stack(new_keys), ops.stack(new_values)

    def projected(
        self, i: int, h: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of layer `i`."""
        qkv = self.matmul(h, self.qkv[i])
        if self.has_qkv_bias:
            qkv = qkv + self.qkv_bias[i]
        q = qkv[:, : self.q_size].reshape(-1, self.heads, self.head_dim)
        k = qkv[:, self.q_size : self.q_size + self.kv_size]
        k = k.reshape(-1, self.kv_heads, self.head_dim)
        v = qkv[:, self.q_size + self.kv_size :]
        if self.has_qk_norm:
            q = self.normed(q, self.q_norm[i])
            k = self.normed(k, self.k_norm[i])
        return self.rotate(q, cos, sin), self.rotate(k, cos, sin), v

    def attended(
        self, q: Tensor, new: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor], mask: Tensor
    ) -> Tensor:
        """Attend to past and new keys.

        Their scores are side by side, as joining the keys would copy the cache.
        """
        kv_heads, batch, groups, count, head_dim = q.shape
        q = q.reshape(kv_heads, batch, -1, head_dim) * self.attention_scale
        scores = self.product_transposed(q, past[0])
        length = scores.shape[3]
        scores = ops.cat((scores, self.product_transposed(q, new[0])), -1)
        scores = scores.reshape(kv_heads, batch, groups, count, -1) + mask
        weights = ops.softmax(scores, -1).reshape(kv_heads, batch, groups * count, -1)
        out = self.product(weights[..., :length], past[1])
        out = out + self.product(weights[..., length:], new[1])
        return out.reshape(kv_heads, batch, groups, count, head_dim)

    def mlp(self, i: int, h: Tensor) -> Tensor:
        """Compute the feed-forward block of layer `i`."""
        gate_up = self.matmul(h, self.gate_up[i])
        if self.has_gate_bias:
            gate_up = gate_up + self.gate_up_bias[i]
        gate = gate_up[:, : self.mlp_size]
        out = self.matmul(ops.silu(gate) * gate_up[:, self.mlp_size :], self.down[i])
        if self.has_down_bias:
            out = out + self.down_bias[i]
        return out

    def normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """Apply an RMS norm."""
        return x * ops.rsqrt(ops.mean(x * x, -1, True) + self.eps) * weight

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate the heads' features by their positions."""
        first = x[..., : self.half]
        second = x[..., self.half : 2 * self.half]
        rotated = ops.cat((first * cos - second * sin, second * cos + first * sin), -1)
        if self.head_dim > 2 * self.half:
            rotated = ops.cat((rotated, x[..., 2 * self.half :]), -1)
        return rotated


class ArgmaxCell(mindspore.nn.Cell):  # type: ignore[misc]
    """Token of the largest logit of each row, int32 [R], of logits [R, vocab]."""

    def construct(self, logits: Tensor) -> Tensor:
        return ops.argmax(logits, -1).astype(mindspore.int32)


class TopKCell(mindspore.nn.Cell):  # type: ignore[misc]
    """Largest logits [R, vocab] / temperature [R, 1], and their int32 tokens: [R, count] each."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def construct(self, logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        return ops.topk(logits / temperature, self.count)  # type: ignore[no-any-return]


def _parameter(name: str, matrices: Matrices) -> Any:
    array = np.ascontiguousarray(matrices[name])
    return mindspore.Parameter(mindspore.Tensor(array), name=name, requires_grad=False)
