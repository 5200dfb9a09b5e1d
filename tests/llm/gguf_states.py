"""What llama.cpp's converter does to layers with a state: see `gguf_converted`."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gguf import GGUFWriter

Config = dict[str, Any]
Named = Iterator[tuple[str, np.ndarray]]
MAMBA = ("mamba2", "falcon-h1", "nemotron_h", "nemotron_h_moe", "granitehybrid")
SHARED = (
    *("shared_intermediate_size", "shared_expert_intermediate_size"),
    "moe_shared_expert_intermediate_size",
)
FULL = "full_attention"
IN_TURNS = ("qwen35", "qwen35moe")


def settings_of(architecture: str, config: Config) -> Config:
    """What keys are written of, where config.json has it otherwise."""
    if architecture not in MAMBA:
        return config
    found = dict(config)
    if "layers_block_type" in config:
        found["num_hidden_layers"] = len(config["layers_block_type"])
    if architecture == "nemotron_h":  # transformers' settings have experts that there are not
        found = {key: value for key, value in found.items() if "expert" not in key}
    if architecture == "mamba2":  # heads of attention are none, and those of states another key's
        found["rms_norm_eps"] = found.pop("layer_norm_epsilon")
        del found["head_dim"]
        found |= {"num_attention_heads": 0, "intermediate_size": 0}
    return found


def write_state_keys(writer: GGUFWriter, architecture: str, config: Config) -> None:
    """Of states, and which layers have keys beside them."""
    if architecture in MAMBA:
        _write_mamba(writer, config)
    if architecture in ("lfm2", "lfm2moe"):
        heads, kinds = config["num_key_value_heads"], config["layer_types"]
        writer.add_head_count_kv([heads if kind == FULL else 0 for kind in kinds])
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    if "linear_num_key_heads" in config:
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        values = config["linear_num_value_heads"]
        writer.add_ssm_time_step_rank(values)
        writer.add_ssm_inner_size(config["linear_value_head_dim"] * values)
        writer.add_full_attention_interval(config.get("full_attention_interval", 4))
        if architecture in IN_TURNS and "mrope_section" not in config["rope_parameters"]:
            writer.add_rope_dimension_sections([11, 11, 10, 0])


def _write_mamba(writer: GGUFWriter, config: Config) -> None:
    def setting(*names: str) -> int:
        return next(int(config[name]) for name in names if config.get(name))

    heads = setting("mamba_n_heads", "mamba_num_heads", "num_heads")
    writer.add_ssm_conv_kernel(setting("mamba_d_conv", "conv_kernel"))
    writer.add_ssm_state_size(setting("mamba_d_state", "ssm_state_size", "state_size"))
    writer.add_ssm_group_count(setting("mamba_n_groups", "n_groups"))
    writer.add_ssm_time_step_rank(heads)
    width = setting("mamba_d_head", "mamba_head_dim", "head_dim")
    writer.add_ssm_inner_size(heads * width)
    shared = next((config[name] for name in SHARED if config.get(name)), None)
    if shared:
        writer.add_expert_shared_feed_forward_length(shared)
    if config["model_type"] in ("granitemoehybrid", "bamba"):
        _write_granite(writer, config)
    if config.get("moe_latent_size"):
        writer.add_moe_latent_size(config["moe_latent_size"])
    if "layers_block_type" in config:  # of Nemotron, whose layers have one block each
        kinds, keys = config["layers_block_type"], config["num_key_value_heads"]
        writer.add_head_count_kv([keys if kind == FULL else 0 for kind in kinds])
        inner = config["intermediate_size"]
        writer.add_feed_forward_length([inner if kind in ("mlp", "moe") else 0 for kind in kinds])


def _write_granite(writer: GGUFWriter, config: Config) -> None:
    keys, count = config["num_key_value_heads"], config["num_hidden_layers"]
    full = config.get("attn_layer_indices") or [
        index for index in range(count) if config["layer_types"][index] in ("attention", FULL)
    ]
    writer.add_head_count_kv([keys if index in full else 0 for index in range(count)])
    writer.add_rope_scaling_finetuned(config["model_type"] == "bamba")


def _granite(config: Config, name: str, values: np.ndarray) -> Named:
    """Gates apart from the rest, of experts and of what computes every token."""
    has_experts = config.get("num_local_experts")
    if "input_linear" not in name:
        own = name.replace("shared_mlp.output_linear", "mlp.down_proj")
        yield from _mamba(config, name if has_experts else own, values)
        return
    is_shared, layer = "shared_mlp" in name, name.split(".")[2]
    end = ("_shexp" if has_experts else "") if is_shared else "_exps"
    for part, own in zip(("gate", "up"), np.split(values, 2, -2), strict=True):
        yield f"blk.{layer}.ffn_{part}{end}.weight", own


def _mamba(config: Config, name: str, values: np.ndarray) -> Named:
    """Rates and skips of a column each, and norms of a row for each group."""
    groups = config.get("mamba_n_groups") or config.get("n_groups")
    if name.endswith(("A_log", ".D")):
        values = values[:, None]
    elif name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        values = values.reshape(groups, -1)
    name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    yield from _renamed(name, values)


def _falcon_h1(config: Config, name: str, values: np.ndarray) -> Named:
    """Multiplied by what the model multiplies inputs and results by."""
    given, (gate, down) = config["attention_in_multiplier"], config["mlp_multipliers"]
    factors = {
        "gate_proj": gate, "down_proj": down, "q_proj": given, "v_proj": given,
        "k_proj": given * config["key_multiplier"], "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"], "in_proj": config["ssm_in_multiplier"],
        "lm_head": config["lm_head_multiplier"], "embed_tokens": config["embedding_multiplier"],
    }  # fmt: skip
    leaf = name.split(".")[-2]
    values = values * np.float32(factors.get(leaf, 1.0))
    if leaf == "in_proj":
        inner, heads = config["mamba_d_ssm"], config["mamba_n_heads"]
        keys = config["mamba_n_groups"] * config["mamba_d_state"]
        sizes = [inner, inner, keys, keys, heads]
        values = values * np.repeat(np.float32(config["ssm_multipliers"]), sizes)[:, None]
    yield from _mamba(config, name, values)


def _delta_rule(config: Config, name: str, values: np.ndarray) -> Named:
    """Norms with 1 added, but for that of the result; rates; queries, keys and values apart from
    gates; in Qwen3.5 heads of values in turns; of experts gates apart from the rest."""
    if name.endswith("norm.weight") and "linear_attn" not in name:
        values = values + 1
    layer, _, leaf = name.partition(".linear_attn.")
    if "in_proj_qkvz" in name:
        yield from _apart(config, layer.split(".")[-1], values)
    elif leaf:
        if config["model_type"].startswith("qwen3_5"):
            values = _in_turns(config, leaf, values)
        yield from _renamed(name, values)
    else:
        yield from gates_apart(config, name, values)


def gates_apart(config: Config, name: str, values: np.ndarray) -> Named:
    """Divide the tensor of gates and values of stacked experts."""
    if name.endswith("experts.gate_up_proj"):
        for part, own in zip(("gate_proj", "up_proj"), np.split(values, 2, 1), strict=True):
            yield f"{name.replace('gate_up_proj', part)}.weight", own
    else:
        yield f"{name}.weight" if name.endswith("experts.down_proj") else name, values


def _renamed(name: str, values: np.ndarray) -> Named:
    if name.endswith("A_log"):
        yield name, -np.exp(values)
    elif name.endswith("dt_bias"):
        yield name.replace("dt_bias", "dt_proj.bias"), values
    else:
        yield name, values[:, 0] if "conv1d.weight" in name else values


def _apart(config: Config, layer: str, values: np.ndarray) -> Named:
    heads, width = config["linear_num_key_heads"], config["linear_key_head_dim"]
    each = values.reshape(heads, -1, values.shape[-1])
    rest = (each.shape[1] - 2 * width) // 2
    parts = np.split(each, [width, 2 * width, 2 * width + rest], 1)
    flat = [part.reshape(-1, values.shape[-1]) for part in parts]
    yield f"blk.{layer}.attn_qkv.weight", np.concatenate(flat[:3])
    yield f"blk.{layer}.attn_gate.weight", flat[3]


def _in_turns(config: Config, leaf: str, values: np.ndarray) -> np.ndarray:
    """The first head of values of each head of keys, then the second ones .."""
    heads = config["linear_num_key_heads"]
    if leaf == "norm.weight":
        return values
    if leaf == "out_proj.weight":
        return _turned(values.T, heads, config["linear_value_head_dim"]).T
    keys = 2 * heads * config["linear_key_head_dim"]
    first = keys if leaf in ("in_proj_qkv.weight", "conv1d.weight") else 0
    width = config["linear_value_head_dim"] if first or "in_proj_z" in leaf else 1
    return np.concatenate([values[:first], _turned(values[first:], heads, width)])


def _turned(rows: np.ndarray, heads: int, width: int) -> np.ndarray:
    return rows.reshape(heads, -1, width, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)


def _convolved(config: Config, name: str, values: np.ndarray) -> Named:
    name = name.replace("expert_bias", "expert_bias.bias")
    yield name, values[:, 0] if name.endswith("conv.conv.weight") else values


STATES = {
    **dict.fromkeys(("qwen35", "qwen35moe", "qwen3next"), _delta_rule),
    **dict.fromkeys(MAMBA, _mamba),
    "falcon-h1": _falcon_h1,
    "granitehybrid": _granite,
    **dict.fromkeys(("lfm2", "lfm2moe"), _convolved),
}
