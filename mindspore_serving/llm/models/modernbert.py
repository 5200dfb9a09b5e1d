"""ModernBERT: an encoder with rotary positions, norms before the blocks, gated feed-forward blocks,
and layers that see only the tokens nearby.
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

WORDS = "embeddings.tok_embeddings.weight"
PREFIXES = ("", "model.")
LOCAL = "sliding_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernBertSpec:
    """Sizes and options.  `windows` has for each layer how far a token sees, itself included, to
    both sides; 0 is everything.  `ropes` are those of layers that see everything, and of others."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    vocab_size: int
    max_positions: int
    norm_eps: float
    activation: str
    windows: tuple[int, ...]
    ropes: tuple[Rope, Rope]
    attention_bias: bool
    mlp_bias: bool
    norm_bias: bool
    first_position: int = 0

    def attention(self, layer: int) -> AttentionSpec:
        head_dim = self.hidden_size // self.num_heads
        window = self.windows[layer]
        return AttentionSpec(self.num_heads, self.num_heads, head_dim, head_dim**-0.5, window)


def from_config(config: Mapping[str, Any]) -> ModernBertSpec:
    """Raises StartError naming a key that is missing or out of range."""
    hidden, num_heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    if hidden % num_heads:
        raise StartError(
            f"config.json has hidden_size {hidden}, expected a multiple of "
            f"num_attention_heads={num_heads}"
        )
    most = size(config, "max_position_embeddings")
    given = config.get("rope_parameters") or {}
    bases = {
        "full_attention": config.get("global_rope_theta") or 160_000.0,
        LOCAL: config.get("local_rope_theta") or 10_000.0,
    }
    ropes = [
        rope_from(
            given.get(kind) or {},
            base=float(base),
            head_dim=hidden // num_heads,
            trained=most,
            longest=most,
        )
        for kind, base in bases.items()
    ]
    return ModernBertSpec(
        hidden_size=hidden,
        intermediate_size=size(config, "intermediate_size"),
        num_heads=num_heads,
        vocab_size=size(config, "vocab_size"),
        max_positions=most,
        norm_eps=number({"norm_eps": 1e-5, **config}, "norm_eps"),
        activation=str(config.get("hidden_activation") or "gelu"),
        windows=_windows(config),
        ropes=(ropes[0], ropes[1]),
        attention_bias=bool(config.get("attention_bias")),
        mlp_bias=bool(config.get("mlp_bias")),
        norm_bias=bool(config.get("norm_bias")),
    )


def _windows(config: Mapping[str, Any]) -> tuple[int, ...]:
    count = size(config, "num_hidden_layers")
    every = size(config, "global_attn_every_n_layers", default=3)
    window = size(config, "local_attention", default=128) // 2 + 1
    kinds = config.get("layer_types") or [LOCAL if i % every else "" for i in range(count)]
    if len(kinds) != count:
        raise StartError(f"config.json has {len(kinds)} layer_types, expected {count}")
    return tuple(window if kind == LOCAL else 0 for kind in kinds)


def encoder(ops: Ops, spec: ModernBertSpec, inputs: EncoderInputs) -> Tensor:
    """The final hidden state of every token, [tokens, hidden_size].  Raises StartError: an unknown
    activation, a wrong tensor."""
    if spec.activation not in GELU:
        raise StartError(f"activation is {spec.activation!r}, expected one of {', '.join(GELU)}")
    part = _Part(ops, spec, next((p for p in PREFIXES if ops.has_weight(p + WORDS)), ""))
    tables = [ops.rope_tables(inputs.positions, r.inv_freq, r.scale) for r in spec.ropes]
    x = part.norm(ops.embedding(inputs.token_ids, part.weight(WORDS)), "embeddings.norm")
    for index, window in enumerate(spec.windows):
        prefix = f"layers.{index}."
        h = part.norm(x, f"{prefix}attn_norm") if index else x
        x = ops.add(x, _attention(part, h, index, tables[bool(window)]))
        x = ops.add(x, _feed_forward(part, part.norm(x, f"{prefix}mlp_norm"), prefix))
    return part.norm(x, "final_norm")


def _attention(part: "_Part", h: Tensor, index: int, tables: Tensor) -> Tensor:
    ops, spec, prefix = part.ops, part.spec, f"layers.{index}.attn."
    fused = part.linear(h, f"{prefix}Wqkv", has_bias=spec.attention_bias)
    q, k, v = ops.split(fused, [spec.hidden_size] * 3)
    q, k = (ops.rope(one, tables, spec.num_heads) for one in (q, k))
    h = ops.attention(index, q, k, v, spec.attention(index))
    return part.linear(h, f"{prefix}Wo", has_bias=spec.attention_bias)


def _feed_forward(part: "_Part", h: Tensor, prefix: str) -> Tensor:
    ops, spec = part.ops, part.spec
    fused = part.linear(h, f"{prefix}mlp.Wi", has_bias=spec.mlp_bias)
    value, gate = ops.split(fused, [spec.intermediate_size] * 2)
    h = ops.mul(ops.gelu(value, tanh=GELU[spec.activation]), gate)
    return part.linear(h, f"{prefix}mlp.Wo", has_bias=spec.mlp_bias)


@dataclass(frozen=True, slots=True)
class _Part:
    """Operations by the names of tensors."""

    ops: Ops
    spec: ModernBertSpec
    prefix: str

    def weight(self, name: str) -> Any:
        return self.ops.weight(self.prefix + name)

    def linear(self, x: Tensor, name: str, *, has_bias: bool) -> Tensor:
        bias = self.weight(f"{name}.bias") if has_bias else None
        return self.ops.linear(x, self.weight(f"{name}.weight"), bias)

    def norm(self, x: Tensor, name: str) -> Tensor:
        bias = self.weight(f"{name}.bias") if self.spec.norm_bias else None
        return self.ops.layer_norm(x, self.weight(f"{name}.weight"), bias, self.spec.norm_eps)


def tables(spec: ModernBertSpec) -> list[tuple[list[str], int]]:
    """(names that it may have, rows) of each table that is read by what a request says."""
    return [([prefix + WORDS for prefix in PREFIXES], spec.vocab_size)]


def type_tables(spec: ModernBertSpec) -> list[str]:
    """There are no types of tokens."""
    return []
