"""A checkpoint's tensors as the definitions want them, where an architecture stores them otherwise.

GPT-2 stores its matrices as [in, out]; InternLM2 stores queries, keys and values in one matrix,
head by head; Baichuan 2 normalises the rows of its output matrix at every use; Gemma 3 with
pictures has its text model one level down.  Done once, when a model is opened, so that no step
pays for it.  A checkpoint that is arranged already stays as it is.
"""

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.packing import is_packed
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor
from mindspore_serving.llm.checkpoint.weights import Checkpoint, to_bf16
from mindspore_serving.llm.models.spec import size

Tensors: TypeAlias = dict[str, StoredTensor]
OLD_VOCAB = 64000  # of the first Baichuan, which does not normalise


def open_arranged(directory: str | Path) -> Checkpoint:
    """The checkpoint in `directory`, `arranged`.  Raises StartError as `Checkpoint.open` does."""
    return arranged(Checkpoint.open(directory))


def arranged(checkpoint: Checkpoint) -> Checkpoint:
    """`checkpoint` with the tensors that its definition uses; itself if it has them."""
    architectures = checkpoint.config.get("architectures") or [None]
    arrange = ARRANGEMENTS.get(architectures[0])
    if arrange is None:
        return checkpoint
    tensors = {name: StoredTensor(*checkpoint.raw(name)) for name in checkpoint.names()}
    return Checkpoint(checkpoint.directory, checkpoint.config, arrange(checkpoint, tensors))


def normalises_head(architecture: str) -> bool:
    """Whether the rows of the head may not be those of the file."""
    return ARRANGEMENTS.get(architecture) is _baichuan


def _gpt2(checkpoint: Checkpoint, tensors: Tensors) -> Tensors:
    """`transformer.` before every name; [in, out] matrices become `<name>.linear.weight`."""
    result = {}
    for key, stored in tensors.items():
        name = key if key.startswith(("transformer.", "lm_head.")) else f"transformer.{key}"
        stem, dot, leaf = name.rpartition(".")
        if leaf == "weight" and stem.endswith((".c_attn", ".c_proj", ".c_fc")):
            if is_packed(stored.dtype):  # in rows that are no rows of ours
                stored = _stored(checkpoint.f32(key), "BF16")
            bits = stored.bits.reshape(stored.shape).T
            result[f"{stem}.linear.weight"] = StoredTensor(stored.dtype, bits.shape, bits)
        else:
            result[name] = stored
    return result


def _internlm2(checkpoint: Checkpoint, tensors: Tensors) -> Tensors:
    """`attention.wqkv` has, for each key-value head, the rows of its queries, its key and its
    value.  It becomes `attention.wq`, `.wk` and `.wv`, copied when they are read: that is cheaper
    than to split the product in every step."""
    config = checkpoint.config
    heads, hidden = size(config, "num_attention_heads"), size(config, "hidden_size")
    kv_heads = size(config, "num_key_value_heads", default=heads)
    queries, head_dim = heads // kv_heads, hidden // heads
    result = {}
    for name, stored in tensors.items():
        before, fused, after = name.partition(".wqkv.")
        if not fused:
            result[name] = stored
            continue
        expected = kv_heads * (queries + 2) * head_dim
        if not stored.shape or stored.shape[0] != expected:
            raise StartError(f"tensor {name!r} has shape {stored.shape}, expected {expected} rows")
        rest = stored.shape[1:]
        rows = stored.bits.reshape(kv_heads, queries + 2, head_dim, *rest)
        parts = {"wq": rows[:, :queries], "wk": rows[:, queries], "wv": rows[:, queries + 1]}
        for part, bits in parts.items():
            count = bits.size // prod(rest)
            result[f"{before}.{part}.{after}"] = StoredTensor(stored.dtype, (count, *rest), bits)
    return result


def _baichuan(checkpoint: Checkpoint, tensors: Tensors) -> Tensors:
    """The output's rows have length 1; without rotary positions ALiBi's slopes are a tensor."""
    config, result = checkpoint.config, dict(tensors)
    head = "lm_head.weight"
    if config.get("vocab_size") != OLD_VOCAB:
        rows = checkpoint.f32(head)
        lengths = np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
        is_single = result[head].dtype in ("F32", "F64")
        result[head] = _stored(rows / lengths, "F32" if is_single else "BF16")
    if "max_position_embeddings" not in config:
        slopes = np.array(alibi_slopes(int(config["num_attention_heads"])), np.float32)
        result[ALIBI] = _stored(slopes, "F32")
    return result


ALIBI = "model.alibi_slopes"


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """2**(-8/n), its square, and so on, for n heads; if n is no power of two, those of the power
    below it and then every second one of the power above it."""
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
    slopes += [2.0 ** (-4 * i / power) for i in range(1, 2 * (num_heads - power), 2)]
    return tuple(slopes)


def _gemma3_with_pictures(checkpoint: Checkpoint, tensors: Tensors) -> Tensors:
    """The text model alone, under the names that it has alone."""
    result = {}
    for name, stored in tensors.items():
        for before, after in (("language_model.", ""), ("model.language_model.", "model.")):
            if name.startswith(before):
                result[after + name[len(before) :]] = stored
        if name.startswith(("model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.")):
            result[name] = stored
    return result


def _stored(array: npt.NDArray[np.float32], dtype: str) -> StoredTensor:
    """`array` as F32 or BF16."""
    if dtype == "BF16":
        return StoredTensor("BF16", array.shape, to_bf16(array))
    return StoredTensor("F32", array.shape, array)


ARRANGEMENTS: dict[str | None, Callable[[Checkpoint, Tensors], Tensors]] = {
    "GPT2LMHeadModel": _gpt2,
    "InternLM2ForCausalLM": _internlm2,
    "BaichuanForCausalLM": _baichuan,
    "Gemma3ForConditionalGeneration": _gemma3_with_pictures,
}
