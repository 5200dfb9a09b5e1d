"""What GGUF files of Gemma 3n and 4 say by kind of layer, in the words of config.json: heads,
frequencies, inputs of layers, sparse gates.

Knows no names of tensors but those that answer it.
"""

import re
from statistics import NormalDist
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.positions import divisors_of
from mindspore_serving.llm.checkpoint.gguf.reader import GgufFile, UnreadArray

LAYER_WORDS = "per_layer_token_embd.weight"
# config.json's name -> the key behind "{architecture}.", of both.
SIZES = {
    "hidden_size_per_layer_input": "embedding_length_per_layer_input",
    "num_kv_shared_layers": "attention.shared_kv_layers",
    "rope_local_base_freq": "rope.freq_base_swa",
}
SIZES_3N = {
    **SIZES,
    "altup_num_inputs": "altup.num_inputs",
    "altup_active_idx": "altup.active_idx",
}
SIZES_4 = {
    **SIZES,
    "head_dim": "attention.key_length_swa",
    "global_head_dim": "attention.key_length",
    "num_experts": "expert_count",
    "top_k_experts": "expert_used_count",
    # Of each layer its own, which `read_4` reads.
    "num_key_value_heads": "",
    "intermediate_size": "",
}


def read_3n(file: GgufFile) -> dict[str, Any]:
    """The shares of gates that are 0, of which the file has the quantiles."""
    cutoffs = _each(file, "gemma3n", "activation_sparsity_scale")
    shares = [NormalDist().cdf(cutoff) for cutoff in cutoffs]
    return {"activation_sparsity_pattern": shares, **_words(file)}


def read_4(file: GgufFile) -> dict[str, Any]:
    """Sizes by kind of layer, and what follows from the tensors that are there."""
    windows = _each(file, "gemma4", "attention.sliding_window_pattern")
    heads = _each(file, "gemma4", "attention.head_count_kv")
    near = {count for count, window in zip(heads, windows, strict=True) if window}
    far = {count for count, window in zip(heads, windows, strict=True) if not window}
    if len(near) > 1 or len(far) > 1:
        raise StartError(
            f"{file.path} has layers of different gemma4.attention.head_count_kv {heads}, "
            "expected one number for those with a window and one for those without"
        )
    keys = [name for name in file.tensors if re.fullmatch(r"blk\.\d+\.attn_k\.weight", name)]
    return {
        "num_key_value_heads": next(iter(near or far), None),
        "num_global_key_value_heads": next(iter(far), None),
        "intermediate_size": next(iter(_each(file, "gemma4", "feed_forward_length")), None),
        "attention_k_eq_v": any(name.replace("_k", "_v") not in file.tensors for name in keys),
        "enable_moe_block": bool(file.metadata.get("gemma4.expert_count")),
        **_words(file),
        **_positions(file),
    }


def _positions(file: GgufFile) -> dict[str, Any]:
    """Layers without a window turn a share of a head: what is not divided by infinity, nearly."""
    turned = file.metadata.get("gemma4.rope.dimension_count_swa")
    features = file.metadata.get("gemma4.attention.key_length_swa")
    near = turned / features if type(turned) is type(features) is int and features else 1.0
    divisors = next(iter(divisors_of(file)), [1.0])
    far = sum(divisor == 1.0 for divisor in divisors) / len(divisors)
    kinds = {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": far},
        "sliding_attention": {"rope_type": "default", "partial_rotary_factor": near},
    }
    return {"rope_parameters": kinds, "rope_scaling": None, "partial_rotary_factor": None}


def _words(file: GgufFile) -> dict[str, Any]:
    table = file.tensors.get(LAYER_WORDS)
    return {"vocab_size_per_layer_input": table.shape[0]} if table else {}


def _each(file: GgufFile, family: str, key: str) -> list[Any]:
    """A number of each layer: the same where the file has one.  Raises StartError for others."""
    count: Any = file.metadata.get(f"{family}.block_count")
    key = f"{family}.{key}"
    value = file.metadata.get(key)
    is_likely = type(count) is int and 0 <= count <= len(file.tensors)
    found = (
        file.array(key) if isinstance(value, UnreadArray) else [value] * (count if is_likely else 0)
    )
    if len(found) != count or any(type(number) not in (int, float, bool) for number in found):
        raise StartError(
            f"{file.path} has {key} {str(found)[:80]}, expected a number for each of {count} layers"
        )
    return found
