"""Tiny checkpoints in Hugging Face's format as GGUF files, as llama.cpp's converter writes them.

Names of tensors are translated by the gguf package's own table, and keys are written by its writer;
both belong to llama.cpp.  What the converter (`conversion/*.py` of llama.cpp) does beside that is
here for each architecture: it permutes, adds, stacks and cuts.  Files were compared with those of
the converter, tensor by tensor and key by key, and what llama.cpp computes of them with ours.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import (
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    GGUFWriter,
    RopeScalingType,
    get_tensor_name_map,
)
from gguf.quants import quantize
from safetensors.numpy import load_file

from tests.llm import gguf_changes, gguf_states
from tests.llm.gguf_files import add_tensor, add_vocabulary, dequantized, finish
from tests.llm.gguf_states import STATES, settings_of, write_state_keys

Config = dict[str, Any]
Arrays = dict[str, np.ndarray]
Change = Callable[[Config, str, np.ndarray], Iterator[tuple[str, np.ndarray]]]
ARCHITECTURES = {name: number for number, name in MODEL_ARCH_NAMES.items()}
# A method of the writer -> what config.json calls the value; the first that is there.
KEYS: dict[str, tuple[str, ...]] = {
    "add_block_count": ("num_hidden_layers", "n_layer"),
    "add_context_length": (
        "max_position_embeddings",
        "n_positions",
        "seq_length",
        "model_max_length",
    ),
    "add_embedding_length": ("hidden_size", "n_embd"),
    "add_feed_forward_length": (
        "intermediate_size_mlp",
        "intermediate_size",
        "n_inner",
        "ffn_hidden_size",
    ),
    "add_head_count": ("num_attention_heads", "n_head"),
    "add_head_count_kv": ("num_kv_heads", "num_key_value_heads", "n_head"),
    "add_layer_norm_rms_eps": ("rms_norm_eps", "norm_eps"),
    "add_layer_norm_eps": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "add_expert_count": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "add_expert_used_count": ("num_experts_per_tok", "moe_k", "top_k_experts"),
    "add_expert_group_count": ("n_group",),
    "add_expert_group_used_count": ("topk_group",),
    "add_expert_feed_forward_length": ("moe_intermediate_size",),
    "add_expert_shared_count": ("n_shared_experts", "moe_num_shared_experts"),
    "add_expert_weights_scale": ("routed_scaling_factor",),
    "add_leading_dense_block_count": (
        "first_k_dense_replace",
        "moe_layer_start_index",
        "num_dense_layers",
    ),
    "add_interleave_moe_layer_step": ("moe_layer_interval", "interleave_moe_layer_step"),
    "add_key_length": ("head_dim",),
    "add_value_length": ("value_dim", "head_dim"),
    "add_parallel_residual": ("use_parallel_residual",),
    "add_logit_scale": ("logit_scale", "logits_scaling"),
    "add_embedding_scale": ("embedding_multiplier",),
    "add_residual_scale": ("residual_multiplier",),
    "add_attention_scale": ("attention_multiplier",),
    "add_q_lora_rank": ("q_lora_rank",),
    "add_kv_lora_rank": ("kv_lora_rank",),
}
PAIRED = {"llama", "granite", "granitemoe", "smollm3", "arcee", "olmo", "internlm2"}
PAIRED |= {"baichuan", "granitehybrid", "mistral3"}
PLUS_ONE = {"gemma", "gemma3", "nemotron"}
WINDOWED = {"gpt-oss", "exaone4", "cohere2", "olmo2", "gemma3"}
PARTS = {"w1.weight": "gate_proj.weight", "w2.weight": "down_proj.weight"}
PARTS["w3.weight"] = "up_proj.weight"
_EXPERT = re.compile(r"(.*\.(?:experts|altup\w*projections))\.(\d+)\.(.*)")


def write_converted(
    directory: Path, architecture: str, path: Path, *, kind: str = "F32", is_rounded: bool = False,
    vocabulary: Config | None = None, template: str = "",
) -> Path:  # fmt: skip
    """The checkpoint in `directory` as the file `path` of llama.cpp's `architecture`, matrices of
    type `kind`; with `is_rounded` floats that are as large.  `vocabulary` is as the arguments of
    `add_vocabulary`, by default of tokens that no text has; `template` is that of chats."""
    config = json.loads((directory / "config.json").read_text())
    config.setdefault("rope_parameters", {})
    writer = GGUFWriter(path, architecture)
    _write_keys(writer, architecture, config)
    tokens = ["t", "2", *(f"t{index}" for index in range(2, config["vocab_size"]))]
    add_vocabulary(writer, **(vocabulary or {"tokens": tokens, "merges": ["t 2"], "pre": "gpt-2"}))
    if template:
        writer.add_chat_template(template)
    found = get_tensor_name_map(
        ARCHITECTURES[architecture], config.get("num_hidden_layers") or config.get("n_layer") or 8
    )
    for name, values in _changed(config, architecture, load_file(directory / "model.safetensors")):
        own = (
            name.replace("blk.rope", "rope")
            if name.startswith("blk.")
            else found.get_name(name, (".weight", ".bias"))
        )
        assert own is not None, f"no name for {name}"
        values, is_matrix = np.ascontiguousarray(values), "weight" in own and "gate_inp" not in own
        own_kind = kind if is_matrix and values.ndim > 1 and values.shape[-1] % 32 == 0 else "F32"
        if is_rounded and own_kind != "F32":
            values = dequantized(own_kind, quantize(values, GGMLQuantizationType[own_kind]))
            own_kind = "F32"
        add_tensor(writer, own, values, own_kind)
    return finish(writer)


def _write_keys(writer: GGUFWriter, architecture: str, config: Config) -> None:
    known = settings_of(architecture, config)
    known = {**known, **_latent(config)} if config.get("kv_lora_rank") else known
    for method, names in KEYS.items():
        value = next((known[name] for name in names if known.get(name) is not None), None)
        if value is not None:
            getattr(writer, method)(value)
    guesses = config.get("num_nextn_predict_layers")
    if guesses:
        writer.add_nextn_predict_layers(guesses)
        writer.add_block_count(config["num_hidden_layers"] + guesses)
    if config.get("norm_topk_prob"):
        writer.add_expert_weights_norm(True)
    if architecture == "deepseek2":
        writer.add_key_length_mla(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
        writer.add_value_length_mla(config["v_head_dim"])
    if architecture in WINDOWED and config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
        if architecture in ("exaone4", "olmo2"):
            kinds = config["layer_types"]
            writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])
    write_state_keys(writer, architecture, config)
    _write_positions(writer, config)
    if architecture in gguf_changes.NAMES:
        gguf_changes.write_keys(writer, architecture, config)


def _latent(config: Config) -> Config:
    """DeepSeek's: one key head, of what keys are widened from; MiniCPM 3 has them widened."""
    if config["model_type"] == "minicpm3":
        whole = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
        return {"head_dim": whole, "value_dim": config["v_head_dim"]}
    return {
        "num_key_value_heads": 1,
        "head_dim": config["kv_lora_rank"] + config["qk_rope_head_dim"],
        "value_dim": config["kv_lora_rank"],
    }


