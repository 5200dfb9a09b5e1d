"""Plain norms, rotary embedding, activation and the write to the cache, of a few operators each.

MindSpore's graph compiler reads the methods, so they use only what the compiler supports.  On a CPU
a launch costs more than its arithmetic in a step of few tokens; with many, an element costs 13 ns
where a shape is broadcast, 20 ns in a transpose and 0.2 ns elsewhere.  So cells have few operators
and neither of these: a product of a column and a row takes the place of two broadcasts.
"""

from typing import Any, TypeAlias

from mindspore.ops.operations._embedding_cache_ops import UpdateCache

from mindspore_serving.llm.runtimes.mindir.library import mindspore, ops

Tensor: TypeAlias = Any  # a mindspore.Tensor


class ComposedRmsNorm(mindspore.nn.Cell):  # type: ignore[misc]
    """RMS norm of x, [T, hidden], with gamma, [hidden]: (y, 1 / root of the mean square)."""

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.mean = ops.ReduceMean(keep_dims=True)
        self.outer = ops.MatMul()

    def construct(self, x: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        wide = x.astype(mindspore.float32)
        rstd = ops.rsqrt(self.mean(wide * wide, -1) + self.eps)
        factors = self.outer(
            ops.reshape(rstd, (-1, 1)), ops.reshape(gamma.astype(mindspore.float32), (1, -1))
        )
        if x.ndim > 2:
            factors = ops.reshape(factors, x.shape)
        return (wide * factors).astype(x.dtype), rstd


class ComposedAddRmsNorm(mindspore.nn.Cell):  # type: ignore[misc]
    """RMS norm of x + residual: (y, 1 / root of the mean square, x + residual)."""

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm = ComposedRmsNorm(eps)

    def construct(
        self, x: Tensor, residual: Tensor, gamma: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        total = x + residual
        y, rstd = self.norm(total, gamma)
        return y, rstd, total


class ComposedRope(mindspore.nn.Cell):  # type: ignore[misc]
    """Rotary embedding of q and k, [T, heads * D], by per-token tables, [T, D].

    `cos_format` 2 rotates halves, 3 interleaved pairs.  `lengths` are not read.
    """

    def __init__(self, cos_format: int = 2) -> None:
        super().__init__()
        self.is_interleaved = cos_format == 3

    def construct(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        cos, sin = cos.astype(q.dtype), sin.astype(q.dtype)
        return self.rotated(q, cos, sin), self.rotated(k, cos, sin)

    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate each head of x, [T, heads * D]."""
        width, dim = x.shape[1], cos.shape[1]
        if self.is_interleaved:
            first, second = ops.split(ops.reshape(x, (-1, 2)), 1, 1)
        else:
            first, second = ops.split(ops.reshape(x, (-1, dim)), dim // 2, 1)
        turned = ops.reshape(ops.concat((-second, first), 1), (-1, width))
        heads = (1, width // dim)
        return x * ops.tile(cos, heads) + turned * ops.tile(sin, heads)


class ComposedReshapeAndCache(mindspore.nn.Cell):  # type: ignore[misc]
    """Write of key and value, [T, kv_heads * D], to slots of caches [blocks, block, kv_heads, D].

    In place, and tokens with slot -1 are skipped: UpdateCache does both, and its cost does not
    depend on the size of the cache (ScatterNdUpdate copies it).  That kernel exists for float32;
    other dtypes take ScatterNdUpdate, for which slot -1 is the last slot of the last block, so that
    the caller leaves that block unused.  Returns `key`, to depend on.

    MindSpore deprecates UpdateCache since 2.8 and names no substitute (KVCacheScatterUpdate and
    InplaceIndexPut have no kernel for CPUs).  A version without it has to take ScatterNdUpdate for
    float32, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.update = UpdateCache()
        self.scatter = ops.ScatterNdUpdate()
        self.no_limit = mindspore.Tensor(2**31 - 1, mindspore.int32)

    def construct(
        self,
        key: Tensor,
        value: Tensor | None,
        key_cache: Tensor,
        value_cache: Tensor | None,
        slot_mapping: Tensor,
    ) -> Tensor:
        written = self.write(key, key_cache, slot_mapping)
        if value is not None:
            return ops.depend(key, (written, self.write(value, value_cache, slot_mapping)))
        return ops.depend(key, written)

    def write(self, new: Tensor, cache: Tensor, slots: Tensor) -> Tensor:
        """Write to one cache."""
        if cache.dtype == mindspore.float32:
            return self.update(cache, slots, new, self.no_limit)
        block_size = cache.shape[1]
        slots = ops.select(slots < 0, cache.shape[0] * block_size - 1 + slots * 0, slots)
        indices = ops.stack((slots // block_size, slots % block_size), -1)
        return self.scatter(cache, indices, ops.reshape(new, (-1, *cache.shape[2:])))


class ComposedSwiglu(mindspore.nn.Cell):  # type: ignore[misc]
    """SiLU of the first half of the features times the second."""

    def construct(self, x: Tensor) -> Tensor:
        gate, up = ops.split(x, x.shape[-1] // 2, -1)
        return ops.silu(gate) * up


class TopK(mindspore.nn.Cell):  # type: ignore[misc]
    """Largest `k` of each row, in descending order, and their int32 indices."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.top = ops.TopK(sorted=True)

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.top(x, self.k)  # type: ignore[no-any-return]
