"""Encoders shaped like BERT: BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, MPNet.

Every token sees the whole prompt, and the norms come after the sums.  The families differ by what
checkpoints call their tensors, by where positions begin, and by whether there are token types.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindspore_serving.core.tasks import split_architecture
from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.config_types import number, size
from mindspore_serving.llm.models.layer import GELU
from mindspore_serving.llm.models.ops import AttentionSpec, Ops, Tensor


@dataclass(frozen=True, slots=True)
class Names:
    """What a checkpoint calls its tensors; those below `layers` are of a layer."""

    prefixes: tuple[str, ...]  # one of these is before every name
    layers: str = "encoder.layer"
    qkv: tuple[str, ...] = ("attention.self.query", "attention.self.key", "attention.self.value")
    output: str = "attention.output.dense"
    output_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    down_norm: str = "output.LayerNorm"
    types: str = "embeddings.token_type_embeddings"  # "" for a family without
    distances: str = ""  # a table of what is added to scores, [buckets, heads]


BERT = Names(("", "bert."))
ROBERTA = Names(("", "roberta."))
MPNET = Names(
    ("", "mpnet."),
    qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    output="attention.attn.o",
    output_norm="attention.LayerNorm",
    types="",
    distances="encoder.relative_attention_bias.weight",
)
DISTILBERT = Names(
    ("", "distilbert."),
    layers="transformer.layer",
    qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    output="attention.out_lin",
    output_norm="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    down_norm="output_layer_norm",
    types="",
)
# By the beginning of the architecture's name.
FAMILIES = {
    "Bert": BERT,
    "Roberta": ROBERTA,
    "XLMRoberta": ROBERTA,
    "Camembert": ROBERTA,
    "DistilBert": DISTILBERT,
    "MPNet": MPNET,
}
WORDS = "embeddings.word_embeddings.weight"
POSITIONS = "embeddings.position_embeddings.weight"
DISTANCES, FARTHEST = 32, 128  # rows of MPNet's table, and places that the last one begins at
DISTILBERT_DEFAULTS = {"layer_norm_eps": 1e-12, "activation": "gelu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """One encoder's sizes and options.

    `max_positions` is of a prompt; its first token is at row `first_position` of the table.
    """

    names: Names
    hidden_size: int
    num_layers: int
    num_heads: int
    vocab_size: int
    max_positions: int
    first_position: int
    norm_eps: float
    activation: str

    def attention(self) -> AttentionSpec:
        head_dim = self.hidden_size // self.num_heads
        return AttentionSpec(self.num_heads, self.num_heads, head_dim, head_dim**-0.5)


@dataclass(frozen=True, slots=True)
class EncoderInputs:
    """The inputs of a pass, [tokens] each, of prompts one after another."""

    token_ids: Tensor
    positions: Tensor  # rows of the position table
    types: Tensor  # rows of the type table: 1 where the second of two texts is


def from_config(config: Mapping[str, Any]) -> EncoderSpec:
    """The spec of the encoder that `config` (config.json) describes.

    Raises StartError naming a key that is missing or out of range, or what is not supported.
    """
    names = FAMILIES[split_architecture(config["architectures"][0])[0]]
    if names is DISTILBERT:
        config = {**DISTILBERT_DEFAULTS, **config}
    kind = config.get("position_embedding_type", "absolute")
    if kind != "absolute":
        raise StartError(f"config.json has position_embedding_type {kind!r}, expected absolute")
    if config.get("is_decoder"):
        raise StartError("config.json has is_decoder, expected an encoder")
    hidden = size(config, "hidden_size", "dim")
    num_heads = size(config, "num_attention_heads", "n_heads")
    if hidden % num_heads:
        raise StartError(
            f"config.json has hidden_size {hidden}, expected a multiple of "
            f"num_attention_heads={num_heads}"
        )
    first = 1 + _padding_id(config) if names in (ROBERTA, MPNET) else 0
    return EncoderSpec(
        names=names,
        hidden_size=hidden,
        num_layers=size(config, "num_hidden_layers", "n_layers"),
        num_heads=num_heads,
        vocab_size=size(config, "vocab_size"),
        max_positions=size(config, "max_position_embeddings") - first,
        first_position=first,
        norm_eps=number(config, "layer_norm_eps"),
        activation=str(config.get("hidden_act") or config.get("activation") or "gelu"),
    )


def _padding_id(config: Mapping[str, Any]) -> int:
    """RoBERTa's positions begin behind the row of the padding token."""
    found = config.get("pad_token_id", 1)
    if not isinstance(found, int) or found < 0:
        raise StartError(f"config.json has pad_token_id {found!r}, expected an int of 0 or more")
    return found


