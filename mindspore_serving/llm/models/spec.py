"""A model's sizes and options, read from config.json once and checked.  Knows no runtime."""

from dataclasses import dataclass, replace

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions import layer_kinds
from mindspore_serving.llm.descriptions.architecture import RMS, RMS_PLUS_ONE, Architecture, Config
from mindspore_serving.llm.descriptions.config_types import MAX_HEAD_FEATURES, number, size
from mindspore_serving.llm.models.config_translation import translate_config
from mindspore_serving.llm.models.layer_state import LayerState, state_of
from mindspore_serving.llm.models.ops import AttentionSpec
from mindspore_serving.llm.models.positions import (
    Temperature,
    alibi_slopes,
    image_axes,
    ropes,
    scaling_of,
    temperature,
)
from mindspore_serving.llm.models.rope import Rope, sharpness
from mindspore_serving.llm.models.spec_parts import (
    Latent,
    Mixture,
    Scales,
    Streams,
    cutoffs_of,
    latent_of,
    mixture_of,
    scale_of,
    scales_of,
    streams_of,
)

ACTIVATION_KEYS = ("hidden_activation", "hidden_act", "activation_function", "activation")
LAYER_NORM_EPS = ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")
HIDDEN = ("hidden_size", "n_embd", "n_embed")
INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Sizes and options of one model.

    Args:
        layers: layers of this process, out of `num_layers`; all unless the model is cut in stages.
        heads: number of key-value heads and features of each, per layer.
        sources: per layer, the layer whose keys and values it attends to: itself or an earlier one.
        keys_are_values: layers without a window have one projection for keys and values.
        streams: hidden states side by side (AltUp).
        cutoffs: per layer, the cutoff of `ops.gaussian_topk` for gates, None for none; empty if no
            layer has one.
        layer_inputs: features of each token that are the input of one layer alone; 0 for none.
        layer_vocab_size: number of tokens, from 0, that have such features in a table.
        local_rope: rotary frequencies of layers with a window, where they differ.
        attending: layers with attention.
        windows: per layer, number of tokens it attends to, with the current one; 0 is all.
        rotated: whether a layer rotates queries and keys by their positions.
        activation: name in config.json.
        keeps_hidden: whether the hidden states of all tokens are a result, for a prediction head.
        kept_layers: layers whose inputs are that result, in place of the final states: projected if
            there are several; one behind the last layer stands for the output of that.
        num_logits: rows of the output matrix, if they are fewer than tokens; 0 otherwise.
        image_levels: layers, from the first on, that add features of images to their outputs.
        slopes: of ALiBi for the heads of this rank, if they are not those of `alibi_slopes`.
    """

    architecture_name: str
    architecture: Architecture
    hidden_size: int
    intermediate_size: int
    num_layers: int
    layers: range
    num_heads: int
    num_kv_heads: int
    head_dim: int
    heads: layer_kinds.Heads
    sources: tuple[int, ...]
    keys_are_values: bool
    streams: Streams | None
    cutoffs: tuple[float | None, ...]
    layer_inputs: int
    layer_vocab_size: int
    vocab_size: int
    max_position_embeddings: int
    norm_eps: float
    rope: Rope
    local_rope: Rope | None
    attending: frozenset[int]
    windows: tuple[int, ...]
    rotated: tuple[bool, ...]
    temperature: Temperature | None
    attention_scale: float
    attention_softcap: float
    logit_softcap: float
    scales: Scales
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    head_bias: bool
    qk_norm: bool
    activation: str
    mixture: Mixture | None
    latent: Latent | None
    state: LayerState | None
    keeps_hidden: bool = False
    kept_layers: tuple[int, ...] = ()
    num_logits: int = 0
    image_levels: int = 0
    slopes: tuple[float, ...] = ()

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Layers whose keys and values this process has: all that its layers attend to."""
        return tuple(sorted({self.sources[i] for i in self.layers if i in self.attending}))

    @property
    def gate_bias(self) -> bool:
        """True if gate and up have biases; `mlp_bias` is that of down."""
        return self.mlp_bias and self.architecture.gate_bias

    def mixes(self, layer: int) -> bool:
        """Return whether the layer mixes tokens, by attention or by a recurrent state."""
        return layer in self.attending or (self.state is not None and layer in self.state.layers)

    def feeds(self, layer: int) -> bool:
        """Return whether the layer has a feed-forward block."""
        return not (self.architecture.single and self.mixes(layer))

    @property
    def is_first(self) -> bool:
        """True if this process computes the embedding."""
        return self.layers.start == 0

    @property
    def is_last(self) -> bool:
        """True if this process computes the final norm and the output matrix."""
        return self.layers.stop == self.num_layers

    @property
    def image_features(self) -> int:
        """Number of features of an image's token."""
        return self.hidden_size * (1 + self.image_levels)

    @property
    def alibi(self) -> tuple[float, ...] | None:
        """Slopes of ALiBi for each head; None without it."""
        if self.slopes or not self.architecture.alibi:
            return self.slopes or None
        scale = self.attention_scale if self.architecture.alibi_scaled else 1.0
        return tuple(slope * scale for slope in alibi_slopes(self.num_heads))

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def is_llama_shaped(self) -> bool:
        """True if graphs that are written for Llama can run the model."""
        return (
            self.architecture.is_llama_shaped and all(self.rotated)
            and self.activation in ("silu", "swish") and self.scales == Scales()
            and self.temperature is None and self.latent is None
        )  # fmt: skip

    def attention(self, layer: int) -> AttentionSpec:
        names, (num_kv_heads, head_dim) = self.architecture.names, self.heads[layer]
        return AttentionSpec(
            num_heads=self.num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            scale=self.attention_scale,
            window=self.windows[layer],
            softcap=self.attention_softcap,
            alibi=self.alibi,
            sinks=f"{names.layers}.{layer}.{names.sinks}" if names.sinks else "",
            latent=self.latent,
            is_causal=self.architecture.bidirectional_windows and not self.windows[layer],
        )


