"""Metadata of a GGUF file as the config.json of its model.

Values are validated by the readers of config.json. Knows the architectures with a definition, and
llama.cpp's names for their sizes.
"""

from difflib import get_close_matches
from math import prod
from typing import Any

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.decoding import FORMATS
from mindspore_serving.llm.checkpoint.gguf.families import FAMILIES, VARIANTS, Family
from mindspore_serving.llm.checkpoint.gguf.positions import positions_of
from mindspore_serving.llm.checkpoint.gguf.reader import GgufFile, UnreadArray
from mindspore_serving.llm.checkpoint.gguf.states import KEY_HEADS, states_of
from mindspore_serving.llm.descriptions.architecture import UNWEIGHTED, Architecture
from mindspore_serving.llm.descriptions.families import FAMILIES as DESCRIPTIONS
from mindspore_serving.llm.descriptions.layer_kinds import FULL, SLIDING

_TABLE, _HEAD = "token_embd.weight", "output.weight"
WIDTH = "feed_forward_length"  # 0 for a layer without such a block
OPTIONAL_SIZES = ("intermediate_size", "num_attention_heads")  # 0 if no layer has such a block
ARCHITECTURE = "general.architecture"
# Models that scale attention by hidden_size / heads -> their number of layers.
SCALED_BY_WIDTH = {"gemma2": 46, "gemma3": 62}
UNNORMED = 128  # experts of Llama 4 Maverick, which does not normalise queries and keys
# Key of config.json -> that after "{architecture}.", for values that are copied.
SIZES = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": KEY_HEADS,
    "head_dim": "attention.key_length",
    "intermediate_size": WIDTH,
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
    "use_parallel_residual": "use_parallel_residual",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "norm_topk_prob": "expert_weights_norm",
    "routed_scaling_factor": "expert_weights_scale",
    "n_shared_experts": "expert_shared_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
# Kind of bias -> the tensors whose biases show that the model has it.
BIASES = {
    "qkv_bias": ("attn_q", "attn_qkv"),
    "output_bias": ("attn_output",),
    "mlp_bias": ("ffn_down",),
}


