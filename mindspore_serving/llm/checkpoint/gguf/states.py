"""Layers with a state in GGUF files: which layers, the sizes of their states, their tensors.

llama.cpp stores decay rates themselves, checkpoints their logarithms. Value heads that read the
same key head are adjacent in checkpoints, but interleaved in files of some families:

    checkpoint   v0 v1 v2 | v3 v4 v5        (key head 0 | key head 1)
    interleaved  v0 v3 v1 v4 v2 v5
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.families import Family
from mindspore_serving.llm.checkpoint.gguf.names import RATE
from mindspore_serving.llm.checkpoint.gguf.reader import Blocks, GgufFile, UnreadArray
from mindspore_serving.llm.checkpoint.gguf.stored import Order, stored
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor, floats
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor
from mindspore_serving.llm.descriptions.architecture import (
    CONVOLUTION,
    MAMBA,
    Architecture,
)
from mindspore_serving.llm.descriptions.config_types import size
from mindspore_serving.llm.descriptions.layer_kinds import FULL

KEY_HEADS = "attention.head_count_kv"  # 0 for a layer with a state instead of keys and values
CONVOLVED, GATE, RESULT = "ssm_conv1d.weight", "attn_gate.weight", "ssm_out.weight"
NORM = "ssm_norm.weight"


def states_of(
    file: GgufFile, name: str, family: Family, architecture: Architecture, config: dict[str, Any]
) -> dict[str, Any]:
    """Return which layers have a state, and the size of its heads.

    Raises StartError for layers without keys in a model without states, and for sizes that do not
    fit each other.
    """
    if not architecture.state:
        key = f"{name}.{KEY_HEADS}"
        if isinstance(file.metadata.get(key), UnreadArray) and not all(file.array(key)):
            raise StartError(f"{file.path} has a different {key} per layer, which is not supported")
        return {}
    count = min(config["num_hidden_layers"], len(file.tensors))
    mark = "shortconv.conv.weight" if architecture.state == CONVOLUTION else RATE
    has_state = (f"blk.{i}.{mark}" in file.tensors for i in range(count))
    settings: dict[str, Any] = {
        "layer_types": [architecture.state if has else FULL for has in has_state]
    }
    if architecture.single:
        settings["layers_block_type"] = [_block(file, f"blk.{i}.") for i in range(count)]
    if architecture.state == MAMBA:
        settings |= _mamba(file, config)
    return settings | _head_size(file, name, family.state_head) if family.state_head else settings


def _block(file: GgufFile, layer: str) -> str:
    """Return the kind of a layer's only block, as NemotronH names it."""
    kinds = {RATE: MAMBA, "attn_q.weight": FULL, "ffn_gate_inp.weight": "moe"}
    return next((kind for end, kind in kinds.items() if layer + end in file.tensors), "mlp")