def encoder(ops: Ops, spec: EncoderSpec, inputs: EncoderInputs) -> Tensor:
    """The final hidden state of every token, [tokens, hidden_size].

    `ops.attention` sees whole prompts.  Raises StartError: an unknown activation, a wrong tensor.
    """
    types, prefixes = spec.names.types, spec.names.prefixes
    # A model for another task has its encoder one level down.
    prefix = next((one for one in prefixes if ops.has_weight(one + WORDS)), prefixes[0])
    part = Part(ops, spec, prefix)
    x = ops.embedding(inputs.token_ids, part.weight(WORDS))
    x = ops.add(x, ops.embedding(inputs.positions, part.weight(POSITIONS)))
    if types:
        x = ops.add(x, ops.embedding(inputs.types, part.weight(f"{types}.weight")))
    x = part.norm(x, "embeddings.LayerNorm")
    if spec.names.distances:
        ops.add_distances(part.weight(spec.names.distances), buckets(spec))
    for index in range(spec.num_layers):
        x = _layer(part, x, index)
    return x


def _layer(part: "Part", x: Tensor, index: int) -> Tensor:
    ops, spec, names = part.ops, part.spec, part.spec.names
    prefix = f"{names.layers}.{index}."
    q, k, v = (part.linear(x, prefix + name) for name in names.qkv)
    h = ops.attention(index, q, k, v, spec.attention())
    h = part.linear(h, prefix + names.output)
    x = part.norm(ops.add(x, h), prefix + names.output_norm)
    h = ops.gelu(part.linear(x, prefix + names.up), tanh=part.is_tanh)
    h = part.linear(h, prefix + names.down)
    return part.norm(ops.add(x, h), prefix + names.down_norm)


@dataclass(frozen=True, slots=True)
class Part:
    """Operations by the names of tensors."""

    ops: Ops
    spec: EncoderSpec
    prefix: str

    @property
    def is_tanh(self) -> bool:
        found = GELU.get(self.spec.activation)
        if found is None:
            raise StartError(
                f"activation is {self.spec.activation!r}, expected one of {', '.join(GELU)}"
            )
        return found

    def weight(self, name: str) -> Any:
        return self.ops.weight(self.prefix + name)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return self.ops.linear(x, self.weight(f"{name}.weight"), self.weight(f"{name}.bias"))

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Checkpoints from TensorFlow call the two tensors gamma and beta."""
        is_old = self.ops.has_weight(f"{self.prefix}{name}.gamma")
        gain, shift = ("gamma", "beta") if is_old else ("weight", "bias")
        weight, bias = self.weight(f"{name}.{gain}"), self.weight(f"{name}.{shift}")
        return self.ops.layer_norm(x, weight, bias, self.spec.norm_eps)


def buckets(spec: EncoderSpec) -> list[int]:
    """MPNet's row of the table of distances for a token so many places before another, or behind
    it: of -n to n places, where n is the longest distance.  Half of the rows are for each side; of
    these half for single distances, the others for ranges that grow up to 128."""
    half, most = DISTANCES // 2, spec.max_positions - 1
    found = []
    for places in range(-most, most + 1):
        distance, row = abs(places), abs(places)
        if distance >= half // 2:
            share = np.log(np.float32(distance) / np.float32(half // 2))
            share = np.float32(share) / np.float32(math.log(FARTHEST / (half // 2)))
            row = min(half // 2 + int(share * (half - half // 2)), half - 1)
        found.append(row + (half if places > 0 else 0))
    return found


def tables(spec: EncoderSpec) -> list[tuple[list[str], int]]:
    """(names that it may have, rows) of each table that is read by what a request says."""
    rows = {WORDS: spec.vocab_size, POSITIONS: spec.first_position + spec.max_positions}
    return [([p + name for p in spec.names.prefixes], count) for name, count in rows.items()]


def type_tables(spec: EncoderSpec) -> list[str]:
    """The names that the table of types may have; empty for a family without."""
    types = spec.names.types
    return [f"{prefix}{types}.weight" for prefix in spec.names.prefixes if types]
