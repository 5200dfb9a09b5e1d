"""The tensors of a GGUF file as checkpoints in Hugging Face's format have them.

Names are translated; the rows of Llama's queries and keys are put back in the order of halves,
from that of pairs; norms to which the definition adds 1 have a 1 taken off; stacked experts, and
queries, keys and values where they are one, become one tensor each; `states` has what layers with a
state have.  No number of a quantised tensor is decoded.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.configuration import (
    ARCHITECTURE,
    config_of,
    family_of,
    form_of,
)
from mindspore_serving.llm.checkpoint.gguf.families import Family
from mindspore_serving.llm.checkpoint.gguf.names import RATE, Roles, roles_of
from mindspore_serving.llm.checkpoint.gguf.reader import Blocks, GgufFile
from mindspore_serving.llm.checkpoint.gguf.states import parts_of
from mindspore_serving.llm.checkpoint.gguf.stored import (
    LATENT,
    LATENT_KEYS,
    LATENT_VALUES,
    Order,
    joined,
    stored,
    widening,
)
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor
from mindspore_serving.llm.descriptions.architecture import (
    LAYER_PLUS_ONE,
    RMS_PLUS_ONE,
    Architecture,
)
from mindspore_serving.llm.descriptions.config_types import size

NOT_READ = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
CONVOLUTION = "shortconv.conv"
_NAME = re.compile(r"blk\.(\d+)\.(.+?)(?:\.(weight|bias))?")
Named = Iterator[tuple[str, StoredTensor]]


@dataclass(frozen=True, slots=True)
class _Model:
    """What the names of a file mean."""

    file: GgufFile
    config: dict[str, Any]
    family: Family
    form: Architecture
    roles: Roles


def read_tensors(file: GgufFile) -> dict[str, StoredTensor]:
    """The tensors by Hugging Face's names.  Raises StartError naming one that is not known, or what
    is wrong of the numbers of layers and heads."""
    config = config_of(file)
    size(config, "num_hidden_layers")
    family = family_of(file)
    form = form_of(family, config)
    roles = roles_of(form)
    roles = replace(roles, layer={**roles.layer, **family.tensors})
    model = _Model(file, config, family, form, roles)
    tensors: dict[str, StoredTensor] = {}
    for name, blocks in file.tensors.items():
        if name not in NOT_READ:
            tensors |= _renamed(model, name, blocks)
    if form.norm in (RMS_PLUS_ONE, LAYER_PLUS_ONE):
        tensors = {name: _less_one(name, one) for name, one in tensors.items()}
    return tensors


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor of layer `number`: `name` is blk.NUMBER.ROLE.LEAF, or has no leaf."""

    model: _Model
    name: str
    number: int
    role: str
    leaf: str
    blocks: Blocks

    @property
    def layer(self) -> str:
        """The layer as checkpoints call it."""
        return f"{self.model.form.names.layers}.{self.number}"

    @property
    def end(self) -> str:
        """The name without its layer."""
        return self.name.split(".", 2)[2]

    @property
    def has_state(self) -> bool:
        """Whether its layer has one that decays, as all but convolutions alone."""
        return f"blk.{self.number}.{RATE}" in self.model.file.tensors

    @property
    def is_stack(self) -> bool:
        """Whether it has a matrix, or a bias, of each expert."""
        return len(self.blocks.shape) == (3 if self.leaf == "weight" else 2)


def _renamed(model: _Model, name: str, blocks: Blocks) -> Named:
    stem, _, leaf = name.rpartition(".")
    if stem in model.roles.top:
        return _outside(model.roles.top[stem], leaf, blocks)
    match = _NAME.fullmatch(name)
    if match:
        one = _Tensor(model, name, int(match[1]), match[2], match[3] or "weight", blocks)
        if one.number >= model.config["num_hidden_layers"]:
            _check_predicts(model.file, name, one.number)
            return iter(())
        for is_of_kind, read in _KINDS:
            if is_of_kind(one):
                return read(one)
    family = model.file.metadata[ARCHITECTURE]
    raise StartError(
        f"{model.file.path} has a tensor {name!r}, which models of architecture {family!r} do "
        "not have here: it is made for a newer or another kind of model"
    )