def family_of(file: GgufFile) -> Family:
    """Return the row of the file's architecture.  Raises StartError if it has no definition."""
    architecture = file.metadata.get(ARCHITECTURE)
    if architecture not in FAMILIES:
        near = get_close_matches(str(architecture), FAMILIES, 2, 0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise StartError(
            f"{file.path} has architecture {architecture!r}, which is not supported as GGUF{hint} "
            f"(supported: {', '.join(FAMILIES)}); see `mindspore-serving docs architectures`"
        )
    suffix, variant = VARIANTS.get(architecture, ("", FAMILIES[architecture]))
    is_variant = any(name.endswith(suffix) for name in file.tensors)
    return variant if is_variant else FAMILIES[architecture]


def architecture_of(family: Family, config: dict[str, Any]) -> Architecture:
    """Return the description of the architecture, for a model with this config.json."""
    architecture = DESCRIPTIONS[family.name]
    return (
        architecture.variant(architecture, {**architecture.defaults, **config})
        if architecture.variant
        else architecture
    )


def config_of(file: GgufFile) -> dict[str, Any]:
    """Return config.json.  Raises StartError for values that the definitions do not support."""
    family, name = family_of(file), str(file.metadata[ARCHITECTURE])
    config: dict[str, Any] = {"architectures": [family.name], "rope_theta": 10000.0}
    config |= {"sliding_window": None, **family.fixed}
    for field, key in {**SIZES, **family.sizes}.items():
        value = _number(file, f"{name}.{key}")
        if value is not None and (value != 0 or field not in OPTIONAL_SIZES):
            config[field] = value
    config["vocab_size"] = _vocab_size(file)
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config |= _layers(file, name, config)
    if type(config.get("num_hidden_layers")) is int:  # otherwise the reader refuses it
        config |= states_of(file, name, family, DESCRIPTIONS[family.name], config)
    config |= _derived(file, name, config)
    config |= positions_of(file, name, config)
    config |= _flags(file, family, name)
    config |= family.read(file) if family.read else {}
    quantised = [kind for kind in _by_size(file) if kind in FORMATS]
    if quantised:
        config["quantization_config"] = {"quant_method": "gguf", "mode": quantised[0]}
    return config


def _layers(file: GgufFile, name: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return the number of layers, their windows, and the layers that are mixtures.

    Layers for multi-token prediction are not counted.
    """
    count = config.get("num_hidden_layers")
    predicting = file.metadata.get(f"{name}.nextn_predict_layers")
    if type(count) is not int:
        return {}  # the reader of config.json refuses it
    count -= predicting if type(predicting) is int else 0
    config_layers: dict[str, Any] = {"num_hidden_layers": count}
    key = f"{name}.attention.sliding_window_pattern"
    if isinstance(file.metadata.get(key), UnreadArray):
        windows = file.array(key)[:count]
        config_layers["layer_types"] = [SLIDING if window else FULL for window in windows]
    if config.get("num_local_experts"):
        layers = range(min(count, len(file.tensors)))  # a file may claim billions of layers
        mixtures = (i for i in layers if f"blk.{i}.ffn_gate_inp.weight" in file.tensors)
        config_layers["moe_layers"] = list(mixtures)
    return config_layers


def _flags(file: GgufFile, family: Family, name: str) -> dict[str, Any]:
    """Return config.json's flags of the biases and norms that are in the file."""
    architecture = DESCRIPTIONS[family.name]
    flags: dict[str, Any] = {}
    ends = {name.split(".", 2)[-1] for name in file.tensors}
    for part, roles in BIASES.items():
        key = getattr(architecture, part)
        if isinstance(key, str):
            is_there = any(f"{role}.bias" in ends for role in roles)
            flags[key] = flags.get(key, False) or is_there
    if architecture.qk_norm == UNWEIGHTED:
        flags[architecture.qk_norm_key] = file.metadata.get(f"{name}.expert_count") != UNNORMED
    elif architecture.qk_norm_key:
        flags[architecture.qk_norm_key] = "blk.0.attn_q_norm.weight" in file.tensors
    return flags


def types_of(file: GgufFile) -> str:
    """Return the types of the tensors, those of most bytes first: "Q4_K, Q6_K, F32"."""
    return ", ".join(_by_size(file))


def decoded_bytes(file: GgufFile) -> int:
    """Return the bytes of a file's tensors as `gguf.decoding` decodes them, with their scales.

    Rows of an embedding that is not the output matrix too are read from the file.
    """
    total = 0
    for name, tensor in file.tensors.items():
        form = FORMATS.get(tensor.kind)
        if name == _TABLE and _HEAD in file.tensors:
            continue
        if form is None:
            total += tensor.rows.nbytes
            continue
        count = prod(tensor.shape)
        scale_bytes = np.dtype(form.scale).itemsize + (4 if form.centre else 0)
        total += count * form.bits // 8 + count // form.group * scale_bytes
    return total


def _by_size(file: GgufFile) -> list[str]:
    sizes: dict[str, int] = {}
    for tensor in file.tensors.values():
        sizes[tensor.kind] = sizes.get(tensor.kind, 0) + tensor.rows.nbytes
    return sorted(sizes, key=lambda kind: -sizes[kind])


def _number(file: GgufFile, key: str) -> Any:
    """Return a number, also of a list that has the same number for each layer."""
    value = file.metadata.get(key)
    if not isinstance(value, UnreadArray):
        return value
    per_layer = file.array(key)
    values = set(per_layer) - {0} if key.endswith((KEY_HEADS, WIDTH)) else set(per_layer)
    if len(values) != 1:
        raise StartError(f"{file.path} has a different {key} per layer, which is not supported")
    return values.pop()


def _vocab_size(file: GgufFile) -> int:
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise StartError(f"{file.path} has no tensor 'token_embd.weight': no language model")
    return table.shape[0]


def _derived(file: GgufFile, name: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that follow from several keys."""
    head_dim = config.get("head_dim") or _mean_head_size(config)
    derived: dict[str, Any] = {"head_dim": head_dim} if head_dim else {}
    if name in SCALED_BY_WIDTH:
        is_largest = config.get("num_hidden_layers") == SCALED_BY_WIDTH[name]
        derived["query_pre_attn_scalar"] = _mean_head_size(config) if is_largest else head_dim
    if name == "granitehybrid":
        derived |= _bamba(file, {**derived, **config})
    return derived | _latent(file, name, config) if "kv_lora_rank" in config else derived


def _bamba(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    """Return what differs in Bamba, which llama.cpp also calls granitehybrid."""
    features: Any = config.get("head_dim")
    is_size = type(features) is int and features > 0  # otherwise `positions` refuses it
    has_rope = file.metadata.get("granitehybrid.rope.scaling.finetuned")
    return {
        "position_embedding_type": "rope" if has_rope else "nope",
        "shared_intermediate_size": config.get("intermediate_size"),
        "attention_multiplier": features**-0.5 if is_size else 1.0,
        **config,
    }


def _latent(file: GgufFile, name: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of latent attention.

    Files have a single key head: llama.cpp multiplies queries by the matrix that expands keys.
    """
    rotated, heads = config.get("qk_rope_head_dim"), config.get("num_attention_heads")
    key_size, values = (
        file.metadata.get(f"{name}.attention.{kind}_length_mla")
        or file.metadata.get(f"{name}.attention.{kind}_length")
        for kind in ("key", "value")
    )
    if not type(key_size) is type(rotated) is int or key_size < rotated:
        raise StartError(
            f"{file.path} has keys of {key_size!r} features, of which {rotated!r} are rotated, "
            "expected numbers"
        )
    return {
        "qk_nope_head_dim": key_size - rotated,
        "v_head_dim": values or _mean_head_size(config),
        "head_dim": rotated,
        "num_key_value_heads": heads,
    }


def _mean_head_size(config: dict[str, Any]) -> int:
    """Return the hidden size per head."""
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if type(width) is not int or type(heads) is not int or heads < 1:
        return 0  # the reader of config.json refuses it
    return width // heads
