"""The metadata of a GGUF file as the config.json that its model has elsewhere.

What is there is checked by the readers of config.json.  Knows the architectures that have a
definition, and how llama.cpp names their sizes.
"""

from difflib import get_close_matches
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.decoding import FORMS
from mindspore_serving.llm.checkpoint.gguf.families import FAMILIES, VARIANTS, Family
from mindspore_serving.llm.checkpoint.gguf.positions import positions_of
from mindspore_serving.llm.checkpoint.gguf.reader import GgufFile, UnreadArray
from mindspore_serving.llm.checkpoint.gguf.states import KEY_HEADS, states_of
from mindspore_serving.llm.descriptions.architecture import UNWEIGHTED, Architecture
from mindspore_serving.llm.descriptions.families import FAMILIES as DESCRIPTIONS
from mindspore_serving.llm.descriptions.layer_kinds import FULL, SLIDING

WIDTH = "feed_forward_length"  # 0 of a layer without such a block
NOTHING = ("intermediate_size", "num_attention_heads")  # 0 where no layer has such a block
ARCHITECTURE = "general.architecture"
# Models whose attention is scaled by the mean size of a head: their number of layers.
SCALED_BY_WIDTH = {"gemma2": 46, "gemma3": 62}
UNNORMED = 128  # experts of the Llama 4 (Maverick) that does not normalise queries and keys
# config.json's name -> the key behind "{architecture}.", of what is copied.
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
# Whether there are biases: where some layer has them.
BIASES = {
    "qkv_bias": ("attn_q", "attn_qkv"),
    "output_bias": ("attn_output",),
    "mlp_bias": ("ffn_down",),
}


def family_of(file: GgufFile) -> Family:
    """Its row.  Raises StartError for an architecture that has no definition."""
    found = file.metadata.get(ARCHITECTURE)
    if found not in FAMILIES:
        near = get_close_matches(str(found), FAMILIES, 2, 0.5)
        hint = f"; near it: {' and '.join(near)}" if near else ""
        raise StartError(
            f"{file.path} has architecture {found!r}, which is not supported as GGUF{hint} "
            f"(supported: {', '.join(FAMILIES)}); its safetensors may be: see docs/architectures.md"
        )
    end, variant = VARIANTS.get(found, ("", FAMILIES[found]))
    is_variant = any(name.endswith(end) for name in file.tensors)
    return variant if is_variant else FAMILIES[found]


def form_of(family: Family, config: dict[str, Any]) -> Architecture:
    """The description of the architecture, of a model with this config.json."""
    form = DESCRIPTIONS[family.name]
    return form.variant(form, {**form.defaults, **config}) if form.variant else form


def config_of(file: GgufFile) -> dict[str, Any]:
    """config.json.  Raises StartError for what the definitions do not have."""
    family, name = family_of(file), str(file.metadata[ARCHITECTURE])
    config: dict[str, Any] = {"architectures": [family.name], "rope_theta": 10000.0}
    config |= {"sliding_window": None, **family.own}
    for field, key in {**SIZES, **family.sizes}.items():
        value = _number(file, f"{name}.{key}")
        if value is not None and (value != 0 or field not in NOTHING):
            config[field] = value
    config["vocab_size"] = _vocab_size(file)
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config |= _layers(file, name, config)
    if type(config.get("num_hidden_layers")) is int:  # else its reader says what is wrong
        config |= states_of(file, name, family, DESCRIPTIONS[family.name], config)
    config |= _own(file, name, config)
    config |= positions_of(file, name, config)
    config |= _flags(file, family, name)
    config |= family.read(file) if family.read else {}
    quantised = [kind for kind in _by_size(file) if kind in FORMS]
    if quantised:
        config["quantization_config"] = {"quant_method": "gguf", "mode": quantised[0]}
    return config