def _write_positions(writer: GGUFWriter, config: Config) -> None:
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    base, kind = rope.get("rope_theta") or config.get("rope_theta"), rope.get("rope_type")
    features = config.get("head_dim") or config.get("hidden_size", 0) // config.get(
        "num_attention_heads", 1
    )
    share = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor")
    rotated = config.get("qk_rope_head_dim") or (share and int(share * features))
    if rotated:
        writer.add_rope_dimension_count(rotated)
    if kind == "dynamic":  # Hunyuan's, by which the base grows
        base *= rope["alpha"] ** (features / (features - 2))
    if base:
        writer.add_rope_freq_base(base)
    if rope.get("mrope_section"):
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    if kind == "yarn":
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if rope.get("beta_fast"):
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        if rope.get("mscale_all_dim"):
            share = 1.0 if "llama_4_scaling_beta" in rope else 0.1
            writer.add_rope_scaling_yarn_log_mul(share * rope["mscale_all_dim"])
        if rope.get("llama_4_scaling_beta"):
            writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


def _changed(
    config: Config, architecture: str, tensors: Arrays
) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors as the converter has them, under names that the package's table knows."""
    stacks: dict[str, list[np.ndarray]] = {}
    for name in sorted(tensors, key=lambda name: [int(n) for n in re.findall(r"\d+", name)]):
        values = tensors[name]
        if config.get("tie_word_embeddings") and name == "lm_head.weight":
            continue
        expert = _EXPERT.fullmatch(name)
        if expert:
            leaf = PARTS.get(expert[3], expert[3]) if architecture == "lfm2moe" else expert[3]
            stem = expert[1].replace("backbone", "model").replace("mixer", "mlp")
            stacks.setdefault(f"{stem}.{leaf}", []).append(values)
            continue
        for own, part in CHANGES.get(architecture, _same)(config, name, values):
            if architecture in PAIRED and re.search(r"[qk]_proj\.(weight|bias)$", own):
                part = _in_pairs(part, _heads(config, own))
            yield (
                own,
                part + 1 if architecture in PLUS_ONE and own.endswith("norm.weight") else part,
            )
    yield from ((name, np.stack(parts)) for name, parts in stacks.items())


