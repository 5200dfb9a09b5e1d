"""The operations a model definition is written in, and the runtimes that implement them.

A definition (`models/llama.py`) calls these and nothing else.  Tensors are `[tokens, features]`
at every interface; each runtime has a type of its own for them (an array, a graph node).  Weights
are opaque handles by checkpoint name, so that the runtime chooses dtype, layout and quantisation.
Paging is part of `attention` and the step's metadata, which the definition never sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

Tensor: TypeAlias = Any  # of the runtime
Weight: TypeAlias = Any  # a handle of the runtime


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One layer's attention.  `window` 0 is none; `alibi` are slopes per head or None."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    alibi: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Inputs:
    """The symbolic or real inputs of a pass, made by the runtime."""

    token_ids: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    rows: Tensor  # [num_logits]: which tokens' logits are wanted


class Ops(Protocol):
    """The operations; T tokens, H features.  A body here is for tensors that compute like
    arrays."""

    def weight(self, name: str) -> Weight:
        """The handle of a checkpoint tensor.  Raises StartError naming a missing one."""
        ...

    def has_weight(self, name: str) -> bool: ...

    def embedding(self, ids: Tensor, table: Weight) -> Tensor:
        """[T] ids -> [T, H]."""
        ...

    def linear(self, x: Tensor, weight: Weight, bias: Weight | None = None) -> Tensor:
        """x @ weight.T + bias; weight is [out, in] as in checkpoints."""
        ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of `x` over the ranks that share the model, which may be written to `x`; `x`
        itself where there is one rank.  Follows each matrix that is cut by its inputs."""
        return x

    def logits(self, x: Tensor, head: Weight) -> Tensor:
        """x @ head.T, the head's rows being the vocabulary; complete on rank 0 alone."""
        return self.linear(x, head)

    def rms_norm(self, x: Tensor, weight: Weight, eps: float, *, plus_one: bool = False) -> Tensor:
        """Over the last axis; `plus_one` scales by 1 + weight (Gemma)."""
        ...

    def head_rms_norm(
        self, x: Tensor, weight: Weight, num_heads: int, eps: float, *, plus_one: bool = False
    ) -> Tensor:
        """The same over each head's features."""
        ...

    def layer_norm(self, x: Tensor, weight: Weight, bias: Weight | None, eps: float) -> Tensor: ...

    def rope_tables(
        self, positions: Tensor, inv_freq: Sequence[float], scale: float = 1.0
    ) -> Tensor:
        """What `rope` needs, computed once per pass; cos and sin are multiplied by `scale`."""
        ...

    def rope(self, x: Tensor, tables: Tensor, num_heads: int) -> Tensor:
        """Rotate halves (x1, x2) of the first 2*len(inv_freq) features of each head."""
        ...

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Causal attention over the cache and the new tokens, which are written to the cache."""
        ...

    def add_distances(self, table: Weight, rows: Sequence[int]) -> None:
        """Have `attention` of an encoder add to the scores of two tokens, for each head, the row of
        `table` [rows, heads] for the places between them: `rows` are of -n to n places."""
        problem = "only attention of encoders adds to scores by distance"
        raise NotImplementedError(problem)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor: ...

    def gelu(self, x: Tensor, *, tanh: bool = True) -> Tensor: ...

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return x * factor

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        """cap * tanh(x / cap)."""
        ...

    def split(self, x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Cut the features into consecutive pieces (a fused QKV)."""
        ...

    def gather_rows(self, x: Tensor, rows: Tensor) -> Tensor: ...

    def moe(
        self,
        x: Tensor,
        router: Weight,
        experts: Sequence[tuple[Weight, Weight, Weight]],
        *,
        top_k: int,
        normalize: bool,
    ) -> Tensor:
        """Mixture of experts: softmax routing, (gate, up, down) silu experts."""
        ...

    def hidden(self, x: Tensor) -> Tensor:
        """`x` itself: what every definition passes here once, before the output matrix, is the
        final normalised state of the wanted tokens, [num_logits, H], which embeddings are."""
        return x
