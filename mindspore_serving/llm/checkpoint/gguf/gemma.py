"""Settings of Gemma 3n and 4 in GGUF files that differ by kind of layer, as in config.json.

They are heads, frequencies, inputs of layers, and sparse gates. Knows only the names of tensors
that tell them.
"""

import re
from statistics import NormalDist
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.positions import divisors_of
from mindspore_serving.llm.checkpoint.gguf.reader import GgufFile, UnreadArray

LAYER_EMBEDDING = "per_layer_token_embd.weight"
# Key of config.json -> that after "{architecture}.", for both.
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
    # Lists with a value per layer, which `read_4` reads.
    "num_key_value_heads": "",
    "intermediate_size": "",
}


def read_3n(file: GgufFile) -> dict[str, Any]:
    """Return the shares of gates that are 0, from the quantiles in the file."""
    cutoffs = _per_layer(file, "gemma3n", "activation_sparsity_scale")
    shares = [NormalDist().cdf(cutoff) for cutoff in cutoffs]
    return {"activation_sparsity_pattern": shares, **_layer_vocab_size(file)}


def read_4(file: GgufFile) -> dict[str, Any]:
    """Return sizes by kind of layer, and flags that follow from the tensors in the file."""
    windows = _per_layer(file, "gemma4", "attention.sliding_window_pattern")
    heads = _per_layer(file, "gemma4", "attention.head_count_kv")
    near = {count for count, window in zip(heads, windows, strict=True) if window}
    far = {count for count, window in zip(heads, windows, strict=True) if not window}
    if len(near) > 1 or len(far) > 1:
        raise StartError(
            f"{file.path} has gemma4.attention.head_count_kv {heads}, "
            "expected one number for layers with a window and one for layers without"
        )
    keys = [name for name in file.tensors if re.fullmatch(r"blk\.\d+\.attn_k\.weight", name)]
    return {
        "num_key_value_heads": next(iter(near or far), None),
        "num_global_key_value_heads": next(iter(far), None),
        "intermediate_size": next(iter(_per_layer(file, "gemma4", "feed_forward_length")), None),
        "attention_k_eq_v": any(name.replace("_k", "_v") not in file.tensors for name in keys),
        "enable_moe_block": bool(file.metadata.get("gemma4.expert_count")),
        **_layer_vocab_size(file),
        **_positions(file),
    }


def _positions(file: GgufFile) -> dict[str, Any]:
    """Return rotary parameters by kind of layer.

    Layers without a window rotate only a share of a head: the file divides the other frequencies by
    a huge number.
    """
    rotated = file.metadata.get("gemma4.rope.dimension_count_swa")
    features = file.metadata.get("gemma4.attention.key_length_swa")
    near = rotated / features if type(rotated) is type(features) is int and features else 1.0
    divisors = next(iter(divisors_of(file)), [1.0])
    far = sum(divisor == 1.0 for divisor in divisors) / len(divisors)
    kinds = {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": far},
        "sliding_attention": {"rope_type": "default", "partial_rotary_factor": near},
    }
    return {"rope_parameters": kinds, "rope_scaling": None, "partial_rotary_factor": None}


def _layer_vocab_size(file: GgufFile) -> dict[str, Any]:
    table = file.tensors.get(LAYER_EMBEDDING)
    return {"vocab_size_per_layer_input": table.shape[0]} if table else {}


def _per_layer(file: GgufFile, family: str, key: str) -> list[Any]:
    """Return a number per layer, repeated if the file has a single one.  Raises StartError."""
    count: Any = file.metadata.get(f"{family}.block_count")
    key = f"{family}.{key}"
    value = file.metadata.get(key)
    is_likely = type(count) is int and 0 <= count <= len(file.tensors)
    is_array = isinstance(value, UnreadArray)
    numbers = file.array(key) if is_array else [value] * (count if is_likely else 0)
    if len(numbers) != count or any(type(n) not in (int, float, bool) for n in numbers):
        raise StartError(
            f"{file.path} has {key} {str(numbers)[:80]}, expected a number for each of {count} "
            "layers"
        )
    return numbers
