"""Latent attention whose cache has latent vectors, as keys with rotated features and as values.

The matrix that expands a latent vector is applied to queries before attention, and to results after
it, so that all heads share one key and one value, which is the latent vector.
"""

from collections.abc import Mapping
from dataclasses import replace

from openvino import opset13 as opset

from mindspore_serving.llm.models.ops import AttentionSpec, latent_sizes
from mindspore_serving.llm.runtimes.openvino.attention import paged_attention
from mindspore_serving.llm.runtimes.openvino.nodes import Node, i64, reshaped


def latent_attention(
    q: tuple[Node, Node], key: tuple[Node, Node], matrices: tuple[Node, Node],
    cache: tuple[Node, Node], spec: AttentionSpec, *, step: Mapping[str, Node],
) -> Node:  # fmt: skip
    """Build `Ops.latent_attention`.

    `matrices` are [heads, plain, rank] and [heads, value, rank].
    """
    latent, heads = latent_sizes(spec), spec.num_heads
    plain = reshaped(q[0], -1, heads, latent.plain)
    rotated = reshaped(q[1], -1, heads, latent.rotated)
    queries = _by_head(opset.matmul(_by_head(plain), matrices[0], False, False))
    width = latent.kv_rank + latent.rotated
    queries = reshaped(opset.concat([queries, rotated], -1), -1, heads * width)
    shared = replace(spec, num_kv_heads=1, head_dim=width, latent=None)
    qkv = (queries, opset.concat(list(key), -1), key[0])
    out = paged_attention(qkv, cache, shared, step=step, value_dim=latent.kv_rank)
    out = opset.matmul(_by_head(reshaped(out, -1, heads, latent.kv_rank)), matrices[1], False, True)
    return reshaped(_by_head(out), -1, heads * latent.value)


def _by_head(x: Node) -> Node:
    """Swap tokens and heads."""
    return opset.transpose(x, i64(1, 0, 2))
