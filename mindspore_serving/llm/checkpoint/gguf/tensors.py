"""The tensors of a GGUF file as checkpoints in Hugging Face's format have them.

Names are translated; the rows of Llama's queries and keys are put back in the order of halves,
from that of pairs; norms to which the definition adds 1 have a 1 taken off; stacked experts, and
queries, keys and values where they are one, become one tensor each.  No number of a quantised
tensor is decoded.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf import latent
from mindspore_serving.llm.checkpoint.gguf.configuration import (
    ARCHITECTURE,
    config_of,
    family_of,
    form_of,
)
from mindspore_serving.llm.checkpoint.gguf.decoding import FORMS, decode
from mindspore_serving.llm.checkpoint.gguf.families import Family
from mindspore_serving.llm.checkpoint.gguf.names import Roles, roles_of
from mindspore_serving.llm.checkpoint.gguf.reader import Blocks, GgufFile
from mindspore_serving.llm.checkpoint.packing import Packed, unpack
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor
from mindspore_serving.llm.checkpoint.safetensors import BITS, StoredTensor
from mindspore_serving.llm.descriptions.architecture import (
    LAYER_PLUS_ONE,
    RMS_PLUS_ONE,
    Architecture,
)

NOT_READ = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
CONVOLUTION = "shortconv.conv"
_NAME = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias|scale)")
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
    """The tensors by Hugging Face's names.  Raises StartError naming one that is not known."""
    config = config_of(file)
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
        tensors = {name: _less_one(name, stored) for name, stored in tensors.items()}
    return tensors


def _renamed(model: _Model, name: str, blocks: Blocks) -> Named:
    roles, names = model.roles, model.form.names
    stem, _, leaf = name.rpartition(".")
    if stem in roles.top:
        yield from _outside(roles.top[stem], leaf, blocks)
        return
    match = _NAME.fullmatch(name)
    role = match[2] if match else ""
    role += f".{leaf}" if leaf == "scale" else ""
    if match and int(match[1]) >= model.config["num_hidden_layers"]:
        return  # of layers that guess several tokens
    layer = f"{names.layers}.{match[1]}" if match else ""
    if role in roles.bare:
        yield f"{layer}.{roles.bare[role]}", _stored(blocks)
    elif role in roles.experts and len(blocks.shape) == (3 if leaf == "weight" else 2):
        yield from _experts(model, layer, role, leaf, blocks)
    elif role == "attn_qkv" and len(names.qkv) == 3:
        yield from _packed(model, layer, leaf, blocks)
    elif role in (latent.KEYS, latent.VALUES) and "kv_lora_rank" in model.config:
        yield from _widening(model, layer, name, blocks)
    elif role in roles.layer:
        pairs = model.family.pairs and role in ("attn_q", "attn_k")
        heads = _heads(name, blocks, model.config, role) if pairs else 0
        if role == CONVOLUTION and leaf == "weight":  # of each feature by itself
            blocks = replace(blocks, shape=(blocks.shape[0], 1, *blocks.shape[1:]))
        kind = names.matrix if leaf == "weight" and len(blocks.shape) == 2 else leaf
        yield f"{layer}.{roles.layer[role]}.{kind}", _stored(blocks, heads)
    else:
        family = model.file.metadata[ARCHITECTURE]
        raise StartError(
            f"{model.file.path} has a tensor {name!r}, which models of architecture {family!r} do "
            "not have here: it is made for a newer or another kind of model"
        )


def _outside(stem: str, leaf: str, blocks: Blocks) -> Named:
    """A tensor that is not a layer's; matrices that are one are by their numbers."""
    if len(blocks.shape) < 3:
        yield f"{stem}.{leaf}", _stored(blocks)
        return
    for index, one in enumerate(_cut(blocks)):
        yield f"{stem}.{index}.{leaf}", _stored(one)


def _cut(blocks: Blocks, parts: int = 1) -> Iterator[Blocks]:
    """The matrices of a tensor [count, out, in], each in `parts` of as many rows, or the vectors of
    one [count, out]."""
    count, shape = blocks.shape[0] * parts, blocks.shape[1:]
    each = blocks.rows.reshape(count, -1, blocks.rows.shape[-1])
    shape = (shape[0] // parts, *shape[1:]) if parts > 1 else shape
    return (Blocks(blocks.kind, shape, rows) for rows in each)


def _widening(model: _Model, layer: str, name: str, blocks: Blocks) -> Named:
    """Of the keys' part, which the values' is beside."""
    if latent.KEYS in name:
        values = model.file.tensors.get(name.replace(latent.KEYS, latent.VALUES))
        yield f"{layer}.self_attn.kv_b_proj.weight", latent.widening(layer, blocks, values)


def _stored(blocks: Blocks, heads: int = 0) -> StoredTensor:
    if blocks.kind in FORMS:
        read = partial(_decoded, blocks, heads)
        gather = None if heads else partial(_gathered, blocks)
        return QuantizedTensor(blocks.kind, blocks.shape, blocks.rows, read, gather=gather)
    return StoredTensor(blocks.kind, blocks.shape, _rows(blocks, heads).view(BITS[blocks.kind]))


def _decoded(blocks: Blocks, heads: int) -> Packed:
    return decode(blocks.kind, _rows(blocks, heads), blocks.shape[-1])


def _gathered(blocks: Blocks, some: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    return unpack(decode(blocks.kind, blocks.rows[some], blocks.shape[-1]))


def _heads(name: str, blocks: Blocks, config: dict[str, Any], role: str) -> int:
    """How many there are.  Raises StartError unless the rows are theirs."""
    key = "num_attention_heads" if role == "attn_q" else "num_key_value_heads"
    heads = config.get(key) or config["num_attention_heads"]
    count = blocks.shape[0]
    if type(heads) is not int or heads < 1 or count % (2 * heads):
        raise StartError(f"tensor {name!r} has {count} rows, expected {heads} heads of pairs")
    return heads


def _rows(blocks: Blocks, heads: int) -> npt.NDArray[np.uint8]:
    """With `heads` those of each in the order 0, 2, 4 .. 1, 3, 5: what is rotated together is half
    a head apart.  llama.cpp has it side by side."""
    if not heads:
        return blocks.rows
    count = blocks.shape[0]
    rows = blocks.rows.reshape(heads, count // heads // 2, 2, -1).swapaxes(1, 2)
    return np.ascontiguousarray(rows).reshape(count, -1)


def _experts(model: _Model, layer: str, role: str, leaf: str, blocks: Blocks) -> Named:
    """The matrices of a tensor [experts, out, in], or the biases of one [experts, out]."""
    experts = model.form.experts
    assert experts is not None
    parts = model.roles.experts[role]
    for index, one in enumerate(_cut(blocks, len(parts))):
        expert, part = divmod(index, len(parts))
        yield f"{layer}.{experts.prefix}.{expert}.{parts[part]}.{leaf}", _stored(one)


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
        yield f"{layer}.{name}.{leaf}", _stored(one)


def _less_one(name: str, stored: StoredTensor) -> StoredTensor:
    """A norm's weight, to which the definition adds 1."""
    if not name.endswith("norm.weight") or stored.dtype != "F32":
        return stored
    return StoredTensor("F32", stored.shape, stored.bits - np.float32(1))
