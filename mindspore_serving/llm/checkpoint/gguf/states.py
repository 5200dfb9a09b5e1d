"""Layers with a state in place of keys and values, as GGUF files have them: which layers, how large
their states, and their tensors.

llama.cpp has rates of decay as they are, not their logarithms.  Heads of values that read the same
head of keys are side by side in checkpoints; in files of some families they take turns.
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

KEY_HEADS = "attention.head_count_kv"  # 0 of a layer with a state in place of keys and values
CONVOLVED, GATE, RESULT = "ssm_conv1d.weight", "attn_gate.weight", "ssm_out.weight"
NORM = "ssm_norm.weight"


def states_of(
    file: GgufFile, name: str, family: Family, form: Architecture, config: dict[str, Any]
) -> dict[str, Any]:
    """Which layers have a state, and the size of its heads.  Raises StartError: layers
    without keys in a model that has no states, and sizes that do not fit each other.
    """
    if not form.state:
        key = f"{name}.{KEY_HEADS}"
        if isinstance(file.metadata.get(key), UnreadArray) and not all(file.array(key)):
            raise StartError(f"{file.path} has layers of different {key}, which is not supported")
        return {}
    count = min(config["num_hidden_layers"], len(file.tensors))
    mark = "shortconv.conv.weight" if form.state == CONVOLUTION else RATE
    has_state = (f"blk.{i}.{mark}" in file.tensors for i in range(count))
    found: dict[str, Any] = {"layer_types": [form.state if one else FULL for one in has_state]}
    if form.single:
        found["layers_block_type"] = [_block(file, f"blk.{i}.") for i in range(count)]
    if form.state == MAMBA:
        found |= _mamba(file, config)
    return found | _head_size(file, name, family.state_head) if family.state_head else found


def _block(file: GgufFile, layer: str) -> str:
    """The only one of a layer, as NemotronH calls it."""
    kinds = {RATE: MAMBA, "attn_q.weight": FULL, "ffn_gate_inp.weight": "moe"}
    return next((kind for end, kind in kinds.items() if layer + end in file.tensors), "mlp")


def _mamba(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    """Whether there are biases of convolutions and norms, and what these add; settings have two
    names, and files two keys.
    """
    added = config.get("rms_norm_eps", config.get("layer_norm_epsilon"))
    has_bias = any(name.endswith(".ssm_conv1d.bias") for name in file.tensors)
    has_norm = any(name.endswith(f".{NORM}") for name in file.tensors)
    return {
        **dict.fromkeys(("mamba_conv_bias", "use_conv_bias"), has_bias),
        **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon"), added),
        "mamba_rms_norm": has_norm,
    }


def _head_size(file: GgufFile, name: str, setting: str) -> dict[str, Any]:
    """Of values."""
    keys = ("inner_size", "time_step_rank", "group_count")
    features, heads, groups = (file.metadata.get(f"{name}.ssm.{key}") for key in keys)
    if not type(features) is type(heads) is type(groups) is int or (
        not groups or not heads or features % heads or heads % groups
    ):
        raise StartError(
            f"{file.path} has {name}.ssm.{{{','.join(keys)}}} {features!r}, {heads!r} and "
            f"{groups!r}, expected multiples of one another"
        )
    return {setting: features // heads}


def parts_of(
    name: str, parts: tuple[str, ...], blocks: Blocks, *, config: dict[str, Any], family: Family
) -> Iterator[tuple[str, StoredTensor]]:
    """What becomes of the tensor `name` of a state.  Raises StartError if it has other rows, or
    columns, than the sizes of a gated delta rule say.
    """
    end = name.split(".", 2)[2]
    rows: list[Order] | list[None] = [None]
    columns = None
    if "linear_num_key_heads" in config:
        heads = _heads(config)
        _check(heads, name, end, blocks)
        if len(parts) > 1:
            rows = _apart(heads, end)
        elif family.in_turns and end == RESULT:
            columns = _turns(heads)
        elif family.in_turns and end != NORM:
            rows = [_rows(heads, end)]
    for part, own in zip(parts, rows, strict=True):
        one = stored(blocks, own, columns)
        yield part, _logarithms(name, one) if end == RATE else _shaped(end, one)


def _check(heads: "_Heads", name: str, end: str, blocks: Blocks) -> None:
    is_result = end == RESULT
    found, expected = blocks.shape[-1 if is_result else 0], _expected(heads)[end]
    if found != expected:
        what = "columns" if is_result else "rows"
        raise StartError(f"tensor {name!r} has {found} {what}, expected {expected}")


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
    """Rows of a tensor by the end of its name; columns of what makes the result."""
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


def _turns(heads: _Heads) -> Order:
    """Which of the file's heads of values is the first, the second .."""
    return np.arange(heads.values).reshape(-1, heads.keys).T.ravel()


def _rows(heads: _Heads, end: str) -> Order:
    """Those of heads of values, behind queries and keys where these are there."""
    first = 2 * heads.keys * heads.key_size if end in ("attn_qkv.weight", CONVOLVED) else 0
    width = heads.value_size if first or end == GATE else 1
    rows = _turns(heads)[:, None] * width + np.arange(width)
    return np.concatenate([np.arange(first), first + rows.ravel()])


def _apart(heads: _Heads, end: str) -> list[Order]:
    """Of a tensor that has, head of keys by head, query, key, values and their gates, or beta and
    alpha: rows of queries, keys and values, and of gates; or of beta, and of alpha.
    """
    each = heads.values // heads.keys
    values = each * heads.value_size
    whole = (heads.key_size, heads.key_size, values, values)
    widths = whole if end == "ssm_in.weight" else (each, each)
    rows = np.arange(heads.keys * sum(widths)).reshape(heads.keys, -1)
    *first, last = np.split(rows, np.cumsum(widths)[:-1], 1)
    return [np.concatenate([part.ravel() for part in first]), last.ravel()]


def _shaped(end: str, found: StoredTensor) -> StoredTensor:
    """A convolution of each feature by itself; what is of each head, or feature, in one row."""
    if end == CONVOLVED:
        return replace(found, shape=(found.shape[0], 1, *found.shape[1:]))
    return replace(found, shape=(prod(found.shape),)) if end in (NORM, "ssm_d") else found


def _logarithms(name: str, rates: StoredTensor) -> StoredTensor:
    """Raises StartError unless all rates of decay are floats under 0."""
    values = floats(rates.dtype, rates.bits).astype(np.float32).ravel()
    if isinstance(rates, QuantizedTensor) or not (values <= 0).all():
        raise StartError(f"tensor {name!r} has {rates.dtype}, expected floats of at most 0")
    with np.errstate(divide="ignore"):  # a rate that was too small for a float
        return StoredTensor("F32", values.shape, np.log(-values))