def _same(config: Config, name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    yield name, values


def _heads(config: Config, name: str) -> int:
    key = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
    return int(config.get(key) or config["num_attention_heads"])


def _in_pairs(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows that are half a head apart side by side."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _cut_rows(stem: str, parts: tuple[str, ...]) -> Change:
    """A tensor [.., rows, in] in parts, one after another."""

    def change(config: Config, name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        if stem not in name:
            yield name, values
            return
        layer = re.findall(r"\d+", name)[0]
        for part, own in zip(parts, np.split(values, len(parts), -2), strict=True):
            yield f"blk.{layer}.{part}.weight", own

    return change


def _latent_parts(
    config: Config, name: str, values: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """What widens keys, turned, and what widens values, of each head."""
    if not name.endswith("kv_b_proj.weight"):
        yield name.replace("e_score_correction_bias", "e_score_correction.bias"), values
        return
    plain, rank = config["qk_nope_head_dim"], config["kv_lora_rank"]
    each = values.reshape(config["num_attention_heads"], -1, rank)
    yield name.replace("kv_b_proj", "k_b_proj"), each[:, :plain].swapaxes(1, 2)
    yield name.replace("kv_b_proj", "v_b_proj"), each[:, plain:]


def _internlm2(config: Config, name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    if "wqkv" not in name:
        yield name, values
        return
    heads, keys = config["num_attention_heads"], config["num_key_value_heads"]
    each = values.reshape(keys, heads // keys + 2, -1, values.shape[1])
    layer = re.findall(r"\d+", name)[0]
    parts = {"q": (each[:, :-2], heads), "k": (each[:, -2], keys), "v": (each[:, -1], 0)}
    for part, (rows, count) in parts.items():
        own = rows.reshape(-1, values.shape[1])
        yield f"blk.{layer}.attn_{part}.weight", _in_pairs(own, count) if count else own


def _corrected(config: Config, name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    yield name.replace("e_score_correction_bias", "e_score_correction.bias"), values


CHANGES: dict[str, Change] = {
    "granitemoe": _cut_rows("input_linear", ("ffn_gate_exps", "ffn_up_exps")),
    "gpt-oss": gguf_changes.gpt_oss,
    "llama4": gguf_changes.llama4,
    "qwen3vlmoe": gguf_states.gates_apart,
    "baichuan": gguf_changes.baichuan,
    "gemma3n": gguf_changes.gemma3n,
    "gemma4": gguf_changes.gemma4,
    "gptneox": gguf_changes.heads_apart,
    "bloom": gguf_changes.bloom,
    "falcon": gguf_changes.heads_apart,
    "gpt2": gguf_changes.turned,
    "deepseek2": _latent_parts,
    "internlm2": _internlm2,
    **STATES,
    "glm4": gguf_changes.glm4,
    "glm4moe": _corrected,
    "dots1": _corrected,
    "ernie4_5-moe": _corrected,
}
