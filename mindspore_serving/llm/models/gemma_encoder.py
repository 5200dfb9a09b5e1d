"""EmbeddingGemma: the layers of Gemma 3, in which a token sees the whole text, or in some of them
the tokens nearby on both sides.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.bert import EncoderInputs
from mindspore_serving.llm.models.config_types import number, size
from mindspore_serving.llm.models.layer import GELU
from mindspore_serving.llm.models.ops import AttentionSpec, Ops, Tensor
from mindspore_serving.llm.models.rope import Rope, rope_from

WORDS = "embed_tokens.weight"
PREFIXES = ("", "model.")
LOCAL = "sliding_attention"
DEFAULTS = {
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "max_position_embeddings": 131072,
    "hidden_activation": "gelu_pytorch_tanh",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaEncoderSpec:
    """Sizes and options; `windows` and `ropes` as those of ModernBERT."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    norm_eps: float
    attention_scale: float
    activation: str
    windows: tuple[int, ...]
    ropes: tuple[Rope, Rope]
    first_position: int = 0

    def attention(self, layer: int) -> AttentionSpec:
        return AttentionSpec(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            scale=self.attention_scale,
            window=self.windows[layer],
        )


def is_bidirectional(config: Mapping[str, Any]) -> bool:
    """Whether a Gemma 3 sees what is behind a token too, and so generates nothing."""
    return bool(config.get("use_bidirectional_attention"))


def from_config(config: Mapping[str, Any]) -> GemmaEncoderSpec:
    """Raises StartError naming a key that is missing or out of range."""
    config = {**DEFAULTS, **{key: value for key, value in config.items() if value is not None}}
    if not is_bidirectional(config):
        raise StartError("config.json has no use_bidirectional_attention, expected true")
    if config.get("attn_logit_softcapping"):
        raise StartError("config.json has attn_logit_softcapping, expected none")
    num_heads = size(config, "num_attention_heads")
    most = size(config, "max_position_embeddings")
    return GemmaEncoderSpec(
        hidden_size=size(config, "hidden_size"),
        num_heads=num_heads,
        num_kv_heads=size(config, "num_key_value_heads", default=num_heads),
        head_dim=size(config, "head_dim"),
        vocab_size=size(config, "vocab_size"),
        max_positions=most,
        norm_eps=number(config, "rms_norm_eps"),
        attention_scale=number(config, "query_pre_attn_scalar") ** -0.5,
        activation=str(config["hidden_activation"]),
        windows=_windows(config),
        ropes=(
            _rope(config, "full_attention", "rope_theta"),
            _rope(config, LOCAL, "rope_local_base_freq"),
        ),
    )


def _rope(config: Mapping[str, Any], kind: str, base: str) -> Rope:
    most = size(config, "max_position_embeddings")
    given = (config.get("rope_parameters") or {}).get(kind)
    if given is None:
        given = (config.get("rope_scaling") or {}) if kind != LOCAL else {}
    return rope_from(
        given,
        base=number(config, base),
        head_dim=size(config, "head_dim"),
        trained=most,
        longest=most,
    )


def _windows(config: Mapping[str, Any]) -> tuple[int, ...]:
    count, every = size(config, "num_hidden_layers"), size(config, "sliding_window_pattern")
    window = size(config, "sliding_window") // 2 + 1  # half of it to each side
    kinds = config.get("layer_types") or [LOCAL if (i + 1) % every else "" for i in range(count)]
    if len(kinds) != count:
        raise StartError(f"config.json has {len(kinds)} layer_types, expected {count}")
    return tuple(window if kind == LOCAL else 0 for kind in kinds)


def encoder(ops: Ops, spec: GemmaEncoderSpec, inputs: EncoderInputs) -> Tensor:
    """The final hidden state of every token, [tokens, hidden_size].  Raises StartError: an unknown
    activation, a wrong tensor."""
    if spec.activation not in GELU:
        raise StartError(f"activation is {spec.activation!r}, expected one of {', '.join(GELU)}")
    part = _Part(ops, spec, next((p for p in PREFIXES if ops.has_weight(p + WORDS)), ""))
    tables = [ops.rope_tables(inputs.positions, r.inv_freq, r.scale) for r in spec.ropes]
    x = ops.embedding(inputs.token_ids, part.weight(WORDS))
    x = ops.scale(x, spec.hidden_size**0.5)
    for index, window in enumerate(spec.windows):
        prefix = f"layers.{index}."
        h = part.norm(x, f"{prefix}input_layernorm")
        h = _attention(part, h, index, tables[bool(window)])
        x = ops.add(x, part.norm(h, f"{prefix}post_attention_layernorm"))
        h = _feed_forward(part, part.norm(x, f"{prefix}pre_feedforward_layernorm"), prefix)
        x = ops.add(x, part.norm(h, f"{prefix}post_feedforward_layernorm"))
    return part.norm(x, "norm")


def _attention(part: "_Part", h: Tensor, index: int, tables: Tensor) -> Tensor:
    ops, spec, prefix = part.ops, part.spec, f"layers.{index}.self_attn."
    counts = {"q": spec.num_heads, "k": spec.num_kv_heads}
    turned = []
    for name, count in counts.items():
        weight = part.weight(f"{prefix}{name}_norm.weight")
        x = part.linear(h, f"{prefix}{name}_proj")
        x = ops.head_rms_norm(x, weight, count, spec.norm_eps, plus_one=True)
        turned.append(ops.rope(x, tables, count))
    v = part.linear(h, f"{prefix}v_proj")
    h = ops.attention(index, turned[0], turned[1], v, spec.attention(index))
    return part.linear(h, f"{prefix}o_proj")


def _feed_forward(part: "_Part", h: Tensor, prefix: str) -> Tensor:
    ops = part.ops
    gate, up = (part.linear(h, f"{prefix}mlp.{name}_proj") for name in ("gate", "up"))
    h = ops.mul(ops.gelu(gate, tanh=GELU[part.spec.activation]), up)
    return part.linear(h, f"{prefix}mlp.down_proj")


@dataclass(frozen=True, slots=True)
class _Part:
    """Operations by the names of tensors."""

    ops: Ops
    spec: GemmaEncoderSpec
    prefix: str

    def weight(self, name: str) -> Any:
        return self.ops.weight(self.prefix + name)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return self.ops.linear(x, self.weight(f"{name}.weight"))

    def norm(self, x: Tensor, name: str) -> Tensor:
        weight = self.weight(f"{name}.weight")
        return self.ops.rms_norm(x, weight, self.spec.norm_eps, plus_one=True)


def tables(spec: GemmaEncoderSpec) -> list[tuple[list[str], int]]:
    """(names that it may have, rows) of each table that is read by what a request says."""
    return [([prefix + WORDS for prefix in PREFIXES], spec.vocab_size)]


def type_tables(spec: GemmaEncoderSpec) -> list[str]:
    """There are no types of tokens."""
    return []