def _mamba(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    """Return the flags of convolution biases and norms, and the epsilon of norms.

    config.json has two names for each setting, and files two keys.
    """
    epsilon = config.get("rms_norm_eps", config.get("layer_norm_epsilon"))
    has_bias = any(name.endswith(".ssm_conv1d.bias") for name in file.tensors)
    has_norm = any(name.endswith(f".{NORM}") for name in file.tensors)
    return {
        **dict.fromkeys(("mamba_conv_bias", "use_conv_bias"), has_bias),
        **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon"), epsilon),
        "mamba_rms_norm": has_norm,
    }


def _head_size(file: GgufFile, name: str, setting: str) -> dict[str, Any]:
    """Return the size of a value head."""
    keys = ("inner_size", "time_step_rank", "group_count")
    features, heads, groups = (file.metadata.get(f"{name}.ssm.{key}") for key in keys)
    if not type(features) is type(heads) is type(groups) is int or (
        not groups or not heads or features % heads or heads % groups
    ):
        raise StartError(
            f"{file.path} has {name}.ssm.{{{','.join(keys)}}} {features!r}, {heads!r} and "
            f"{groups!r}, expected multiples of each other"
        )
    return {setting: features // heads}


def parts_of(
    name: str, parts: tuple[str, ...], blocks: Blocks, *, config: dict[str, Any], family: Family
) -> Iterator[tuple[str, StoredTensor]]:
    """Iterate over the checkpoint's tensors for the tensor `name` of a state.

    Raises StartError unless its rows, or columns, fit the sizes of a gated delta rule.
    """
    end = name.split(".", 2)[2]
    rows: list[Order] | list[None] = [None]
    columns = None
    if "linear_num_key_heads" in config:
        heads = _heads(config)
        _check(heads, name, end, blocks)
        if len(parts) > 1:
            rows = _split_rows(heads, end)
        elif family.interleaved and end == RESULT:
            columns = _adjacent(heads)
        elif family.interleaved and end != NORM:
            rows = [_rows(heads, end)]
    for part, part_rows in zip(parts, rows, strict=True):
        tensor = stored(blocks, part_rows, columns)
        yield part, _logarithms(name, tensor) if end == RATE else _shaped(end, tensor)


def _check(heads: "_Heads", name: str, end: str, blocks: Blocks) -> None:
    is_result = end == RESULT
    count, expected = blocks.shape[-1 if is_result else 0], _expected(heads)[end]
    if count != expected:
        unit = "columns" if is_result else "rows"
        raise StartError(f"tensor {name!r} has {count} {unit}, expected {expected}")


class _Heads(NamedTuple):
    keys: int
    values: int
    key_size: int
    value_size: int


def _heads(config: dict[str, Any]) -> _Heads:
    return _Heads(
        size(config, "linear_num_key_heads"),
        size(config, "linear_num_value_heads"),
        size(config, "linear_key_head_dim"),
        size(config, "linear_value_head_dim"),
    )


def _expected(heads: _Heads) -> dict[str, int]:
    """Return the rows of a tensor by the end of its name; for the output matrix its columns."""
    keys, values = 2 * heads.keys * heads.key_size, heads.values * heads.value_size
    return {
        **dict.fromkeys(("ssm_alpha.weight", "ssm_beta.weight", RATE, "ssm_dt.bias"), heads.values),
        **dict.fromkeys(("attn_qkv.weight", CONVOLVED), keys + values),
        "ssm_in.weight": keys + 2 * values,
        "ssm_ba.weight": 2 * heads.values,
        GATE: values,
        RESULT: values,
        NORM: heads.value_size,
    }


def _adjacent(heads: _Heads) -> Order:
    """Return the order of the file's value heads that makes those of a key head adjacent."""
    return np.arange(heads.values).reshape(-1, heads.keys).T.ravel()


def _rows(heads: _Heads, end: str) -> Order:
    """Return the order of rows for value heads, after queries and keys if the tensor has them."""
    first = 2 * heads.keys * heads.key_size if end in ("attn_qkv.weight", CONVOLVED) else 0
    width = heads.value_size if first or end == GATE else 1
    rows = _adjacent(heads)[:, None] * width + np.arange(width)
    return np.concatenate([np.arange(first), first + rows.ravel()])


def _split_rows(heads: _Heads, end: str) -> list[Order]:
    """Return the rows of each part of a tensor that is interleaved by key head.

    Per key head it has query, key, values and their gates, or beta and alpha. The parts are the
    rows of queries, keys and values, and those of gates; or the rows of beta, and those of alpha.
    """
    group = heads.values // heads.keys  # value heads of a key head
    values = group * heads.value_size
    sizes = (heads.key_size, heads.key_size, values, values)
    widths = sizes if end == "ssm_in.weight" else (group, group)
    rows = np.arange(heads.keys * sum(widths)).reshape(heads.keys, -1)
    *first, last = np.split(rows, np.cumsum(widths)[:-1], 1)
    return [np.concatenate([part.ravel() for part in first]), last.ravel()]


def _shaped(end: str, tensor: StoredTensor) -> StoredTensor:
    """Give convolutions a dimension per feature, and flatten values per head or feature."""
    if end == CONVOLVED:
        return replace(tensor, shape=(tensor.shape[0], 1, *tensor.shape[1:]))
    return replace(tensor, shape=(prod(tensor.shape),)) if end in (NORM, "ssm_d") else tensor


def _logarithms(name: str, rates: StoredTensor) -> StoredTensor:
    """Return the logarithms of decay rates.  Raises StartError unless they are floats up to 0."""
    values = floats(rates.dtype, rates.bits).astype(np.float32).ravel()
    if isinstance(rates, QuantizedTensor) or not (values <= 0).all():
        raise StartError(f"tensor {name!r} has {rates.dtype}, expected floats of at most 0")
    with np.errstate(divide="ignore"):  # of 0, a rate that underflowed
        return StoredTensor("F32", values.shape, np.log(-values))
