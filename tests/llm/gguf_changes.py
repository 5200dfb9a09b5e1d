"""What llama.cpp's converter does to the tensors of some architectures, and which keys it writes
for Gemma 3n and 4: see `gguf_converted`."""

import re
from collections.abc import Iterator
from statistics import NormalDist
from typing import Any

import numpy as np
from gguf import GGUFWriter

NAMES = ("gemma3n", "gemma4")
Config = dict[str, Any]
Named = Iterator[tuple[str, np.ndarray]]


def write_keys(writer: GGUFWriter, architecture: str, config: Config) -> None:
    """Beside those that every architecture has."""
    kinds = [kind == "sliding_attention" for kind in config["layer_types"]]
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(kinds)
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if architecture == "gemma3n":
        writer.add_altup_active_idx(config["altup_active_idx"])
        writer.add_altup_num_inputs(config["altup_num_inputs"])
        shares = config["activation_sparsity_pattern"]
        cuts = [NormalDist().inv_cdf(share) if share else -np.inf for share in shares]
        writer.add_activation_sparsity_scale(cuts)
    else:
        _write_kinds(writer, config, kinds)


def _write_kinds(writer: GGUFWriter, config: Config, windows: list[bool]) -> None:
    """Heads are other ones in layers without a window."""
    heads, whole = config["num_key_value_heads"], _whole(config).get("num_key_value_heads")
    if whole:
        writer.add_head_count_kv([heads if window else whole for window in windows])
    for write in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        write(_whole(config)["head_dim"])
    for write in (
        writer.add_key_length_swa,
        writer.add_value_length_swa,
        writer.add_rope_dimension_count_swa,
    ):
        write(config["head_dim"])
    if config["use_double_wide_mlp"]:
        width, own = config["intermediate_size"], len(windows) - config["num_kv_shared_layers"]
        writer.add_feed_forward_length([width << (i >= own) for i in range(len(windows))])


def _whole(config: Config) -> Config:
    """What layers without a window have for themselves."""
    found: Config = next(iter(config["per_layer_config"].values()))
    return found


def gemma4(config: Config, name: str, values: np.ndarray) -> Named:
    layer = f"blk.{number[0]}" if (number := re.findall(r"\d+", name)) else ""
    own = {"router.scale": "ffn_gate_inp.scale", "per_expert_scale": "ffn_down_exps.scale"}
    for end, role in own.items():
        if name.endswith(end):
            yield f"{layer}.{role}", values
            return
    is_bare = name.endswith(("layer_scalar", "gate_up_proj", "experts.down_proj"))
    yield f"{name}.weight" if is_bare else name, values
    if name == "model.norm.weight":  # what layers without a window are turned by
        parameters = config["rope_parameters"]["full_attention"]
        half = _whole(config)["head_dim"] // 2
        turned = int(half * parameters["partial_rotary_factor"])
        divisors = np.array([1.0] * turned + [1e30] * (half - turned), np.float32)
        yield "blk.rope_freqs.weight", divisors


def glm4(config: Config, name: str, values: np.ndarray) -> Named:
    """With positions in parts, what is turned of each head in halves in place of pairs."""
    if "mrope_section" not in config["rope_parameters"] or not re.search(r"\.[qk]_proj\.", name):
        yield name, values
        return
    features = config["hidden_size"] // config["num_attention_heads"]
    turned = int(features * config["rope_parameters"]["partial_rotary_factor"])
    each = values.reshape(-1, features, *values.shape[1:])
    parts = (each[:, :turned:2], each[:, 1:turned:2], each[:, turned:])
    yield name, np.concatenate(parts, 1).reshape(values.shape)


def gemma3n(config: Config, name: str, values: np.ndarray) -> Named:
    yield f"{name}.weight" if name.endswith("_scale") else name, values


def baichuan(config: Config, name: str, values: np.ndarray) -> Named:
    """Queries, keys and values apart."""
    if "W_pack" not in name:
        yield name, values
        return
    for part, own in zip("qkv", np.split(values, 3), strict=True):
        yield name.replace("W_pack", f"{part}_proj"), own


def llama4(config: Config, name: str, values: np.ndarray) -> Named:
    """Experts turned; gates and ups, which are one, apart."""
    if not name.endswith(("gate_up_proj", "down_proj")):
        yield name, values
        return
    values = values.swapaxes(1, 2)
    parts = ("gate_proj", "up_proj") if "gate_up" in name else ("down_proj",)
    stem = name.rpartition(".")[0]
    for part, own in zip(parts, np.split(values, len(parts), 1), strict=True):
        yield f"{stem}.{part}.weight", own


def gpt_oss(config: Config, name: str, values: np.ndarray) -> Named:
    """Experts turned; gates and ups, which take turns, apart."""
    name = name.replace(".sinks", ".sinks.weight")
    if ".experts." not in name:
        yield name, values
        return
    stem, kind = name.removesuffix("_bias"), "bias" if name.endswith("_bias") else "weight"
    values = values if kind == "bias" else values.swapaxes(1, 2)
    if "down_proj" in stem:
        yield f"{stem}.{kind}", values
        return
    for at, part in enumerate(("gate_proj", "up_proj")):
        yield f"{stem.replace('gate_up_proj', part)}.{kind}", values[:, at::2]


def turned(config: Config, name: str, values: np.ndarray) -> Named:
    is_matrix = name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))
    yield name, values.T if is_matrix else values


def heads_apart(config: Config, name: str, values: np.ndarray) -> Named:
    """Queries, then keys, then values, of a tensor that has them head by head."""
    if "query_key_value" in name:
        heads = config.get("num_attention_heads") or config["n_head"]
        keys = config.get("num_kv_heads") or heads
        each = values.reshape(keys, heads // keys + 2, -1, *values.shape[1:])
        parts = (each[:, :-2], each[:, -2], each[:, -1])
        values = np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])
    yield name, values


def bloom(config: Config, name: str, values: np.ndarray) -> Named:
    yield from heads_apart(config, name.removeprefix("transformer."), values)
