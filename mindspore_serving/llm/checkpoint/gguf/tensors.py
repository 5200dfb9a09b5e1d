"""The tensors of a GGUF file as checkpoints in Hugging Face's format have them.

Names are translated; the rows of Llama's queries and keys are put back in the order of halves,
from that of pairs; norms to which the definition adds 1 have a 1 taken off; stacked experts, and
queries, keys and values where they are one, become one tensor each; `states` has what layers with a
state have.  No number of a quantised tensor is decoded.
"""

import re
from collections.abc import Iterator
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


def _renamed(model: _Model, name: str, blocks: Blocks) -> Named:
    roles, names = model.roles, model.form.names
    stem, _, leaf = name.rpartition(".")
    if stem in roles.top:
        yield from _outside(roles.top[stem], leaf, blocks)
        return
    match = _NAME.fullmatch(name)
    role, leaf = (match[2], match[3] or "weight") if match else ("", leaf)
    if match and int(match[1]) >= model.config["num_hidden_layers"]:
        _check_predicts(model.file, name, int(match[1]))
        return
    layer = f"{names.layers}.{match[1]}" if match else ""
    end = name.split(".", 2)[-1]
    if end in roles.states and match and f"blk.{match[1]}.{RATE}" in model.file.tensors:
        found = parts_of((model.config, model.family), name, roles.states[end], blocks)
        yield from ((f"{layer}.{part}", one) for part, one in found)
    elif role in roles.bare:
        yield f"{layer}.{roles.bare[role]}", stored(blocks)
    elif role in roles.experts and len(blocks.shape) == (3 if leaf == "weight" else 2):
        yield from _experts(model, layer, role, leaf, blocks)
    elif role == "attn_qkv" and len(names.qkv) == 3:
        yield from _packed(model, layer, leaf, blocks)
    elif role in (LATENT_KEYS, LATENT_VALUES) and "kv_lora_rank" in model.config:
        yield from _widening(model, layer, name, blocks)
    elif leaf == "weight" and _has_gate(model, name, role):
        yield from _gated(model, layer, name, blocks)
    elif role in roles.layer:
        yield _of_layer(model, layer, (name, role, leaf), blocks)
    else:
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


def _of_layer(
    model: _Model, layer: str, names: tuple[str, str, str], blocks: Blocks
) -> tuple[str, StoredTensor]:
    """What has one place in a layer, by its name, its role and whether it is a bias."""
    name, role, leaf = names
    pairs = model.family.pairs and role in ("attn_q", "attn_k")
    heads = _heads(name, blocks, model.config, role) if pairs else 0
    rows = _halves(blocks.shape[0], heads) if pairs else None
    if role == CONVOLUTION and leaf == "weight":  # of each feature by itself
        blocks = replace(blocks, shape=(blocks.shape[0], 1, *blocks.shape[1:]))
    is_matrix = leaf == "weight" and len(blocks.shape) == 2
    kind = model.form.names.matrix if is_matrix else leaf
    return f"{layer}.{model.roles.layer[role]}.{kind}", stored(blocks, rows)


def _has_gate(model: _Model, name: str, role: str) -> bool:
    """Whether it is the gate or the other half of a block that checkpoints have as one matrix."""
    half = role.replace("ffn_gate", "ffn_up")
    is_half = half in ("ffn_up", "ffn_up_shexp") and half in model.roles.layer
    is_one = model.form.gated and len(model.form.names.gate_up) == 1
    return is_one and is_half and name.replace("ffn_up", "ffn_gate") in model.file.tensors


def _gated(model: _Model, layer: str, name: str, blocks: Blocks) -> Named:
    """Of the gate, which the other half is below.  Raises StartError unless that is as large."""
    if "ffn_gate" not in name:
        return
    up = model.file.tensors.get(name.replace("ffn_gate", "ffn_up"))
    if up is None or up.shape != blocks.shape:
        found = list(up.shape) if up else None
        raise StartError(f"tensor {name!r} is {list(blocks.shape)}, and its other half {found}")
    yield f"{layer}.{model.form.names.gate_up[0]}.weight", joined((blocks, up))


def _widening(model: _Model, layer: str, name: str, blocks: Blocks) -> Named:
    """Of the keys' part, which the values' is beside."""
    if LATENT_KEYS in name:
        values = model.file.tensors.get(name.replace(LATENT_KEYS, LATENT_VALUES))
        yield f"{layer}.self_attn.kv_b_proj.weight", widening(layer, blocks, values)


def _heads(name: str, blocks: Blocks, config: dict[str, Any], role: str) -> int:
    """How many there are.  Raises StartError unless the rows are theirs."""
    key = "num_attention_heads" if role == "attn_q" else "num_key_value_heads"
    heads = config.get(key) or config.get("num_attention_heads")
    count = blocks.shape[0]
    if type(heads) is not int or heads < 1 or count % (2 * heads):
        raise StartError(f"tensor {name!r} has {count} rows, expected {heads} heads of pairs")
    return heads


def _halves(count: int, heads: int) -> Order:
    """Rows of each head in the order 0, 2, 4 .. 1, 3, 5: what is rotated together is half a head
    apart.  llama.cpp has it side by side."""
    return np.arange(count).reshape(heads, -1, 2).swapaxes(1, 2).ravel()


def _experts(model: _Model, layer: str, role: str, leaf: str, blocks: Blocks) -> Named:
    """The matrices of a tensor [experts, out, in], or the biases of one [experts, out].  Raises
    StartError if the parts of an expert are not as large as each other."""
    experts = model.form.experts
    assert experts is not None
    parts = model.roles.experts[role]
    if blocks.shape[1] % len(parts):
        raise StartError(
            f"tensor {role}.{leaf} of {layer} has {blocks.shape[1]} rows for each expert, expected "
            f"a multiple of {len(parts)}"
        )
    for index, one in enumerate(_cut(blocks, len(parts))):
        expert, part = divmod(index, len(parts))
        yield f"{layer}.{experts.prefix}.{expert}.{parts[part]}.{leaf}", stored(one)


def _packed(model: _Model, layer: str, leaf: str, blocks: Blocks) -> Named:
    """Queries, keys and values, whose rows are below one another.  Raises StartError unless there
    are as many as heads need."""
    config = model.config
    heads, features = config.get("num_attention_heads"), config.get("head_dim")
    keys = config.get("num_key_value_heads") or heads
    rows = blocks.rows.reshape(blocks.shape[0], -1)
    if not type(heads) is type(keys) is type(features) is int or len(rows) != (
        (heads + 2 * keys) * features
    ):
        raise StartError(
            f"tensor attn_qkv.{leaf} of {layer} has {len(rows)} rows, expected those of {heads} "
            f"query heads, {keys} key heads and as many value heads of {features} rows each"
        )
    begin = 0
    for name, count in zip(model.form.names.qkv, (heads, keys, keys), strict=True):
        part = rows[begin : begin + count * features]
        begin += len(part)
        one = Blocks(blocks.kind, (len(part), *blocks.shape[1:]), part)
        yield f"{layer}.{name}.{leaf}", stored(one)


def _less_one(name: str, one: StoredTensor) -> StoredTensor:
    """A norm's weight, to which the definition adds 1; not that of what a state gives."""
    is_such = name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")
    if not is_such or one.dtype != "F32":
        return one
    return StoredTensor("F32", one.shape, one.bits - np.float32(1))
