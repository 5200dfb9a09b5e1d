"""Operations that model definitions are written in; each runtime implements them.

A definition (`models/decoder.py`) calls these and nothing else.  Tensors are `[tokens, features]`
at every interface; each runtime has its type for them (an array, a graph node).  Weights are opaque
handles by checkpoint name, so that the runtime chooses dtype, layout and quantisation.  Paging is
part of `attention` and of the step's metadata, which the definition never sees.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.expert_block import ExpertBlock, HeldExperts
from mindspore_serving.llm.models.spec_parts import Latent
from mindspore_serving.llm.models.state_rules import DeltaRule, SelectiveScan

_NO_STATE = (
    "the model has layers with a recurrent state, which this runtime does not support; use the "
    "openvino or the torch runtime"
)
MIN_MEAN_SQUARE = 1e-5  # lower bound of the divisor in `match_rms`
Tensor: TypeAlias = Any  # the runtime's type
Weight: TypeAlias = Any  # the runtime's handle


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Parameters of one layer's attention.

    `window` 0 is none; `alibi` are slopes per head or None; `sinks` names a tensor [num_heads] of
    one more score per head, which takes its share of the softmax and has no value; `latent` are the
    sizes of latent attention, whose heads have `head_dim` features once they are expanded.  With
    `is_causal`, no token attends to later ones, not even one of an image to others of that image.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    alibi: tuple[float, ...] | None = None
    sinks: str = ""
    latent: Latent | None = None
    is_causal: bool = False


@dataclass(frozen=True, slots=True)
class DecoderInputs:
    """The symbolic or real inputs of a pass, made by the runtime."""

    token_ids: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    rows: Tensor  # [num_logits]: tokens whose logits are returned
    hidden: Tensor = None  # [tokens, H]: output of the stage before this one
    # [n, image_features]: of images, in place of embeddings, and then to add to outputs of layers
    features: Tensor | None = None
    feature_rows: Tensor | None = None  # [n]: tokens that the features replace
    # [tokens, 3]: positions in time, height and width; None where all are `positions`
    rope_positions: Tensor | None = None
    # [T]: 1 for tokens of sequences beyond the rotary table's switch, else 0; None without one
    uses_long_rope: Tensor | None = None
    types: Tensor | None = None  # [tokens]: of encoders, 1 in the second of two texts


Longer: TypeAlias = tuple[Tensor, Sequence[float]]
"""`DecoderInputs.uses_long_rope`, and the rotary frequencies of the tokens for which it is 1."""


class Ops(Protocol):
    """Operations of a runtime; T is the number of tokens, H that of features.

    A body here is a default for tensors that have the arithmetic of arrays.
    """

    def weight(self, name: str) -> Weight:
        """Return the handle of a checkpoint tensor.  Raises StartError naming a missing one."""
        ...

    def has_weight(self, name: str) -> bool: ...

    def embedding(self, ids: Tensor, table: Weight) -> Tensor:
        """Look up token ids, [T], in a table: [T, H]."""
        ...

    def whole_embedding(self, ids: Tensor, table: Weight) -> Tensor:
        """Look up `ids`, [T], in a table that every rank has whole, as of positions."""
        return self.embedding(ids, table)

    def replace_rows(self, x: Tensor, indices: Tensor, rows: Tensor) -> Tensor:
        """Return `x`, [T, H], with `rows`, [n, H], in place of the rows at `indices`, [n]."""
        raise StartError("this runtime does not support images; use openvino or torch")

    def add_rows(self, x: Tensor, indices: Tensor, rows: Tensor) -> Tensor:
        """Return `x`, [T, H], with `rows`, [n, H], added to the rows at `indices`, [n]."""
        return self.replace_rows(x, indices, self.add(self.gather_rows(x, indices), rows))

    def linear(self, x: Tensor, weight: Weight, bias: Weight | None = None) -> Tensor:
        """Compute x @ weight.T + bias; weight is [out, in] as in checkpoints."""
        ...

    def linears(
        self, x: Tensor, weights: Sequence[Weight], biases: Sequence[Weight | None]
    ) -> list[Tensor]:
        """Compute `linear` for each weight, all with the same input."""
        return [self.linear(x, *each) for each in zip(weights, biases, strict=True)]

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum `x` over the ranks that share the model; the result may be written to `x`.

        Follows each matrix that is split along its inputs.  With one rank, returns `x`.
        """
        return x

    def logits(self, x: Tensor, head: Weight, bias: Weight | None = None) -> Tensor:
        """Compute x @ head.T + bias, [T, vocab]; complete on rank 0 alone."""
        return self.linear(x, head, bias)

    def rms_norm(self, x: Tensor, weight: Weight, eps: float, *, plus_one: bool = False) -> Tensor:
        """Normalise over the last axis; `plus_one` scales by 1 + weight (Gemma)."""
        ...

    def head_rms_norm(
        self, x: Tensor, weight: Weight | None, num_heads: int, eps: float, *,
        plus_one: bool = False,
    ) -> Tensor:  # fmt: skip
        """Normalise each head's features, as `rms_norm`.

        The weight is one for all heads, or has the features of all heads.  Without a weight the
        result is not scaled.
        """
        ...

    def spanning_rms_norm(self, x: Tensor, weight: Weight, num_groups: int, eps: float) -> Tensor:
        """Normalise the features of `num_groups` groups, each of which ranks hold in equal parts.

        `weight` has the features of this rank.  Without ranks there is one group.
        """
        return self.rms_norm(x, weight, eps)

    def layer_norm(
        self, x: Tensor, weight: Weight | None, bias: Weight | None, eps: float, *,
        plus_one: bool = False,
    ) -> Tensor:  # fmt: skip
        """Normalise over the last axis, scaled by the weight, or 1 + weight, if there is one."""
        ...

    def head_layer_norm(self, x: Tensor, weight: Weight, num_heads: int, eps: float) -> Tensor:
        """Normalise each head's features; `weight`, [num_heads, features], has a row per head."""
        ...

    def rope_tables(
        self, positions: Tensor, inv_freq: Sequence[float], scale: float = 1.0,
        longer: Longer | None = None, axes: Sequence[int] = (),
    ) -> Tensor:  # fmt: skip
        """Compute the tables of `rope`, once per pass; cos and sin are multiplied by `scale`.

        Tokens of long sequences have the frequencies of `longer`.  With `axes`, `positions` are
        [T, 3], and each frequency has the column of its axis.
        """
        ...

    def rope(self, x: Tensor, tables: Tensor, num_heads: int, *, pairs: bool = False) -> Tensor:
        """Rotate halves (x1, x2) of the first 2*len(inv_freq) features of each head.

        With `pairs`, x1 are the even features of them and x2 the odd ones, and the result has x1
        before x2.
        """
        ...

    def query_scale(self, positions: Tensor, beta: float, length: int, first: int) -> Tensor:
        """Compute 1 + beta * log(1 + floor((position + first) / length)), [T, 1]."""
        ...

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Compute causal attention over the cache and the new tokens, and write those to the cache.

        Layers that share keys and values call it with the same `k`, `v` and `layer`.
        """
        ...

    def latent_attention(
        self, layer: int, q: tuple[Tensor, Tensor], key: tuple[Tensor, Tensor], expansion: Weight,
        spec: AttentionSpec,
    ) -> Tensor:  # fmt: skip
        """Compute latent attention (DeepSeek's MLA), [T, num_heads * spec.latent.value].

        `q` are the features of all heads without and with positions; `key` is the latent vector,
        [T, kv_rank], and the rotated key of all heads, [T, rotated].  `expansion`, [num_heads *
        (plain + value), kv_rank], makes a head's key and value of the latent vector.

        The default caches the keys and values of every head.  A runtime that caches `key` instead
        need not expand it: `expansion` may be applied to queries and results.
        """
        latent, heads = latent_sizes(spec), spec.num_heads
        expanded = self.linear(key[0], expansion)
        plain, values = self.split_heads(expanded, heads, (latent.plain, latent.value))
        q, k, v = with_heads(self, q, (plain, key[1]), values, spec)
        return value_heads(self, self.attention(layer, q, k, v, spec), spec)

    def convolution(
        self, layer: int, x: Tensor, weight: Weight, bias: Weight | None = None
    ) -> Tensor:
        """Convolve each feature with its last tokens; `weight` is [H, 1, tokens].

        The inputs of the last tokens are the layer's state.
        """
        raise StartError(_NO_STATE)

    def delta_rule(
        self, layer: int, qkv: tuple[Tensor, Tensor, Tensor], alpha: Tensor, beta: Tensor,
        rule: DeltaRule,
    ) -> Tensor:  # fmt: skip
        """Run the gated delta rule, [T, value_heads * value_dim].

        `alpha` and `beta` are [T, value_heads].  S is the layer's state, beside that of its
        convolution.
        """
        raise StartError(_NO_STATE)

    def selective_scan(
        self, layer: int, xbc: tuple[Tensor, Tensor, Tensor], step: Tensor, scan: SelectiveScan
    ) -> Tensor:
        """Run the selective scan, [T, value_heads * value_dim].

        `step` is [T, value_heads].  S is the layer's state, beside that of its convolution.
        """
        raise StartError(_NO_STATE)

    def add_distances(self, table: Weight, rows: Sequence[int]) -> None:
        """Make an encoder's `attention` add a bias by distance to the scores of two tokens.

        `table` is [rows, heads]; `rows` has the row of `table` for each distance from -n to n.
        """
        raise StartError("only attention of encoders adds to scores by distance")

    def split_heads(self, x: Tensor, num_heads: int, sizes: Sequence[int]) -> list[Tensor]:
        """Split each head's features into pieces; each piece has those of all heads."""
        ...

    def join_heads(self, parts: Sequence[Tensor], num_heads: int, width: int) -> Tensor:
        """Concatenate the parts' features of each head, padded with zeros to `width`."""
        ...

    def repeat_head(self, x: Tensor, num_heads: int) -> Tensor:
        """Repeat the features of one head for every head."""
        ...

    def dense(self, x: Tensor, block: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute block(x), a dense feed-forward block.

        A runtime may give the block's tensors to another rank.
        """
        return block(x)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return self.mul(self.silu(gate), up)

    def gelu(self, x: Tensor, *, tanh: bool = True) -> Tensor: ...

    def silu(self, x: Tensor) -> Tensor: ...

    def relu(self, x: Tensor) -> Tensor: ...

    def sigmoid(self, x: Tensor) -> Tensor: ...

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """Multiply elementwise; `b` may have one feature."""
        return a * b

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return x * factor

    def gain(self, x: Tensor, weight: Weight) -> Tensor:
        """Multiply `x` by the number in `weight` [1], or by the numbers in `weight` [H]."""
        return x * weight

    def mean(self, x: Tensor) -> Tensor:
        """Average over the features, [T, 1]."""
        ...

    def mean_of_ranks(self, x: Tensor) -> Tensor:
        """Average over the features of all ranks, of which `x` has this rank's part, [T, 1]."""
        return self.mean(x)

    def gaussian_topk(self, x: Tensor, cutoff: float) -> Tensor:
        """Return how far features exceed their mean plus `cutoff` standard deviations, else 0.

        Ranks have parts of `x`.
        """
        deviation = x - self.mean_of_ranks(x)
        variance = self.mean_of_ranks(deviation * deviation)
        return self.relu(deviation - variance**0.5 * cutoff)

    def match_rms(self, x: Tensor, other: Tensor) -> Tensor:
        """Scale `x` to the root mean square of `other`.

        The mean square of `x` counts as at least `MIN_MEAN_SQUARE`.
        """
        mean_square = self.relu(self.mean(x * x) - MIN_MEAN_SQUARE) + MIN_MEAN_SQUARE
        return x * (self.mean(other * other) ** 0.5 / mean_square**0.5)

    def below(self, ids: Tensor, count: int) -> Tensor:
        """Replace the `ids`, [T], that are not below `count` by 0."""
        return ids * (ids < count)

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        """Compute cap * tanh(x / cap)."""
        ...

    def split(self, x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Split the features into consecutive pieces (a fused QKV)."""
        ...

    def gather_rows(self, x: Tensor, rows: Tensor) -> Tensor: ...

    def held_experts(self, layer: int) -> HeldExperts | None:
        """Return the experts of a layer that this rank has, None for all."""
        return None

    def moe(self, x: Tensor, scores: Tensor, block: ExpertBlock) -> Tensor:
        """Compute a mixture of experts; `scores` are the router's output, [T, experts]."""
        ...

    def hidden(self, x: Tensor) -> Tensor:
        """Return `x`, the final normalised state of the requested tokens, [num_logits, H].

        Every definition passes it here once, before the output matrix; a runtime takes embeddings
        from it.
        """
        return x


def latent_sizes(spec: AttentionSpec) -> Latent:
    """Return the sizes of latent attention, which `spec` has."""
    assert spec.latent is not None
    return spec.latent


def with_heads(
    ops: Ops, q: tuple[Tensor, Tensor], key: tuple[Tensor, Tensor], values: Tensor,
    spec: AttentionSpec,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Join latent attention's features of each head to queries, keys and values of one width.

    The second part of `key` is one for all heads.
    """
    heads, width = spec.num_heads, spec.head_dim
    q = ops.join_heads(q, heads, width)
    k = ops.join_heads((key[0], ops.repeat_head(key[1], heads)), heads, width)
    return q, k, ops.join_heads((values,), heads, width)


def value_heads(ops: Ops, out: Tensor, spec: AttentionSpec) -> Tensor:
    """Return each head's features of values, without the padding of `with_heads`."""
    size = latent_sizes(spec).value
    out, *_ = ops.split_heads(out, spec.num_heads, (size, spec.head_dim - size))
    return out