def _check_predicts(file: GgufFile, name: str, layer: int) -> None:
    """Raises StartError for a tensor of a layer that the file does not say predicts more tokens:
    these are behind all others, and counted with them."""
    count = file.metadata.get(f"{file.metadata[ARCHITECTURE]}.block_count")
    if not isinstance(count, int) or layer >= count:
        raise StartError(
            f"{file.path} has a tensor {name!r}, but block_count {count}: it is damaged, or says "
            "that it has fewer layers than it has"
        )


def _outside(stem: str, leaf: str, blocks: Blocks) -> Named:
    """A tensor that is not a layer's; matrices that are one are by their numbers."""
    if len(blocks.shape) < 3:
        yield f"{stem}.{leaf}", stored(blocks)
        return
    for index, one in enumerate(_cut(blocks)):
        yield f"{stem}.{index}.{leaf}", stored(one)


def _cut(blocks: Blocks, parts: int = 1) -> Iterator[Blocks]:
    """The matrices of a tensor [count, out, in], each in `parts` of as many rows, or the vectors of
    one [count, out]."""
    count, shape = blocks.shape[0] * parts, blocks.shape[1:]
    each = blocks.rows.reshape(count, -1, blocks.rows.shape[-1])
    shape = (shape[0] // parts, *shape[1:]) if parts > 1 else shape
    return (Blocks(blocks.kind, shape, rows) for rows in each)


def _of_states(one: _Tensor) -> Named:
    model = one.model
    parts, config, family = model.roles.states[one.end], model.config, model.family
    for part, tensor in parts_of(one.name, parts, one.blocks, config=config, family=family):
        yield f"{one.layer}.{part}", tensor


def _bare(one: _Tensor) -> Named:
    yield f"{one.layer}.{one.model.roles.bare[one.role]}", stored(one.blocks)


def _of_experts(one: _Tensor) -> Named:
    """The matrices of a tensor [experts, out, in], or the biases of one [experts, out].  Raises
    StartError if the parts of an expert are not as large as each other."""
    experts = one.model.form.experts
    assert experts is not None
    parts = one.model.roles.experts[one.role]
    if one.blocks.shape[1] % len(parts):
        raise StartError(
            f"tensor {one.role}.{one.leaf} of {one.layer} has {one.blocks.shape[1]} rows for each "
            f"expert, expected a multiple of {len(parts)}"
        )
    for index, matrix in enumerate(_cut(one.blocks, len(parts))):
        expert, part = divmod(index, len(parts))
        name = f"{one.layer}.{experts.prefix}.{expert}.{parts[part]}.{one.leaf}"
        yield name, stored(matrix)


def _packed(one: _Tensor) -> Named:
    """Queries, keys and values, whose rows are below one another.  Raises StartError unless there
    are as many as heads need."""
    config, blocks = one.model.config, one.blocks
    heads, features = config.get("num_attention_heads"), config.get("head_dim")
    keys = config.get("num_key_value_heads") or heads
    rows = blocks.rows.reshape(blocks.shape[0], -1)
    if not type(heads) is type(keys) is type(features) is int or len(rows) != (
        (heads + 2 * keys) * features
    ):
        raise StartError(
            f"tensor attn_qkv.{one.leaf} of {one.layer} has {len(rows)} rows, expected those of "
            f"{heads} query heads, {keys} key heads and as many value heads of {features} rows each"
        )
    begin = 0
    for name, count in zip(one.model.form.names.qkv, (heads, keys, keys), strict=True):
        part = rows[begin : begin + count * features]
        begin += len(part)
        shape = (len(part), *blocks.shape[1:])
        yield f"{one.layer}.{name}.{one.leaf}", stored(Blocks(blocks.kind, shape, part))


def _latent(one: _Tensor) -> Named:
    """Of the keys' part, which the values' is beside."""
    if LATENT_KEYS in one.name:
        values = one.model.file.tensors.get(one.name.replace(LATENT_KEYS, LATENT_VALUES))
        yield f"{one.layer}.self_attn.kv_b_proj.weight", widening(one.layer, one.blocks, values)


def _has_gate(one: _Tensor) -> bool:
    """Whether it is the gate or the other half of a block that checkpoints have as one matrix."""
    form, half = one.model.form, one.role.replace("ffn_gate", "ffn_up")
    is_half = half in ("ffn_up", "ffn_up_shexp") and half in one.model.roles.layer
    is_one = form.gated and len(form.names.gate_up) == 1 and one.leaf == "weight"
    return is_one and is_half and one.name.replace("ffn_up", "ffn_gate") in one.model.file.tensors


def _gated(one: _Tensor) -> Named:
    """Of the gate, which the other half is below.  Raises StartError unless that is as large."""
    if "ffn_gate" not in one.name:
        return
    up, shape = one.model.file.tensors.get(one.name.replace("ffn_gate", "ffn_up")), one.blocks.shape
    if up is None or up.shape != shape:
        found = list(up.shape) if up else None
        raise StartError(f"tensor {one.name!r} is {list(shape)}, and its other half {found}")
    yield f"{one.layer}.{one.model.form.names.gate_up[0]}.weight", joined((one.blocks, up))


def _of_layer(one: _Tensor) -> Named:
    model, blocks = one.model, one.blocks
    rows = None
    if model.family.pairs and one.role in ("attn_q", "attn_k"):
        rows = _halves(blocks.shape[0], _heads(one))
    if one.role == CONVOLUTION and one.leaf == "weight":  # of each feature by itself
        blocks = replace(blocks, shape=(blocks.shape[0], 1, *blocks.shape[1:]))
    is_matrix = one.leaf == "weight" and len(blocks.shape) == 2
    kind = model.form.names.matrix if is_matrix else one.leaf
    yield f"{one.layer}.{model.roles.layer[one.role]}.{kind}", stored(blocks, rows)


_KINDS: tuple[tuple[Callable[[_Tensor], bool], Callable[[_Tensor], Named]], ...] = (
    (lambda one: one.end in one.model.roles.states and one.has_state, _of_states),
    (lambda one: one.role in one.model.roles.bare, _bare),
    (lambda one: one.role in one.model.roles.experts and one.is_stack, _of_experts),
    (lambda one: one.role == "attn_qkv" and len(one.model.form.names.qkv) == 3, _packed),
    (lambda one: one.role in LATENT and "kv_lora_rank" in one.model.config, _latent),
    (_has_gate, _gated),
    (lambda one: one.role in one.model.roles.layer, _of_layer),
)
"""Kinds of tensors of a layer, and what checkpoints have of each; the first that fits counts."""


def _heads(one: _Tensor) -> int:
    """How many there are.  Raises StartError unless the rows are theirs."""
    config = one.model.config
    key = "num_attention_heads" if one.role == "attn_q" else "num_key_value_heads"
    heads = config.get(key) or config.get("num_attention_heads")
    count = one.blocks.shape[0]
    if type(heads) is not int or heads < 1 or count % (2 * heads):
        raise StartError(f"tensor {one.name!r} has {count} rows, expected {heads} heads of pairs")
    return heads


def _halves(count: int, heads: int) -> Order:
    """Rows of each head in the order 0, 2, 4 .. 1, 3, 5: what is rotated together is half a head
    apart.  llama.cpp has it side by side."""
    return np.arange(count).reshape(heads, -1, 2).swapaxes(1, 2).ravel()


def _less_one(name: str, one: StoredTensor) -> StoredTensor:
    """A norm's weight, to which the definition adds 1; not that of what a state gives."""
    is_such = name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")
    if not is_such or one.dtype != "F32":
        return one
    return StoredTensor("F32", one.shape, one.bits - np.float32(1))
