"""GGUF files for tests: tiny random models by the gguf package, and random blocks of every type."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize

EXPERTS = 4
VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, LAYERS = 96, 64, 4, 2, 16, 96, 3
LENGTH = 512
# Where each type has its float16 numbers, which random bits cannot be.
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "IQ1_S": (0,),
    "IQ1_M": (),
}
SIZES = {"Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34)}
SIZES |= {"Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176)}
SIZES |= {"Q6_K": (256, 210), "IQ4_NL": (32, 18), "IQ4_XS": (256, 136), "MXFP4": (32, 17)}
SIZES |= {"TQ1_0": (256, 54), "TQ2_0": (256, 66), "IQ2_XXS": (256, 66), "IQ2_XS": (256, 74)}
SIZES |= {"IQ2_S": (256, 82), "IQ3_XXS": (256, 98), "IQ3_S": (256, 110), "IQ1_S": (256, 50)}
SIZES |= {"IQ1_M": (256, 56)}
KINDS = tuple(HALVES)


def random_blocks(kind: str, outputs: int, inputs: int, seed: int = 0) -> np.ndarray:
    """Blocks of `kind`, uint8 [outputs, bytes of a row]: random integers, sensible scales."""
    rng = np.random.default_rng(seed)
    block, num_bytes = SIZES[kind]
    rows = rng.integers(0, 256, (outputs, inputs // block, num_bytes)).astype(np.uint8)
    if kind == "MXFP4":  # a power of two
        rows[:, :, 0] = rng.integers(117, 122, rows.shape[:2])
    if kind == "IQ1_M":  # the high halves of 4 bytes are a float16, 0.0078125
        rows[:, :, 49::2] = rows[:, :, 49::2] & 15 | np.array([0, 0, 0, 2], np.uint8) << 4
    for at in HALVES[kind]:
        scales = rng.uniform(0.001, 0.01, (outputs, inputs // block, 1)).astype(np.float16)
        rows[:, :, at : at + 2] = scales.view(np.uint8)
    return rows.reshape(outputs, -1)


def dequantized(kind: str, rows: np.ndarray) -> np.ndarray:
    """What the gguf package makes of blocks: float32 [outputs, inputs]."""
    return np.asarray(dequantize(rows, GGMLQuantizationType[kind]))


def write_model(
    path: Path,
    family: str = "llama",
    *,
    kind: str = "F32",
    extra: Mapping[str, Any] | None = None,
    tied: bool = False,
    packed: bool = False,
    tensors: Mapping[str, np.ndarray] | None = None,
    tensors_per_file: int = 0,
) -> Path:
    """A tiny random model of llama.cpp's architecture `family`, its matrices of type `kind`.

    `extra` are further keys, or other values of some; `tensors` further tensors.  With `packed`
    queries, keys and values are one tensor.  With `tensors_per_file` the model is in several files.
    """
    writer = GGUFWriter(path, family, split_max_tensors=tensors_per_file)
    writer.add_block_count(LAYERS)
    writer.add_context_length(LENGTH)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(VOCAB)
    for key, value in (extra or {}).items():
        add_value(writer, key, value)
    add_vocabulary(writer, [f"t{index}" for index in range(VOCAB)])
    for name, values in (tensors or {}).items():
        add_tensor(writer, name, values)
    rng = np.random.default_rng(0)
    for name, shape in shapes(family, tied=tied, packed=packed).items():
        scale = 0.3 if len(shape) > 1 else 0.1
        values = rng.normal(0, scale, shape).astype(np.float32) + np.float32(len(shape) == 1)
        add_tensor(writer, name, values, kind if _is_quantised(name, shape) else "F32")
    return finish(writer)


def shapes(family: str, *, tied: bool = False, packed: bool = False) -> dict[str, tuple[int, ...]]:
    """The tensors of a tiny model by llama.cpp's names."""
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    if not tied:
        found["output.weight"] = (VOCAB, HIDDEN)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (HIDDEN,),
        "attn_q.weight": (queries, HIDDEN),
        "attn_k.weight": (keys, HIDDEN),
        "attn_v.weight": (keys, HIDDEN),
        "attn_output.weight": (HIDDEN, queries),
        "ffn_norm.weight": (HIDDEN,),
        "ffn_gate.weight": (INNER, HIDDEN),
        "ffn_up.weight": (INNER, HIDDEN),
        "ffn_down.weight": (HIDDEN, INNER),
    }
    if family in ("qwen2", "chatglm"):
        layer |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    if family in ("qwen3", "gemma3", "qwen3moe"):
        layer |= {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)}
    if family.startswith("gemma"):
        layer |= {"post_attention_norm.weight": (HIDDEN,), "post_ffw_norm.weight": (HIDDEN,)}
    if family in ("phi3", "chatglm"):
        del layer["ffn_gate.weight"]
        layer["ffn_up.weight"] = (2 * INNER, HIDDEN)
    if family == "phi3" or packed:
        _pack(layer, queries + 2 * keys)
    if family == "qwen3moe":
        for name in ("ffn_gate", "ffn_up", "ffn_down"):
            outputs, inputs = layer.pop(f"{name}.weight")
            layer[f"{name}_exps.weight"] = (EXPERTS, outputs, inputs)
        layer["ffn_gate_inp.weight"] = (EXPERTS, HIDDEN)
    for index in range(LAYERS):
        found |= {f"blk.{index}.{name}": shape for name, shape in layer.items()}
    return found


def _pack(layer: dict[str, tuple[int, ...]], rows: int) -> None:
    """Make one tensor of queries, keys and values."""
    for kind in ("weight", "bias"):
        parts = [layer.pop(f"attn_{part}.{kind}", None) for part in "qkv"]
        if parts[0]:
            layer[f"attn_qkv.{kind}"] = (rows, *parts[0][1:])


def _is_quantised(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) > 1 and "gate_inp" not in name


def add_tensor(writer: GGUFWriter, name: str, values: np.ndarray, kind: str = "F32") -> None:
    """`values` as the gguf package quantises them to `kind`."""
    if kind == "F32":
        writer.add_tensor(name, values)
        return
    raw = GGMLQuantizationType[kind]
    writer.add_tensor(name, quantize(values, raw), raw_dtype=raw)


def add_value(writer: GGUFWriter, key: str, value: Any) -> None:
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    add |= {str: writer.add_string, list: writer.add_array}
    add[type(value)](key, value)


def add_vocabulary(
    writer: GGUFWriter,
    tokens: Sequence[str],
    *,
    model: str = "gpt2",
    types: Sequence[int] | None = None,
    **values: Any,
) -> None:
    """`values` are further keys, without "tokenizer.ggml."; lists that are empty are left out."""
    writer.add_tokenizer_model(model)
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(types) if types is not None else [1] * len(tokens))
    for key, value in values.items():
        if value != []:
            add_value(writer, f"tokenizer.ggml.{key}", value)


def finish(writer: GGUFWriter) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(writer.path)


def write_tokenizer(path: Path, tokens: Sequence[str], **values: Any) -> Path:
    """A file with a tokenizer and no model."""
    writer = GGUFWriter(path, "llama")
    add_vocabulary(writer, tokens, **values)
    add_tensor(writer, "token_embd.weight", np.zeros((len(tokens), 32), np.float32))
    return finish(writer)
