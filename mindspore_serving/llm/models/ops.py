"""The operations a model definition is written in, and the runtimes that implement them.

A definition (`models/decoder.py`) calls these and nothing else.  Tensors are `[tokens, features]`
at every interface; each runtime has a type of its own for them (an array, a graph node).  Weights
are opaque handles by checkpoint name, so that the runtime chooses dtype, layout and quantisation.
Paging is part of `attention` and the step's metadata, which the definition never sees.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.expert_block import ExpertBlock
from mindspore_serving.llm.models.state_rules import DeltaRule, SelectiveScan

_NO_STATE = (
    "the model has layers with a state beside keys and values, which this runtime does not "
    "compute; take the openvino or the torch runtime"
)
LEAST_SQUARE = 1e-5  # mean of what `as_large` divides by
Tensor: TypeAlias = Any  # of the runtime
Weight: TypeAlias = Any  # a handle of the runtime


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One layer's attention.  `window` 0 is none; `alibi` are slopes per head or None; `sinks`
    names a tensor [num_heads] of one more score for each head, whose share goes nowhere.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    alibi: tuple[float, ...] | None = None
    sinks: str = ""


@dataclass(frozen=True, slots=True)
class DecoderInputs:
    """The symbolic or real inputs of a pass, made by the runtime."""

    token_ids: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    rows: Tensor  # [num_logits]: which tokens' logits are wanted
    hidden: Tensor = None  # [tokens, H]: what the stage before this one has computed
    features: Tensor | None = None  # [n, hidden]: of pictures, in place of embeddings
    places: Tensor | None = None  # [n]: of which tokens
    # [T]: 1 for tokens of sequences beyond the rotary table's switch, else 0; None without one
    uses_long_rope: Tensor | None = None
    types: Tensor | None = None  # [tokens]: of encoders, 1 where the second of two texts is


Longer: TypeAlias = tuple[Tensor, Sequence[float]]
"""`DecoderInputs.uses_long_rope`, and the frequencies of tokens that it is 1 for."""


class Ops(Protocol):
    """The operations; T tokens, H features.  A body here is for tensors that compute like
    arrays.
    """

    def weight(self, name: str) -> Weight:
        """The handle of a checkpoint tensor.  Raises StartError naming a missing one."""
        ...

    def has_weight(self, name: str) -> bool: ...

    def embedding(self, ids: Tensor, table: Weight) -> Tensor:
        """[T] ids -> [T, H]."""
        ...

    def with_rows(self, x: Tensor, places: Tensor, rows: Tensor) -> Tensor:
        """`x` with `rows` [n, H] in place of those at `places` [n]."""
        raise StartError("this runtime takes no pictures")

    def linear(self, x: Tensor, weight: Weight, bias: Weight | None = None) -> Tensor:
        """x @ weight.T + bias; weight is [out, in] as in checkpoints."""
        ...

    def linears(
        self, x: Tensor, weights: Sequence[Weight], biases: Sequence[Weight | None]
    ) -> list[Tensor]:
        """`linear` of each weight, all with the same input."""
        return [self.linear(x, *each) for each in zip(weights, biases, strict=True)]

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of `x` over the ranks that share the model, which may be written to `x`; `x`
        itself where there is one rank.  Follows each matrix that is cut by its inputs.
        """
        return x

    def logits(self, x: Tensor, head: Weight, bias: Weight | None = None) -> Tensor:
        """x @ head.T + bias, the head's rows being the vocabulary; complete on rank 0 alone."""
        return self.linear(x, head, bias)

    def rms_norm(self, x: Tensor, weight: Weight, eps: float, *, plus_one: bool = False) -> Tensor:
        """Over the last axis; `plus_one` scales by 1 + weight (Gemma)."""
        ...

    def head_rms_norm(
        self, x: Tensor, weight: Weight | None, num_heads: int, eps: float, *,
        plus_one: bool = False,
    ) -> Tensor:  # fmt: skip
        """The same over each head's features; the weight is one for all heads, or has the features
        of all.  Without one, they are not scaled.
        """
        ...

    def layer_norm(
        self, x: Tensor, weight: Weight | None, bias: Weight | None, eps: float, *,
        plus_one: bool = False,
    ) -> Tensor:  # fmt: skip
        """Over the last axis, scaled by the weight, or 1 + weight, where there is one."""
        ...

    def head_layer_norm(self, x: Tensor, weight: Weight, num_heads: int, eps: float) -> Tensor:
        """Over each head's features; `weight` [num_heads, features] has a row for each head."""
        ...

    def rope_tables(
        self, positions: Tensor, inv_freq: Sequence[float], scale: float = 1.0,
        longer: Longer | None = None,
    ) -> Tensor:  # fmt: skip
        """What `rope` needs, computed once per pass; cos and sin are multiplied by `scale`.

        Tokens of long sequences have the frequencies of `longer`.
        """
        ...

    def rope(self, x: Tensor, tables: Tensor, num_heads: int, *, pairs: bool = False) -> Tensor:
        """Rotate halves (x1, x2) of the first 2*len(inv_freq) features of each head; with `pairs`
        x1 are the even ones of them and x2 the odd ones, and the result has x1 before x2.
        """
        ...

    def growth(self, positions: Tensor, beta: float, length: int, first: int) -> Tensor:
        """1 + beta * log(1 + floor((position + first) / length)), [T, 1]."""
        ...

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Causal attention over the cache and the new tokens, which are written to the cache.
        Layers that share keys and values call it with the same ones and `layer`.
        """
        ...

    def convolution(
        self, layer: int, x: Tensor, weight: Weight, bias: Weight | None = None
    ) -> Tensor:
        """Of each feature with itself in the last tokens of its text, `weight` [H, 1, tokens]; the
        inputs of the last ones are the layer's state.
        """
        raise StartError(_NO_STATE)

    def delta_rule(
        self, layer: int, qkv: tuple[Tensor, Tensor, Tensor], alpha: Tensor, beta: Tensor,
        rule: DeltaRule,
    ) -> Tensor:  # fmt: skip
        """[T, value_heads * value_dim]; `alpha` and `beta` are [T, value_heads].  S is the layer's
        state, beside that of its convolution.
        """
        raise StartError(_NO_STATE)

    def selective_scan(
        self, layer: int, xbc: tuple[Tensor, Tensor, Tensor], step: Tensor, scan: SelectiveScan
    ) -> Tensor:
        """[T, value_heads * value_dim]; `step` is [T, value_heads].  S is the layer's state, beside
        that of its convolution.
        """
        raise StartError(_NO_STATE)

    def add_distances(self, table: Weight, rows: Sequence[int]) -> None:
        """Have `attention` of an encoder add to the scores of two tokens, for each head, the row of
        `table` [rows, heads] for the places between them: `rows` are of -n to n places.
        """
        raise StartError("only attention of encoders adds to scores by distance")

    def split_heads(self, x: Tensor, num_heads: int, sizes: Sequence[int]) -> list[Tensor]:
        """Cut each head's features into pieces; each piece has those of all heads."""
        ...

    def join_heads(self, parts: Sequence[Tensor], num_heads: int, width: int) -> Tensor:
        """Put features of each head side by side, zeros behind them up to `width`."""
        ...

    def repeat_head(self, x: Tensor, num_heads: int) -> Tensor:
        """The features of one head for every head."""
        ...

    def dense(self, x: Tensor, block: Callable[[Tensor], Tensor]) -> Tensor:
        """block(x), a dense feed-forward block, whose tensors a runtime may give another rank."""
        return block(x)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return self.mul(self.silu(gate), up)

    def gelu(self, x: Tensor, *, tanh: bool = True) -> Tensor: ...

    def silu(self, x: Tensor) -> Tensor: ...

    def relu(self, x: Tensor) -> Tensor: ...

    def sigmoid(self, x: Tensor) -> Tensor: ...

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """`b` may have one feature."""
        return a * b

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return x * factor

    def gain(self, x: Tensor, weight: Weight) -> Tensor:
        """`x` times the number in `weight` [1], or the numbers in `weight` [H]."""
        return x * weight

    def mean(self, x: Tensor) -> Tensor:
        """Over the features, [T, 1]."""
        ...

    def sparse(self, x: Tensor, cutoff: float) -> Tensor:
        """What features are over their mean by more than `cutoff` times their standard deviation;
        0 for the others.
        """
        apart = x - self.mean(x)
        return self.relu(apart - self.mean(apart * apart) ** 0.5 * cutoff)

    def as_large(self, x: Tensor, other: Tensor) -> Tensor:
        """`x` with the root mean square of `other`; its own counts as at least `LEAST_SQUARE`."""
        own = self.relu(self.mean(x * x) - LEAST_SQUARE) + LEAST_SQUARE
        return x * (self.mean(other * other) ** 0.5 / own**0.5)

    def below(self, ids: Tensor, count: int) -> Tensor:
        """`ids` [T], and 0 in place of those from `count` on."""
        return ids * (ids < count)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        """cap * tanh(x / cap)."""
        ...

    def split(self, x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Cut the features into consecutive pieces (a fused QKV)."""
        ...

    def gather_rows(self, x: Tensor, rows: Tensor) -> Tensor: ...

    def moe(self, x: Tensor, scores: Tensor, block: ExpertBlock) -> Tensor:
        """`scores` are what the router gives, [T, experts]."""
        ...

    def hidden(self, x: Tensor) -> Tensor:
        """`x` itself: what every definition passes here once, before the output matrix, is the
        final normalised state of the wanted tokens, [num_logits, H], which embeddings are.
        """
        return x
