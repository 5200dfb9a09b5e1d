"""What an architecture is, as data: norms, blocks, biases, positions, and names of tensors.

`families` has one `Architecture` for each class of config.json, `decoder` computes them all.  What
differs from checkpoint to checkpoint (sizes, scales) is the `ModelSpec`'s.  Knows no runtime.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Config: TypeAlias = Mapping[str, Any]

RMS, RMS_PLUS_ONE, LAYER, LAYER_PLUS_ONE, LAYER_PLAIN = "rms", "rms+1", "layer", "layer+1", "plain"
HALVES, PAIRS = "halves", "pairs"
# What layer_types calls layers that have a state in place of keys and values, or beside them.
CONVOLUTION, DELTA_RULE, MAMBA = "conv", "linear_attention", "mamba"
SILU = ("silu", "swish")
# What queries and keys are normalised over: RMS of a head, RMS of all heads together, RMS of a head
# without a weight, or a layer norm of a head with a weight for each head.
OF_HEAD, OF_ALL, UNWEIGHTED, OF_EACH_HEAD = "head", "all", "unweighted", "each head"


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a checkpoint calls its tensors; those below `layers` are of a layer.

    `qkv` and `gate_up` have one name if the tensors are fused, one after another, or one each.  An
    empty name is a norm, or a table, that the architecture does not have.
    """

    prefix: str = ""  # before every name but the head's, which some files leave out
    embedding: str = "model.embed_tokens"
    embedding_norm: str = ""
    positions: str = ""  # a table of learned ones
    types: str = ""  # a table of the kinds of tokens
    distances: str = ""  # a table of what is added to scores, [rows, heads]
    norm: str = "model.norm"
    head: str = "lm_head"
    layers: str = "model.layers"
    attention_norm: str = "input_layernorm"
    fused: str = ""  # queries, key and value head by head, which `layouts` cuts into `qkv`
    mamba: str = "mamba"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    sinks: str = ""
    output: str = "self_attn.o_proj"
    after_attention: str = ""  # a norm of what attention adds
    mlp_norm: str = "post_attention_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    after_mlp: str = ""  # a norm of what the feed-forward block adds
    low_rank: str = ""  # two small matrices beside attention (LAuReL)
    scalar: str = ""  # a tensor [1] that the layer's result is multiplied by
    matrix: str = "weight"  # what follows the name of a matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """How experts are chosen, and what a checkpoint calls router, experts and their matrices.

    `scores`, `by_pairs` and `scales_input` are `ops.Routing`'s.
    """

    scores: str = "softmax"
    by_pairs: bool = False
    scales_input: bool = False
    clamped: bool = False  # gates have limits, and up has 1 added (gpt-oss)
    router: str = "mlp.gate"
    router_bias: bool = False
    correction: str = ""  # added to scores when experts are chosen, not to their shares
    prefix: str = "mlp.experts"
    gate: str = "gate_proj"  # empty: experts have none
    up: str = "up_proj"
    down: str = "down_proj"
    bias: bool = False
    latent: tuple[str, str] | None = None  # before and behind experts of fewer features
    shared: str = ""  # an expert that computes every token
    shares_dense: bool = False  # the dense block computes every token as well
    shared_gate: str = ""  # whose result is multiplied by the sigmoid of this
    beside: "Beside | None" = None
    joined_rows: bool = False  # these are [experts, out, in], and not [experts, in, out]
    joined: tuple[str, str] | None = None  # gate with up, and down, of all experts: `layouts` cuts


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Experts beside the dense block, which computes every token as well (Gemma 4).

    Names of norms: of what the dense block gives, of the experts' input and of what they give; of
    tensors: of the norm of the router's input, and of numbers that shares are multiplied by.
    """

    dense_norm: str = "post_feedforward_layernorm_1"
    input_norm: str = "pre_feedforward_layernorm_2"
    output_norm: str = "post_feedforward_layernorm_2"
    router_gain: str = "router.scale"
    gains: str = "router.per_expert_scale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The description of one class of config.json.

    Args:
        defaults: what config.json may leave out.
        fixed: key of config.json -> the values that are computed; others are refused.
        follows: settings that it has of those that only some architectures have
            (`settings.OPTIONAL`).
        unused: settings that change nothing, or nothing in some of its models.
        experts: of the layers that are mixtures.
        read: what config.json says, in the words that `spec` reads.
        variant: the description for this config.json, where that decides more than sizes.
        qkv_bias, output_bias, mlp_bias, head_bias: whether there are biases, or the key that
            says so.
        parallel: attention and feed-forward block have the same input; without `mlp_norm` the
            same norm as well.
        rope: which features are rotated together: HALVES, PAIRS, or "" for none.
        rotated_windows: only layers with a window have positions, in a model that has such layers.
        alibi: slopes, which are multiplied as scores are if `alibi_scaled`.
        qk_norm: the kind, if config.json has no `qk_norm_key` or that is true.
        state: what layer_types calls the layers that have one (`models.states`), if there are any.
        attends_beside: layers with a state attend as well.
        single: a layer has one block: attention, a state, or a feed-forward block.
        output_gate: half of each head's queries are a gate of what attention gives.
        value_norm: values are normalised, RMS of a head without a weight.
        cut: whether `tensor_parallel` can cut it.
        norms_sums: a norm behind a block is of the sum with the block's input.
        begins_normed: the first layer has no norm before its attention: embeddings have one.
        skips_positions: the table of positions has rows before that of the first token.
        takes_images: vectors of images may be in place of embeddings of tokens.
        has_bidirectional_images: tokens of an image see one another, also those behind them.
    """

    names: Names = Names()
    experts: Experts | None = None
    defaults: Config = field(default_factory=dict)
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    follows: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    read: Callable[[Config], Config] | None = None
    variant: "Callable[[Architecture, Config], Architecture] | None" = None
    norm: str = RMS
    norm_bias: bool = False
    qkv_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    head_bias: bool | str = False
    parallel: bool = False
    gated: bool = True
    rope: str = HALVES
    rotated_windows: bool = False
    alibi: bool = False
    alibi_scaled: bool = False
    qk_norm: str = ""
    qk_norm_key: str = ""
    norm_after_rope: bool = False
    state: str = ""
    attends_beside: bool = False
    single: bool = False
    output_gate: bool = False
    value_norm: bool = False
    cut: bool = False
    norms_sums: bool = False
    begins_normed: bool = False
    skips_positions: bool = False
    takes_images: bool = False
    has_bidirectional_images: bool = False

    @property
    def settings(self) -> frozenset[str]:
        """What config.json may have that is read, or refused, where it matters."""
        return frozenset((*self.follows, *self.fixed, *self.unused, *self.defaults))

    @property
    def is_llama_shaped(self) -> bool:
        """Whether it differs from Llama by names, sizes, biases and norms of heads alone."""
        names = self.names
        norms = (names.attention_norm, names.mlp_norm, names.after_attention, names.after_mlp)
        return (
            all(norms[:2]) and not any(norms[2:]) and self.norm == RMS and self.rope == HALVES
            and not (self.parallel or self.rotated_windows or self.norm_after_rope)
            and not (self.state or self.output_gate) and self.gated
            and self.experts is None and self.qk_norm in ("", OF_HEAD)
        )  # fmt: skip