def _layers(file: GgufFile, name: str, config: dict[str, Any]) -> dict[str, Any]:
    """How many layers there are, without those that guess several tokens; which have a window, and
    which are mixtures.
    """
    count = config.get("num_hidden_layers")
    guesses = file.metadata.get(f"{name}.nextn_predict_layers")
    if type(count) is not int:
        return {}  # the reader of config.json says what is wrong
    count -= guesses if type(guesses) is int else 0
    found: dict[str, Any] = {"num_hidden_layers": count}
    key = f"{name}.attention.sliding_window_pattern"
    if isinstance(file.metadata.get(key), UnreadArray):
        windows = file.array(key)[:count]
        found["layer_types"] = [SLIDING if one else FULL for one in windows]
    if config.get("num_local_experts"):
        layers = range(min(count, len(file.tensors)))  # a file may say that there are billions
        mixtures = (i for i in layers if f"blk.{i}.ffn_gate_inp.weight" in file.tensors)
        found["moe_layers"] = list(mixtures)
    return found


def _flags(file: GgufFile, family: Family, name: str) -> dict[str, Any]:
    """What config.json calls the biases and norms that are in the file."""
    form = DESCRIPTIONS[family.name]
    found: dict[str, Any] = {}
    ends = {name.split(".", 2)[-1] for name in file.tensors}
    for part, roles in BIASES.items():
        key = getattr(form, part)
        if isinstance(key, str):
            is_there = any(f"{role}.bias" in ends for role in roles)
            found[key] = found.get(key, False) or is_there
    if form.qk_norm == UNWEIGHTED:
        found[form.qk_norm_key] = file.metadata.get(f"{name}.expert_count") != UNNORMED
    elif form.qk_norm_key:
        found[form.qk_norm_key] = "blk.0.attn_q_norm.weight" in file.tensors
    return found


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
    if not isinstance(value, UnreadArray):
        return value
    each = file.array(key)
    found = set(each) - {0} if key.endswith((KEY_HEADS, WIDTH)) else set(each)
    if len(found) != 1:
        raise StartError(f"{file.path} has layers of different {key}, which is not supported")
    return found.pop()


def _vocab_size(file: GgufFile) -> int:
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise StartError(f"{file.path} has no tensor 'token_embd.weight': no language model")
    return table.shape[0]


def _own(file: GgufFile, name: str, config: dict[str, Any]) -> dict[str, Any]:
    """What follows from several keys."""
    head_dim = config.get("head_dim") or _mean_size(config)
    own: dict[str, Any] = {"head_dim": head_dim} if head_dim else {}
    if name in SCALED_BY_WIDTH:
        is_largest = config.get("num_hidden_layers") == SCALED_BY_WIDTH[name]
        own["query_pre_attn_scalar"] = _mean_size(config) if is_largest else head_dim
    if name == "granitehybrid":
        own |= _bamba(file, {**own, **config})
    return own | _latent(file, name, config) if "kv_lora_rank" in config else own


def _bamba(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    """What Bamba, which llama.cpp calls so as well, has otherwise: positions, the usual scale."""
    features: Any = config.get("head_dim")
    is_size = type(features) is int and features > 0  # else `positions` says what is wrong
    has_rope = file.metadata.get("granitehybrid.rope.scaling.finetuned")
    return {
        "position_embedding_type": "rope" if has_rope else "nope",
        "shared_intermediate_size": config.get("intermediate_size"),
        "attention_multiplier": features**-0.5 if is_size else 1.0,
        **config,
    }


def _latent(file: GgufFile, name: str, config: dict[str, Any]) -> dict[str, Any]:
    """The sizes of latent attention.  Files have one key head, where queries are multiplied with
    what keys are widened from.
    """
    rotated, heads = config.get("qk_rope_head_dim"), config.get("num_attention_heads")
    whole, values = (
        file.metadata.get(f"{name}.attention.{kind}_length_mla")
        or file.metadata.get(f"{name}.attention.{kind}_length")
        for kind in ("key", "value")
    )
    if not type(whole) is type(rotated) is int or whole < rotated:
        raise StartError(
            f"{file.path} has keys of {whole!r} features, of which {rotated!r} are rotated, "
            "expected numbers"
        )
    return {
        "qk_nope_head_dim": whole - rotated,
        "v_head_dim": values or _mean_size(config),
        "head_dim": rotated,
        "num_key_value_heads": heads,
    }


def _mean_size(config: dict[str, Any]) -> int:
    """Of a head."""
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if type(width) is not int or type(heads) is not int or heads < 1:
        return 0  # the reader of config.json says what is wrong
    return width // heads
