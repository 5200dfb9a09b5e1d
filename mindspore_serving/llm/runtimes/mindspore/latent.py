"""Latent attention whose cache keeps latent vectors, not the keys and values of every head.

The matrix that expands a latent vector is applied to queries before attention and to results after
it, so that all heads share one key (multi-query attention).  Prompts without a past are expanded
and not read back.  On Ascend it is not verified on hardware.
"""

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mindspore_serving.llm.models.ops import AttentionSpec, latent_sizes, value_heads, with_heads
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.runtimes.mindir.library import mindspore, ops
from mindspore_serving.llm.runtimes.mindspore.nodes import (
    ASCEND,
    CHUNKS,
    COMPOSED,
    PREFILL,
    Node,
)
from mindspore_serving.llm.runtimes.mindspore.primitives.attention import Positions
from mindspore_serving.llm.runtimes.mindspore.primitives.rules_experts import (
    LATENT_HEADS,
    LATENT_SIZES,
)

if TYPE_CHECKING:
    from mindspore_serving.llm.runtimes.mindspore.recording import GraphOps


def why_expanded(
    spec: ModelSpec, filling: str, composed: Collection[str], *, has_adapters: bool
) -> str:
    """Return why the cache has the keys and values of every head, "" if it has latent vectors."""
    latent = spec.latent
    if latent is None:
        return "the model has no latent attention"
    if has_adapters:
        return "adapters may change the matrix that expands latent vectors"
    if filling != ASCEND:
        return ""
    if "mla" in composed:
        return "the operator mla is composed on this device, and PagedAttention is faster"
    if (latent.kv_rank, latent.rotated) != LATENT_SIZES or spec.num_heads not in LATENT_HEADS:
        counts = ", ".join(map(str, LATENT_HEADS))
        return (
            f"the device's kernel takes latent vectors of {' + '.join(map(str, LATENT_SIZES))} "
            f"features and {counts} heads, and the model has {latent.kv_rank} + {latent.rotated} "
            f"and {spec.num_heads}"
        )
    return ""


class HeadsProduct(mindspore.nn.Cell):  # type: ignore[misc]
    """Product of each head's features with its own matrix: [T, heads, K] to [T, heads, N].

    Heads are moved to the front and back by gathering rows, as in `primitives.attention`.

    Args:
        heads: number of heads.
        transposed: matrices are [heads, N, K], else [heads, K, N].
    """

    def __init__(self, heads: int, *, transposed: bool) -> None:
        super().__init__()
        self.heads = heads
        self.positions = Positions()
        self.product = ops.BatchMatMul(transpose_b=transposed)

    def construct(self, x: Any, matrices: Any) -> Any:
        rows = ops.reshape(x, (-1, x.shape[2]))
        numbers = self.positions(ops.scalar_to_tensor(rows.shape[0]))
        by_head = ops.transpose(ops.reshape(numbers, (-1, self.heads)), (1, 0))
        y = self.product(ops.gather(rows, by_head, 0), matrices)
        by_token = ops.transpose(ops.reshape(numbers, (self.heads, -1)), (1, 0))
        return ops.gather(ops.reshape(y, (-1, y.shape[2])), by_token, 0)


def record_latent(
    ops: "GraphOps", q: tuple[Node, Node], key: tuple[Node, Node], expansion: str,
    spec: AttentionSpec, *, layer: int,
) -> Node:  # fmt: skip
    """Record `Ops.latent_attention` with a cache of `key`, and its write before attention."""
    latent, heads = latent_sizes(spec), spec.num_heads
    sizes = (latent.plain, latent.value)
    keys, values = (
        f"self.{ops.weights.head_rows(expansion, heads, sizes, piece)}" for piece in range(2)
    )
    caches = ops.caches(layer)
    plain, rotated = ops.after_write(q[0], key, caches), q[1]
    if ops.phase == PREFILL:

        def expanded(matrices: str, size: int) -> Node:
            matrix = f"ops.reshape({matrices}, (-1, {latent.kv_rank}))"
            return ops.emit(f"{ops.operator('matmul')}({key[0].name}, {matrix})", heads * size)

        every = (expanded(keys, latent.plain), key[1])
        qkv = with_heads(ops, (plain, rotated), every, expanded(values, latent.value), spec)
        prompt: Node = value_heads(ops, ops.flash_attention(*qkv, spec), spec)
        return prompt
    apart = ops.emit(f"ops.reshape({plain.name}, (-1, {heads}, {latent.plain}))", latent.plain)
    queries = _product(ops, apart, keys, heads, transposed=False)
    filling = COMPOSED if ops.phase == CHUNKS else ops.filling_of("mla")
    mask = ops.mask(replace(spec, num_kv_heads=1), filling, is_paged=True)
    kernel = ops.operator("mla", filling, head_num=heads, scale=spec.scale)
    turned = f"ops.reshape({rotated.name}, (-1, {heads}, {latent.rotated}))"
    arguments = f"{', '.join(caches)}, block_tables, batch_valid_length, {mask}, q_seq_lens"
    out = ops.emit(f"{kernel}({queries.name}, {turned}, {arguments})", latent.kv_rank)
    out = _product(ops, out, values, heads, transposed=True)
    return ops.emit(f"ops.reshape({out.name}, (-1, {heads * latent.value}))", heads * latent.value)


def _product(ops: "GraphOps", x: Node, matrices: str, heads: int, *, transposed: bool) -> Node:
    """Record a `HeadsProduct`."""
    make_cell = partial(HeadsProduct, heads, transposed=transposed)
    operator = ops.operator_once(f"heads product {heads} {transposed}", make_cell)
    return ops.emit(f"{operator}({x.name}, {matrices})", 0)
