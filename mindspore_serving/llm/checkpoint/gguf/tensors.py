"""Tensors of a GGUF file as checkpoints in Hugging Face's format have them.

Names are translated. The rows of Llama's queries and keys are reordered from pairs to halves. From
norms to which the definition adds 1, a 1 is subtracted. Stacked experts, and fused queries, keys
and values, are split into tensors. `states` does this for layers with a state. No number of a
quantised tensor is decoded.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.configuration import (
    ARCHITECTURE,
    architecture_of,
    config_of,
    family_of,
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
    halves,
    joined,
    latent_expansion,
    stored,
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
    """A file with its architecture and the meaning of its names."""

    file: GgufFile
    config: dict[str, Any]
    family: Family
    architecture: Architecture
    roles: Roles


def read_tensors(file: GgufFile) -> dict[str, StoredTensor]:
    """Return the tensors by Hugging Face's names.

    Raises StartError naming an unknown tensor, or wrong numbers of layers or heads.
    """
    config = config_of(file)
    size(config, "num_hidden_layers")
    family = family_of(file)
    architecture = architecture_of(family, config)
    roles = roles_of(architecture)
    roles = replace(roles, layer={**roles.layer, **family.tensors})
    model = _Model(file, config, family, architecture, roles)
    tensors: dict[str, StoredTensor] = {}
    for name, blocks in file.tensors.items():
        if name not in NOT_READ:
            tensors |= _renamed(model, name, blocks)
    if architecture.norm in (RMS_PLUS_ONE, LAYER_PLUS_ONE):
        tensors = {name: _minus_one(name, tensor) for name, tensor in tensors.items()}
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
        """Name of the layer in checkpoints."""
        return f"{self.model.architecture.names.layers}.{self.number}"

    @property
    def end(self) -> str:
        """Name without the layer."""
        return self.name.split(".", 2)[2]

    def sibling(self, old: str, new: str) -> Blocks | None:
        """Return the tensor whose name has `new` instead of `old`, if there is one."""
        return self.model.file.tensors.get(self.name.replace(old, new))

    @property
    def has_state(self) -> bool:
        """True if the layer's state decays, as all states do except mere convolutions."""
        return f"blk.{self.number}.{RATE}" in self.model.file.tensors

    @property
    def is_stack(self) -> bool:
        """True if it has a matrix, or a bias, per expert."""
        return len(self.blocks.shape) == (3 if self.leaf == "weight" else 2)


def _renamed(model: _Model, name: str, blocks: Blocks) -> Named:
    stem, _, leaf = name.rpartition(".")
    if stem in model.roles.top:
        return _outside(model.roles.top[stem], leaf, blocks)
    match = _NAME.fullmatch(name)
    if match:
        tensor = _Tensor(model, name, int(match[1]), match[2], match[3] or "weight", blocks)
        if tensor.number >= model.config["num_hidden_layers"]:
            _check_predicts(model.file, name, tensor.number)
            return iter(())
        for is_of_kind, read in _KINDS:
            if is_of_kind(tensor):
                return read(tensor)
    family = model.file.metadata[ARCHITECTURE]
    raise StartError(
        f"{model.file.path} has a tensor {name!r}, which architecture {family!r} does not have "
        "here: the file is of a newer or another model"
    )


def _check_predicts(file: GgufFile, name: str, layer: int) -> None:
    """Raise StartError for a tensor of a layer after the last, unless it predicts more tokens.

    Such layers follow all others, and block_count includes them.
    """
    count = file.metadata.get(f"{file.metadata[ARCHITECTURE]}.block_count")
    if not isinstance(count, int) or layer >= count:
        raise StartError(
            f"{file.path} has a tensor {name!r}, but block_count {count}: it is damaged, or "
            "block_count is too small"
        )


def _outside(stem: str, leaf: str, blocks: Blocks) -> Named:
    """Rename a tensor outside of layers; stacked matrices get numbers."""
    if len(blocks.shape) < 3:
        yield f"{stem}.{leaf}", stored(blocks)
        return
    for index, matrix in enumerate(_slices(blocks)):
        yield f"{stem}.{index}.{leaf}", stored(matrix)


