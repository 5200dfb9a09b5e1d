"""The tensors of a GGUF file as checkpoints in Hugging Face's format have them.

Names are translated; the rows of Llama's queries and keys are put back in the order of halves,
from that of pairs; Gemma's norms have a 1 taken off; stacked experts, and ChatGLM's queries, keys
and values, become one tensor each.  No number of a quantised tensor is decoded.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.configuration import (
    ARCHITECTURE,
    MIXTRAL,
    config_of,
)
from mindspore_serving.llm.checkpoint.gguf.decoding import FORMS, decode
from mindspore_serving.llm.checkpoint.gguf.reader import Blocks, GgufFile
from mindspore_serving.llm.checkpoint.packing import Packed, unpack
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor
from mindspore_serving.llm.checkpoint.safetensors import BITS, StoredTensor

TOP = {"token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm"}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
OWN = {
    "phi3": {"ffn_up": "mlp.gate_up_proj"},
    "chatglm": {"ffn_up": "mlp.gate_up_proj"},
    "gemma2": {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
}
OWN["gemma3"] = OWN["gemma2"]
EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
MIXTRAL_EXPERTS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
NOT_READ = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
_NAME = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")


def read_tensors(file: GgufFile) -> dict[str, StoredTensor]:
    """The tensors by Hugging Face's names.  Raises StartError naming one that is not known."""
    config = config_of(file)
    family = str(file.metadata[ARCHITECTURE])
    tensors: dict[str, StoredTensor] = {}
    for name, blocks in file.tensors.items():
        if name not in NOT_READ:
            tensors |= _renamed(file, name, blocks, config)
    if family.startswith("gemma"):
        tensors = {name: _less_one(name, stored) for name, stored in tensors.items()}
    return tensors


def _renamed(
    file: GgufFile, name: str, blocks: Blocks, config: dict[str, Any]
) -> dict[str, StoredTensor]:
    family, is_mixtral = file.metadata[ARCHITECTURE], config["architectures"] == [MIXTRAL]
    stem, _, leaf = name.rpartition(".")
    if stem in TOP:
        return {f"{TOP[stem]}.{leaf}": _stored(blocks)}
    match = _NAME.fullmatch(name)
    role = match[2] if match else ""
    if match and role in EXPERTS and len(blocks.shape) == 3:
        return dict(_experts(f"model.layers.{match[1]}", EXPERTS[role], blocks, is_mixtral))
    if match and role == "attn_qkv" and family == "chatglm":
        return dict(_packed(f"model.layers.{match[1]}", leaf, blocks, config))
    own = {**LAYER, **OWN.get(family, {})}
    if match is None or role not in own:
        raise StartError(
            f"{file.path} has a tensor {name!r}, which models of architecture {family!r} do not "
            "have here: it is made for a newer or another kind of model"
        )
    target = "block_sparse_moe.gate" if is_mixtral and role == "ffn_gate_inp" else own[role]
    heads = 0
    if family == "llama" and role in ("attn_q", "attn_k"):
        heads = _heads(name, blocks, config, role)
    return {f"model.layers.{match[1]}.{target}.{leaf}": _stored(blocks, heads)}


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


def _experts(
    layer: str, role: str, blocks: Blocks, is_mixtral: bool
) -> Iterator[tuple[str, StoredTensor]]:
    count, outputs, inputs = blocks.shape
    block = "block_sparse_moe" if is_mixtral else "mlp"
    leaf = MIXTRAL_EXPERTS[role] if is_mixtral else role
    for index in range(count):
        rows = blocks.rows[index * outputs : (index + 1) * outputs]
        one = Blocks(blocks.kind, (outputs, inputs), rows)
        yield f"{layer}.{block}.experts.{index}.{leaf}.weight", _stored(one)


def _packed(
    layer: str, leaf: str, blocks: Blocks, config: dict[str, Any]
) -> Iterator[tuple[str, StoredTensor]]:
    """Queries, keys and values, whose rows are below one another.  Raises StartError unless there
    are as many as heads need."""
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
    for name, count in (("q", heads), ("k", keys), ("v", keys)):
        part = rows[begin : begin + count * features]
        begin += len(part)
        one = Blocks(blocks.kind, (len(part), *blocks.shape[1:]), part)
        yield f"{layer}.self_attn.{name}_proj.{leaf}", _stored(one)


def _less_one(name: str, stored: StoredTensor) -> StoredTensor:
    """A norm's weight, to which the definition adds 1."""
    if not name.endswith("norm.weight") or stored.dtype != "F32":
        return stored
    return StoredTensor("F32", stored.shape, stored.bits - np.float32(1))
