"""Architectures as data: norms, blocks, biases, positions, and names of tensors.

`families` has one `Architecture` for each class of config.json, and `decoder` computes them all.
What differs from checkpoint to checkpoint (sizes, scales) is in `ModelSpec`. Knows no runtime.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Config: TypeAlias = Mapping[str, Any]

RMS, RMS_PLUS_ONE, LAYER, LAYER_PLUS_ONE, LAYER_PLAIN = "rms", "rms+1", "layer", "layer+1", "plain"
HALVES, PAIRS = "halves", "pairs"
SECTIONS, INTERLEAVED = "sections", "interleaved"  # of frequencies by time, height and width
# Kinds of layers in layer_types that have a state instead of keys and values, or in addition.
CONVOLUTION, DELTA_RULE, MAMBA = "conv", "linear_attention", "mamba"
SILU = ("silu", "swish")
# Norms of queries and keys: RMS of a head, RMS of all heads together, RMS of a head
# without a weight, or a layer norm of a head with a weight for each head.
OF_HEAD, OF_ALL, UNWEIGHTED, OF_EACH_HEAD = "head", "all", "unweighted", "each head"


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names of the tensors of a checkpoint; those after `layers` are relative to a layer.

    `qkv` and `gate_up` have one name if the tensors are fused in this order, otherwise one name
    each. An empty name means that the architecture has no such norm or table.
    """

    prefix: str = ""  # of every name but the head's; some files omit it
    embedding: str = "model.embed_tokens"
    embedding_norm: str = ""
    positions: str = ""  # table of learned position embeddings
    types: str = ""  # table of token type embeddings
    distances: str = ""  # table of relative position biases, [buckets, heads]
    norm: str = "model.norm"
    head: str = "lm_head"
    layers: str = "model.layers"
    attention_norm: str = "input_layernorm"
    fused: str = ""  # queries, key and value interleaved by head; `layouts` splits them into `qkv`
    fuses_queries: bool = True  # otherwise `fused` has the key and value of each head
    mamba: str = "mamba"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    sinks: str = ""
    output: str = "self_attn.o_proj"
    after_attention: str = ""  # norm of the attention block's output
    mlp_norm: str = "post_attention_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    after_mlp: str = ""  # norm of the feed-forward block's output
    low_rank: str = ""  # two small matrices parallel to attention (LAuReL)
    scalar: str = ""  # tensor [1] that scales the layer's output
    matrix: str = "weight"  # suffix of the name of a matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Routing to experts, and the names of router, experts and their matrices.

    `scores`, `by_pairs` and `scales_input` are those of `ops.Routing`.
    """

    scores: str = "softmax"
    by_pairs: bool = False
    scales_input: bool = False
    clamped: bool = False  # gate and up are clamped, and 1 is added to up (gpt-oss)
    router: str = "mlp.gate"
    router_bias: bool = False
    correction: str = ""  # bias added to scores for the choice of experts, not to their weights
    prefix: str = "mlp.experts"
    gate: str = "gate_proj"  # empty: experts without a gate
    up: str = "up_proj"
    down: str = "down_proj"
    bias: bool = False
    latent: tuple[str, str] | None = None  # projections down before and up after the experts
    shared: str = ""  # expert that computes every token
    shares_dense: bool = False  # the dense block computes every token as well
    shared_gate: str = ""  # its sigmoid scales the output of the shared expert
    parallel: "ParallelMixture | None" = None
    # `joined` is [experts, out, in] instead of [experts, in, out]; None: whichever fits hidden_size
    joined_rows: bool | None = False
    joined: tuple[str, str] | None = None  # gate and up, and down, of all experts; `layouts` splits


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelMixture:
    """Names of a mixture in parallel with the dense block, which computes every token (Gemma 4).

    Norms of the dense block's output, of the experts' input and of their output; the scale of the
    router's normalised input, and the scales of the routing weights.
    """

    dense_norm: str = "post_feedforward_layernorm_1"
    input_norm: str = "pre_feedforward_layernorm_2"
    output_norm: str = "post_feedforward_layernorm_2"
    router_gain: str = "router.scale"
    gains: str = "router.per_expert_scale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Description of one class of config.json.

    Attributes:
        defaults: values of keys that config.json may omit.
        fixed: key of config.json -> the supported values; others are refused.
        follows: the settings of `settings.OPTIONAL` that the architecture has.
        unused: settings without effect, at least in some of its models.
        experts: of the layers that are mixtures.
        read: translates config.json to the keys that `spec` reads.
        variant: returns the description for this config.json, where it decides more than sizes.
        qkv_bias, output_bias, mlp_bias, head_bias: whether there are biases, or the key that says
        so.
        gate_bias: gate and up have biases where `mlp_bias` says so; otherwise only down has one.
        parallel: attention and feed-forward block have the same input, without `mlp_norm` also the
            same norm.
        rope: which features are rotated together: HALVES, PAIRS, or "" for none.
        rotated_windows: only layers with a window have positions, in a model that has such layers.
        alibi: position biases by ALiBi, scaled as the scores are if `alibi_scaled`.
        qk_norm: the kind of norm, used if there is no `qk_norm_key` or config.json has it true.
        state: the kind in layer_types of the layers with a state (`models.states`), if there are
            any.
        attends_beside: layers with a state have attention as well.
        single: a layer has one block: attention, a state, or a feed-forward block.
        output_gate: half of each head's queries are a gate of the attention output.
        value_norm: values are normalised, RMS of a head without a weight.
        post_norm: the norm after a block is of the sum with the block's input.
        begins_normed: the first layer has no norm before its attention, as the embeddings have one.
        skips_positions: the table of positions has rows before that of the first token.
        takes_images: vectors of images may take the place of token embeddings.
        takes_sounds: vectors of sounds may.
        has_bidirectional_images: tokens of an image attend to each other in both directions.
        image_axes: how rotary frequencies are divided among time, height and width, where tokens
            of images have positions in all three: SECTIONS or INTERLEAVED; "" for none.
        bidirectional_windows: they do in layers with a window alone.
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
    gate_bias: bool = True
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
    post_norm: bool = False
    begins_normed: bool = False
    skips_positions: bool = False
    takes_images: bool = False
    takes_sounds: bool = False
    has_bidirectional_images: bool = False
    image_axes: str = ""
    bidirectional_windows: bool = False

    def has_features(self, max_images: int, max_audios: int) -> bool:
        """Return whether requests have vectors in place of embeddings, with these options."""
        return (self.takes_images and max_images > 0) or (self.takes_sounds and max_audios > 0)

    @property
    def settings(self) -> frozenset[str]:
        """Settings that config.json may have: those that are read, refused or without effect."""
        return frozenset((*self.follows, *self.fixed, *self.unused, *self.defaults))

    @property
    def is_llama_shaped(self) -> bool:
        """True if it differs from Llama only by names, sizes, biases and norms of heads."""
        names = self.names
        extra = (names.after_attention, names.after_mlp, names.embedding_norm)
        return bool(
            names.attention_norm and names.mlp_norm and not any(extra)
            and self.norm == RMS and self.rope == HALVES
            and not (self.parallel or self.rotated_windows or self.norm_after_rope)
            and not (self.state or self.output_gate) and self.gated
            and self.experts is None and self.qk_norm in ("", OF_HEAD)
        )  # fmt: skip