def _slices(blocks: Blocks, parts: int = 1) -> Iterator[Blocks]:
    """Iterate over the matrices of a tensor [count, out, in], or the vectors of [count, out].

    Each matrix is split into `parts` with as many rows each.
    """
    count, shape = blocks.shape[0] * parts, blocks.shape[1:]
    each = blocks.rows.reshape(count, -1, blocks.rows.shape[-1])
    shape = (shape[0] // parts, *shape[1:]) if parts > 1 else shape
    return (Blocks(blocks.kind, shape, rows) for rows in each)


def _of_states(tensor: _Tensor) -> Named:
    model = tensor.model
    parts, config, family = model.roles.states[tensor.end], model.config, model.family
    for part, value in parts_of(tensor.name, parts, tensor.blocks, config=config, family=family):
        yield f"{tensor.layer}.{part}", value


def _bare(tensor: _Tensor) -> Named:
    yield f"{tensor.layer}.{tensor.model.roles.bare[tensor.role]}", stored(tensor.blocks)


def _of_experts(tensor: _Tensor) -> Named:
    """Split a tensor [experts, out, in], or the biases [experts, out], into experts.

    Raises StartError unless the rows of an expert can be divided by its parts.
    """
    experts = tensor.model.architecture.experts
    assert experts is not None
    parts = tensor.model.roles.experts[tensor.role]
    count = tensor.blocks.shape[1]
    if count % len(parts):
        raise StartError(
            f"tensor {tensor.role}.{tensor.leaf} of {tensor.layer} has {count} rows for each "
            f"expert, expected a multiple of {len(parts)}"
        )
    for index, matrix in enumerate(_slices(tensor.blocks, len(parts))):
        expert, part = divmod(index, len(parts))
        name = f"{tensor.layer}.{experts.prefix}.{expert}.{parts[part]}.{tensor.leaf}"
        yield name, stored(matrix)


def _packed(tensor: _Tensor) -> Named:
    """Split queries, keys and values, which follow each other as rows.

    Raises StartError unless the rows fit the heads.
    """
    config, blocks = tensor.model.config, tensor.blocks
    heads, features = config.get("num_attention_heads"), config.get("head_dim")
    keys = config.get("num_key_value_heads") or heads
    rows = blocks.rows.reshape(blocks.shape[0], -1)
    if not type(heads) is type(keys) is type(features) is int or len(rows) != (
        (heads + 2 * keys) * features
    ):
        raise StartError(
            f"tensor attn_qkv.{tensor.leaf} of {tensor.layer} has {len(rows)} rows, expected those "
            f"of {heads} query heads, {keys} key heads and as many value heads of {features} rows "
            "each"
        )
    begin = 0
    for name, count in zip(tensor.model.architecture.names.qkv, (heads, keys, keys), strict=True):
        part = rows[begin : begin + count * features]
        begin += len(part)
        shape = (len(part), *blocks.shape[1:])
        yield f"{tensor.layer}.{name}.{tensor.leaf}", stored(Blocks(blocks.kind, shape, part))


def _latent(tensor: _Tensor) -> Named:
    """Join the keys' part and the values' part of latent attention; called for both."""
    if LATENT_KEYS in tensor.name:
        values = tensor.sibling(LATENT_KEYS, LATENT_VALUES)
        matrix = latent_expansion(tensor.layer, tensor.blocks, values)
        yield f"{tensor.layer}.self_attn.kv_b_proj.weight", matrix


def _has_gate(tensor: _Tensor) -> bool:
    """Return whether it is a gate, or its other half, of a block that checkpoints fuse."""
    architecture, half = tensor.model.architecture, tensor.role.replace("ffn_gate", "ffn_up")
    is_half = half in ("ffn_up", "ffn_up_shexp") and half in tensor.model.roles.layer
    is_fused = (
        architecture.gated and len(architecture.names.gate_up) == 1 and tensor.leaf == "weight"
    )
    return is_fused and is_half and tensor.sibling("ffn_up", "ffn_gate") is not None


def _gated(tensor: _Tensor) -> Named:
    """Join the gate and its other half; called for both.  Raises StartError for other shapes."""
    if "ffn_gate" not in tensor.name:
        return
    up, shape = tensor.sibling("ffn_gate", "ffn_up"), tensor.blocks.shape
    if up is None or up.shape != shape:
        other = list(up.shape) if up else None
        raise StartError(f"tensor {tensor.name!r} is {list(shape)}, but its other half {other}")
    yield (
        f"{tensor.layer}.{tensor.model.architecture.names.gate_up[0]}.weight",
        joined((tensor.blocks, up)),
    )


def _of_layer(tensor: _Tensor) -> Named:
    model, blocks = tensor.model, tensor.blocks
    rows = _order(tensor) if tensor.role in ("attn_q", "attn_k") else None
    if tensor.role == CONVOLUTION and tensor.leaf == "weight":  # depthwise
        blocks = replace(blocks, shape=(blocks.shape[0], 1, *blocks.shape[1:]))
    is_matrix = tensor.leaf == "weight" and len(blocks.shape) == 2
    kind = model.architecture.names.matrix if is_matrix else tensor.leaf
    yield f"{tensor.layer}.{model.roles.layer[tensor.role]}.{kind}", stored(blocks, rows)


_KINDS: tuple[tuple[Callable[[_Tensor], bool], Callable[[_Tensor], Named]], ...] = (
    (lambda tensor: tensor.end in tensor.model.roles.states and tensor.has_state, _of_states),
    (lambda tensor: tensor.role in tensor.model.roles.bare, _bare),
    (lambda tensor: tensor.role in tensor.model.roles.experts and tensor.is_stack, _of_experts),
    (
        lambda tensor: tensor.role == "attn_qkv" and len(tensor.model.architecture.names.qkv) == 3,
        _packed,
    ),
    (lambda tensor: tensor.role in LATENT and "kv_lora_rank" in tensor.model.config, _latent),
    (_has_gate, _gated),
    (lambda tensor: tensor.role in tensor.model.roles.layer, _of_layer),
)
"""Kinds of tensors of a layer, and how each is converted; the first match counts."""


def _order(tensor: _Tensor) -> Order | None:
    """Return the order of the rows of queries or keys; None if it is the file's."""
    model, count = tensor.model, tensor.blocks.shape[0]
    if model.family.pairs:
        return halves(count, _heads(tensor))
    name = model.file.metadata[ARCHITECTURE]
    if not model.family.halves_in_parts or f"{name}.rope.dimension_sections" not in (
        model.file.metadata
    ):
        return None
    each = np.arange(count).reshape(_heads(tensor), -1)
    rotated = model.file.metadata.get(f"{name}.rope.dimension_count", each.shape[1])
    if type(rotated) is not int or rotated % 2 or not 0 < rotated <= each.shape[1]:
        raise StartError(
            f"{model.file.path} has {name}.rope.dimension_count {rotated!r}, expected an even "
            f"number up to {each.shape[1]}"
        )
    pairs = each[:, :rotated].reshape(len(each), 2, -1).swapaxes(1, 2).reshape(len(each), -1)
    order: Order = np.concatenate([pairs, each[:, rotated:]], 1).ravel()
    return order


def _heads(tensor: _Tensor) -> int:
    """Return the number of heads.  Raises StartError unless it fits the rows."""
    config = tensor.model.config
    key = "num_attention_heads" if tensor.role == "attn_q" else "num_key_value_heads"
    heads = config.get(key) or config.get("num_attention_heads")
    count = tensor.blocks.shape[0]
    if type(heads) is not int or heads < 1 or count % (2 * heads):
        raise StartError(
            f"tensor {tensor.name!r} has {count} rows, expected {heads} heads of pairs"
        )
    return heads


def _minus_one(name: str, tensor: StoredTensor) -> StoredTensor:
    """Subtract the 1 that the definition adds to a norm's weight; not from norms of states."""
    is_norm = name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")
    if not is_norm or tensor.dtype != "F32":
        return tensor
    return StoredTensor("F32", tensor.shape, tensor.bits - np.float32(1))
