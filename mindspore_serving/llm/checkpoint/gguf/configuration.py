"""The metadata of a GGUF file as the config.json that its model has elsewhere.

What is there is checked by the readers of config.json.  Knows the architectures that have a
definition, and how llama.cpp names their sizes.
"""

from difflib import get_close_matches
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.decoding import FORMS
from mindspore_serving.llm.checkpoint.gguf.reader import Array, GgufFile

ARCHITECTURE = "general.architecture"
# llama.cpp's architecture -> the first of config.json's `architectures`.
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "chatglm": "GlmForCausalLM",
}
MIXTRAL = "MixtralForCausalLM"  # llama.cpp calls it llama, with experts
# Models whose attention is scaled by the mean size of a head: their number of layers.
SCALED_BY_WIDTH = {"gemma2": 46, "gemma3": 62}
# config.json's name -> the key behind "{architecture}.", of what is copied.
SIZES = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}


def architecture_of(file: GgufFile) -> str:
    """Its name in config.json.  Raises StartError for one that has no definition."""
    found = file.metadata.get(ARCHITECTURE)
    if found not in ARCHITECTURES:
        near = get_close_matches(str(found), ARCHITECTURES, 2, 0.5)
        hint = f"; near it: {' and '.join(near)}" if near else ""
        raise StartError(
            f"{file.path} has architecture {found!r}, which is not supported as GGUF{hint} "
            f"(supported: {', '.join(ARCHITECTURES)}); its safetensors may be: see docs/llm.md"
        )
    is_mixtral = found == "llama" and file.metadata.get("llama.expert_count")
    return MIXTRAL if is_mixtral else ARCHITECTURES[found]


def config_of(file: GgufFile) -> dict[str, Any]:
    """config.json.  Raises StartError for what the definitions do not have."""
    name, family = architecture_of(file), str(file.metadata[ARCHITECTURE])
    config: dict[str, Any] = {"architectures": [name]}
    for field, key in SIZES.items():
        value = _number(file, f"{family}.{key}")
        if value is not None:
            config[field] = value
    config["vocab_size"] = _vocab_size(file)
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors and name == "LlamaForCausalLM"
    config |= _rope(file, family, config) | _own(file, family, config)
    quantised = [kind for kind in _by_size(file) if kind in FORMS]
    if quantised:
        config["quantization_config"] = {"quant_method": "gguf", "mode": quantised[0]}
    return config


def types_of(file: GgufFile) -> str:
    """The types of its tensors, those of most bytes first: "Q4_K, Q6_K, F32"."""
    return ", ".join(_by_size(file))


def _by_size(file: GgufFile) -> list[str]:
    sizes: dict[str, int] = {}
    for tensor in file.tensors.values():
        sizes[tensor.kind] = sizes.get(tensor.kind, 0) + tensor.rows.nbytes
    return sorted(sizes, key=lambda kind: -sizes[kind])


def _number(file: GgufFile, key: str) -> Any:
    """A number, or a list of one for each layer if they are all the same."""
    value = file.metadata.get(key)
    if not isinstance(value, Array):
        return value
    found = set(file.array(key))
    if len(found) != 1:
        raise StartError(f"{file.path} has layers of different {key}, which is not supported")
    return found.pop()


def _vocab_size(file: GgufFile) -> int:
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise StartError(f"{file.path} has no tensor 'token_embd.weight': no language model")
    return table.shape[0]


def _rope(file: GgufFile, family: str, config: dict[str, Any]) -> dict[str, Any]:
    """rope_scaling, and which share of a head is rotated."""

    def read(key: str) -> Any:
        return file.metadata.get(f"{family}.rope.{key}")

    found: dict[str, Any] = {}
    head_dim = config.get("head_dim") or _head_dim(config)
    rotated = read("dimension_count") or head_dim
    if not type(rotated) is type(head_dim) is int:
        raise StartError(
            f"{file.path} has heads of {head_dim!r} numbers, of which {rotated!r} are rotated "
            f"({family}.rope.dimension_count), expected numbers"
        )
    if head_dim and rotated != head_dim:
        found["partial_rotary_factor"] = rotated / head_dim
    kind = read("scaling.type") or ("linear" if read("scale_linear") else "none")
    factor = read("scaling.factor") or read("scale_linear") or 1.0
    original = read("scaling.original_context_length") or config.get("max_position_embeddings")
    scaling = {"rope_type": kind, "factor": factor, "original_max_position_embeddings": original}
    divisors = _divisors(file)
    if divisors:
        sharpness = read("scaling.attn_factor") if len(divisors) > 1 else 1.0
        scaling |= {"rope_type": "longrope", "short_factor": divisors[0]}
        scaling |= {"long_factor": divisors[-1], "attention_factor": sharpness or None}
    elif kind == "none":
        return found
    elif kind not in ("linear", "yarn"):
        raise StartError(f"{file.path} has rope scaling {kind!r}, expected linear, yarn or none")
    return {**found, "rope_scaling": scaling}


def _head_dim(config: dict[str, Any]) -> int:
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if type(width) is not int or type(heads) is not int or heads < 1:
        return 0  # the reader of config.json says what is wrong
    return width // heads


def _divisors(file: GgufFile) -> list[list[float]]:
    """Tensors that divide the frequencies: for all texts, or for short and for long ones."""
    names = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
    found = [file.tensors[name] for name in names if name in file.tensors]
    if any(tensor.kind != "F32" for tensor in found):
        raise StartError(f"{file.path} has rope factors that are not F32")
    return [tensor.rows.view("<f4").ravel().tolist() for tensor in found]


def _own(file: GgufFile, family: str, config: dict[str, Any]) -> dict[str, Any]:
    """What one family alone has."""
    if family == "qwen3moe":
        return {"norm_topk_prob": True}
    if family == "phi3":
        return {"sliding_window": file.metadata.get("phi3.attention.sliding_window")}
    if family == "chatglm":
        biases = ("blk.0.attn_qkv.bias", "blk.0.attn_q.bias")
        return {
            "attention_bias": any(name in file.tensors for name in biases),
            "head_dim": config.get("head_dim") or _head_dim(config),
        }
    if not family.startswith("gemma"):
        return {}
    own: dict[str, Any] = {"hidden_activation": "gelu_pytorch_tanh"}
    window = file.metadata.get(f"{family}.attention.sliding_window")
    if window:
        own["sliding_window"] = window
    is_largest = config.get("num_hidden_layers") == SCALED_BY_WIDTH[family]
    own["query_pre_attn_scalar"] = _head_dim(config) if is_largest else config.get("head_dim")
    return own