def from_config(
    config: Config, *, max_model_len: int | None = None, architecture: Architecture | None = None
) -> ModelSpec:
    """Return the spec of the model that `config` (config.json) describes.

    `architecture` is its row of FAMILIES, by default that of config.json's name; some rotary
    scalings depend on `max_model_len`, by default the model's limit.  Raises StartError.
    """
    config, architecture = translate_config(config, architecture)
    num_layers = size(config, "num_hidden_layers", "n_layer")
    hidden, latent = size(config, *HIDDEN), latent_of(config)
    num_heads, num_kv_heads, head_dim = _heads(config, hidden, latent)
    windows = layer_kinds.windows(config, num_layers, architecture)
    heads = layer_kinds.heads(config, windows, (num_kv_heads, head_dim))
    dims = _rotary_dims(windows, heads, head_dim, latent)
    trained, rope, local_rope = _positions(config, dims, max_model_len, architecture.image_axes)
    activation = next((str(config[key]) for key in ACTIVATION_KEYS if config.get(key)), "silu")
    rotated = layer_kinds.rotated(config, architecture, windows)
    return ModelSpec(
        architecture_name=str(config["architectures"][0]),
        architecture=architecture,
        hidden_size=hidden,
        intermediate_size=size(config, *INTERMEDIATE, default=4 * hidden),
        num_layers=num_layers,
        layers=range(num_layers),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        heads=heads,
        sources=layer_kinds.sources(config, windows),
        keys_are_values=bool(config.get("attention_k_eq_v")),
        streams=streams_of(config),
        cutoffs=cutoffs_of(config, num_layers),
        layer_inputs=config.get("hidden_size_per_layer_input") or 0,
        layer_vocab_size=size(config, "vocab_size_per_layer_input", "vocab_size"),
        vocab_size=size(config, "vocab_size"),
        max_position_embeddings=trained,
        norm_eps=number(config, *_eps_keys(architecture)),
        rope=rope,
        local_rope=local_rope,
        attending=layer_kinds.attending(config, num_layers, architecture),
        windows=windows,
        rotated=rotated,
        temperature=temperature(config, rotated),
        attention_scale=_attention_scale(config, head_dim, latent),
        attention_softcap=scale_of(config, "attn_logit_softcapping", 0.0),
        logit_softcap=scale_of(config, "final_logit_softcapping", 0.0),
        scales=scales_of(config),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=_flag(config, architecture.qkv_bias),
        output_bias=_flag(config, architecture.output_bias),
        mlp_bias=_flag(config, architecture.mlp_bias),
        head_bias=_flag(config, architecture.head_bias),
        qk_norm=bool(architecture.qk_norm) and _flag(config, architecture.qk_norm_key or True),
        activation=activation,
        mixture=mixture_of(config, architecture.experts, num_layers),
        latent=latent,
        state=state_of(config, architecture, hidden, activation),
        image_levels=config.get("image_levels") or 0,
    )


