"""A model's sizes and options, read from config.json once and checked.  Knows no runtime."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.config_types import MOST_FEATURES, check_types, most
from mindspore_serving.llm.models.ops import AttentionSpec
from mindspore_serving.llm.models.rope import Rope, rope_from

Config = Mapping[str, Any]

# What config.json may leave out, where the architecture's default differs from Llama's.
DEFAULTS: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {
        "tie_word_embeddings": True,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
    },
    "Qwen2ForCausalLM": {"use_sliding_window": False},
    "Qwen3ForCausalLM": {"use_sliding_window": False},
    "Qwen3MoeForCausalLM": {"use_sliding_window": False},
    "Gemma2ForCausalLM": {
        "tie_word_embeddings": True,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
    },
    "Gemma3ForCausalLM": {
        "tie_word_embeddings": True,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "rms_norm_eps": 1e-6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    },
    "MixtralForCausalLM": {"norm_topk_prob": True},
}
DEFAULTS["Gemma3ForConditionalGeneration"] = DEFAULTS["Gemma3ForCausalLM"]
ACTIVATIONS = ("hidden_activation", "hidden_act", "activation_function")
QKV_BIASED = ("Qwen2ForCausalLM",)
QK_NORMED = (
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model's sizes and options.

    `windows` has, for each layer, how many tokens it attends to, the current one among them; 0 is
    all.  `local_rope` is for layers with a window, where that differs.  `sparse_layers` has
    the layers that are mixtures of `num_experts`.  `activation` is the name in config.json.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    norm_eps: float
    rope: Rope
    local_rope: Rope | None
    windows: tuple[int, ...]
    attention_scale: float
    attention_softcap: float
    logit_softcap: float
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    activation: str
    num_experts: int
    experts_per_token: int
    normalize_experts: bool
    sparse_layers: frozenset[int]

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    def attention(self, layer: int, alibi: tuple[float, ...] | None = None) -> AttentionSpec:
        return AttentionSpec(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            scale=self.attention_scale,
            window=self.windows[layer],
            softcap=self.attention_softcap,
            alibi=alibi,
        )


def from_config(config: Config, *, max_model_len: int | None = None) -> ModelSpec:
    """The spec of the model that `config` (config.json) describes.

    `max_model_len` is the longest text to be served, by default the model's own limit; some rotary
    scalings depend on it.  Raises StartError naming a key that is missing or out of range.
    """
    config = _flat(config)
    architecture = str(config["architectures"][0])
    num_layers = size(config, "num_hidden_layers", "n_layer")
    hidden = size(config, "hidden_size", "n_embd")
    num_heads, num_kv_heads, head_dim = _heads(config, hidden)
    trained = size(config, "max_position_embeddings", "n_positions", "model_max_length")
    rope, local_rope = _ropes(config, head_dim, trained, max_model_len or trained)
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if "dynamic" in (scaling.get("rope_type"), scaling.get("type")):
        trained = max(trained, max_model_len or 0)  # the rotary base grows with the text
    num_experts = size(config, "num_local_experts", "num_experts", default=0)
    all_biased = bool(config.get("attention_bias") or config.get("bias"))
    return ModelSpec(
        architecture=architecture,
        hidden_size=hidden,
        intermediate_size=size(config, "intermediate_size", "n_inner", default=4 * hidden),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=size(config, "vocab_size"),
        max_position_embeddings=trained,
        norm_eps=number(config, "rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"),
        rope=rope,
        local_rope=local_rope,
        windows=_windows(config, num_layers),
        attention_scale=float(config.get("query_pre_attn_scalar") or head_dim) ** -0.5,
        attention_softcap=float(config.get("attn_logit_softcapping") or 0.0),
        logit_softcap=float(config.get("final_logit_softcapping") or 0.0),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=all_biased or architecture in QKV_BIASED,
        output_bias=all_biased,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=architecture in QK_NORMED,
        activation=next((str(config[key]) for key in ACTIVATIONS if config.get(key)), "silu"),
        num_experts=num_experts,
        experts_per_token=size(config, "num_experts_per_tok", default=0),
        normalize_experts=bool(config.get("norm_topk_prob", False)),
        sparse_layers=_sparse_layers(config, num_layers) if num_experts else frozenset(),
    )


def _heads(config: Config, hidden: int) -> tuple[int, int, int]:
    """(query heads, key-value heads, features of each)."""
    num_heads = size(config, "num_attention_heads", "n_head")
    num_kv_heads = size(config, "num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        raise StartError(
            f"config.json has num_attention_heads {num_heads}, expected a multiple of "
            f"num_key_value_heads={num_kv_heads}"
        )
    head_dim = size(config, "head_dim", default=hidden // num_heads)
    if not 0 < head_dim <= MOST_FEATURES:
        raise StartError(
            f"config.json has hidden_size {hidden} of {num_heads} heads, expected 1 to "
            f"{MOST_FEATURES} features of each"
        )
    return num_heads, num_kv_heads, head_dim


def size(config: Config, *names: str, default: int | None = None) -> int:
    """The first of `names` that `config` has; StartError unless an int over 0, or the default."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise StartError(f"config.json has {name} {value!r}, expected an int over 0")
        if value > most(name):
            shown = str(value) if value < 10**40 else "a number of over 40 digits"
            raise StartError(f"config.json has {name} {shown}, expected at most {most(name)}")
        return value
    if default is None:
        raise StartError(f"config.json has no {' or '.join(names)}")
    return default