def _rotary_dims(
    windows: tuple[int, ...], heads: layer_kinds.Heads, head_dim: int, latent: Latent | None
) -> tuple[int, int]:
    """Return the number of rotated features of a head, in layers without and with a window."""
    if latent:
        return latent.rotated, latent.rotated
    return next((heads[i][1] for i, size in enumerate(windows) if not size), head_dim), head_dim


def _positions(
    config: Config, dims: tuple[int, int], max_model_len: int | None, axes: str
) -> tuple[int, Rope, Rope | None]:
    """Return the number of positions of the model, and the frequencies of `positions.ropes`.

    `axes` is `Architecture.image_axes`.
    """
    trained = size(
        config, "max_position_embeddings", "n_positions", "model_max_length", "seq_length"
    )
    rope, local_rope = ropes(config, dims, trained, max_model_len or trained)
    if axes and config.get("vision_config"):
        rope = replace(rope, axes=image_axes(config, axes, len(rope.inv_freq)))
    scaling = scaling_of(config)
    if "dynamic" in (scaling.get("rope_type"), scaling.get("type")) and not scaling.get("alpha"):
        trained = max(trained, max_model_len or 0)  # the rotary base grows with the text
    return trained, rope, local_rope


def heads_of(config: Config) -> tuple[int, int, int]:
    """Return (query heads, key-value heads, features of each) of config.json."""
    config, _ = translate_config(config)
    hidden = size(config, *HIDDEN)
    return _heads(config, hidden, latent_of(config))


def _heads(config: Config, hidden: int, latent: Latent | None) -> tuple[int, int, int]:
    """Return (query heads, key-value heads, features of each)."""
    num_heads = size(config, "num_attention_heads", "n_head")
    if latent:
        return num_heads, num_heads, latent.plain + latent.rotated
    num_kv_heads = size(config, "num_key_value_heads", "num_kv_heads", default=num_heads)
    if num_heads % num_kv_heads:
        raise StartError(
            f"config.json has num_attention_heads {num_heads}, expected a multiple of "
            f"num_key_value_heads={num_kv_heads}"
        )
    head_dim = size(config, "head_dim", default=hidden // num_heads)
    if not 0 < head_dim <= MAX_HEAD_FEATURES:
        raise StartError(
            f"config.json has hidden_size {hidden} of {num_heads} heads, expected 1 to "
            f"{MAX_HEAD_FEATURES} features of each"
        )
    return num_heads, num_kv_heads, head_dim


def _attention_scale(config: Config, head_dim: int, latent: Latent | None) -> float:
    multiplier = config.get("attention_multiplier")
    if multiplier is not None:
        return float(multiplier)
    scale: float = float(config.get("query_pre_attn_scalar") or head_dim) ** -0.5
    scaling = scaling_of(config)
    weight = scaling.get("mscale_all_dim")
    if latent and weight and scaling.get("factor"):
        scale *= sharpness(float(scaling["factor"]), float(weight)) ** 2
    return scale


def _eps_keys(architecture: Architecture) -> tuple[str, ...]:
    return (
        ("rms_norm_eps", *LAYER_NORM_EPS)
        if architecture.norm in (RMS, RMS_PLUS_ONE)
        else LAYER_NORM_EPS
    )


def _flag(config: Config, setting: bool | str) -> bool:
    return bool(config.get(setting)) if isinstance(setting, str) else setting