def number(config: Config, *names: str) -> float:
    """The first of `names` that `config` has, as a finite float over 0."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, int | float) or not 0 < value < 1e30:
            raise StartError(f"config.json has {name} {value!r}, expected a number over 0")
        return float(value)
    raise StartError(f"config.json has no {' or '.join(names)}")


def _flat(config: Config) -> Config:
    """With a multi-modal model's text part on top, and the architecture's defaults below."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise StartError("config.json has no architectures")
    check_types(config)
    text = config.get("text_config")
    flat = {**config, **text} if isinstance(text, dict) else {**config}
    check_types(flat)
    return {**DEFAULTS.get(str(names[0]), {}), **flat, "architectures": names}


def _ropes(config: Config, head_dim: int, trained: int, longest: int) -> tuple[Rope, Rope | None]:
    top = ("partial_rotary_factor", "original_max_position_embeddings")
    shared = {name: config[name] for name in top if config.get(name) is not None}
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = float(config.get("rope_theta") or 10000.0)

    def rope(parameters: Config, theta: float) -> Rope:
        return rope_from(
            {**shared, **parameters}, base=theta, head_dim=head_dim, trained=trained,
            longest=longest,
        )  # fmt: skip

    local_base = config.get("rope_local_base_freq")
    if "full_attention" in given:  # one entry for each kind of layer
        local = given.get("sliding_attention") or {}
        return rope(given["full_attention"], base), rope(local, float(local_base or base))
    return rope(given, base), rope({}, float(local_base)) if local_base else None


def _windows(config: Config, num_layers: int) -> tuple[int, ...]:
    window = config.get("sliding_window") or 0
    if not config.get("use_sliding_window", True):
        window = 0
    kinds = config.get("layer_types")
    pattern = config.get("sliding_window_pattern")  # every so many layers, one sees everything
    first = (config.get("max_window_layers") or 0) if "use_sliding_window" in config else 0
    if kinds is not None:
        if len(kinds) != num_layers:
            raise StartError(
                f"config.json has {len(kinds)} layer_types, expected {num_layers}, one per layer"
            )
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    if pattern:
        return tuple(window if (i + 1) % pattern else 0 for i in range(num_layers))
    return tuple(window if i >= first else 0 for i in range(num_layers))


def _sparse_layers(config: Config, num_layers: int) -> frozenset[int]:
    step = config.get("decoder_sparse_step") or 1
    dense = set(config.get("mlp_only_layers") or ())
    return frozenset(i for i in range(num_layers) if i not in dense and (i + 1) % step == 0)
