"""Checkpoint tensors in the layout that the decoder reads, where an architecture stores another.

GPT-2 stores its matrices as [in, out]; InternLM2, GPT-NeoX, BLOOM and Falcon store queries, keys
and values in one matrix, head by head, TeleChat2 keys and values; Llama 4 and gpt-oss store all
experts in one tensor; Baichuan 2 normalises the rows of its output matrix at every use; models with
images have their text model one level down, and encoders with a head are below a prefix.  The
conversion is done once, when a model is opened, so that no step pays for it.  A converted
checkpoint is not changed again.
"""

import re
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.leftovers import IMAGES, SOUNDS, Leftover
from mindspore_serving.llm.checkpoint.packing import is_packed
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor
from mindspore_serving.llm.checkpoint.weights import Checkpoint, to_bf16
from mindspore_serving.llm.descriptions.architecture import Architecture, Experts
from mindspore_serving.llm.descriptions.config_types import size
from mindspore_serving.llm.descriptions.families import FAMILIES
from mindspore_serving.llm.descriptions.families.chatglm import CHATGLM
from mindspore_serving.llm.descriptions.families.encoders import PREFIXES, rows_before_first
from mindspore_serving.llm.descriptions.settings import flattened
from mindspore_serving.llm.models import encoder_architecture, has_encoder
from mindspore_serving.llm.models.bodies import generator_of, generator_tensor_name, with_generator
from mindspore_serving.llm.models.config_translation import translate_config
from mindspore_serving.llm.models.spec import heads_of

Tensors: TypeAlias = dict[str, StoredTensor]
Shape: TypeAlias = tuple[int, ...]
BARE = "embed_tokens.weight"  # in the checkpoint of a backbone that was saved alone
TRANSPOSED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")  # GPT-2's, [in, out]
OLD_VOCAB = 64000  # vocabulary of the first Baichuan, which does not normalise


def open_converted(directory: str | Path) -> Checkpoint:
    """Open the checkpoint in `directory` and convert its layout.

    Raises StartError as `Checkpoint.open` does.
    """
    return convert_layout(Checkpoint.open(directory))


def convert_layout(checkpoint: Checkpoint) -> Checkpoint:
    """Return `checkpoint` with the tensors that its description names; itself if it has them.

    Raises StartError if a tensor to transpose is quantised.
    """
    if has_encoder(checkpoint.config):
        return _convert_encoder(checkpoint)
    checkpoint = _as_generator(checkpoint)
    architecture_name = str((checkpoint.config.get("architectures") or [""])[0])
    architecture = FAMILIES.get(architecture_name)
    if architecture is None:
        return checkpoint
    steps = [step for applies, step in _STEPS if applies(architecture, architecture_name)]
    if not steps:
        return checkpoint
    tensors = {name: checkpoint.stored(name) for name in checkpoint.names()}
    is_turned = architecture.names.matrix != "weight"
    turned = (name for name in tensors if is_turned and name.endswith(TRANSPOSED))
    quantised = next((name for name in turned if checkpoint.is_quantized(name)), None)
    if quantised is not None:
        raise StartError(
            f"tensor {quantised!r} is {tensors[quantised].dtype}, but matrices of "
            f"{architecture_name} have to be transposed, which works for floats only; use the "
            "float checkpoint"
        )
    for step in steps:
        tensors = step(checkpoint, tensors)
    return Checkpoint(checkpoint.directory, checkpoint.config, tensors)


def _as_generator(checkpoint: Checkpoint) -> Checkpoint:
    """Return a backbone under the names and with the configuration of the generating model."""
    names, config = checkpoint.names(), checkpoint.config
    if not generator_of(config) and BARE not in names:
        return checkpoint
    tensors = {generator_tensor_name(name): checkpoint.stored(name) for name in names}
    config = with_generator(config, has_head="lm_head.weight" in tensors)
    return Checkpoint(checkpoint.directory, config, tensors)


def _convert_encoder(checkpoint: Checkpoint) -> Checkpoint:
    """Rename the tensors of an encoder, and cut its table of positions.

    Drops the prefix of an encoder that has a head, replaces TensorFlow's names of norm tensors, and
    drops the rows before the first position of RoBERTa's table.
    """
    config, architecture, tensors = checkpoint.config, encoder_architecture(checkpoint.config), {}
    for name in checkpoint.names():
        short = next((name[len(prefix) :] for prefix in PREFIXES if name.startswith(prefix)), name)
        short = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", short))
        tensors[short] = checkpoint.stored(name)
    if architecture.skips_positions:
        longest = size(config, "max_position_embeddings")
        _cut_positions(tensors, architecture, longest, rows_before_first(config))
    return Checkpoint(checkpoint.directory, config, tensors)


def _cut_positions(tensors: Tensors, architecture: Architecture, rows: int, first: int) -> None:
    """Drop the rows before `first` from a table of positions that has `rows` rows."""
    name = f"{architecture.names.positions}.weight"
    stored = tensors.get(name)
    if stored is not None and stored.shape[0] == rows:
        bits = stored.bits.reshape(stored.shape)[first:]
        tensors[name] = StoredTensor(stored.dtype, bits.shape, bits)


def _architecture(checkpoint: Checkpoint) -> Architecture:
    return FAMILIES[checkpoint.config["architectures"][0]]


def _add_prefix(checkpoint: Checkpoint, tensors: Tensors) -> Tensors:
    """Add the prefix that some files leave out."""
    names = _architecture(checkpoint).names
    return {
        name if name.startswith((names.prefix, f"{names.head}.")) else names.prefix + name: stored
        for name, stored in tensors.items()
    }


def _transpose_gpt2(checkpoint: Checkpoint, tensors: Tensors) -> Tensors:
    """Transpose GPT-2's [in, out] matrices, under the names `<name>.linear.weight`."""
    result = {}
    for name, stored in tensors.items():
        if name.endswith(TRANSPOSED):
            stem = name.removesuffix(".weight")
            if is_packed(stored.dtype):  # packed along rows of the transposed matrix
                source = Checkpoint(checkpoint.directory, checkpoint.config, tensors)
                stored = _stored(source.f32(name), "BF16")
            bits = stored.bits.reshape(stored.shape).T
            result[f"{stem}.linear.weight"] = StoredTensor(stored.dtype, bits.shape, bits)
        else:
            result[name] = stored
    return result


def _drop_opt_positions(checkpoint: Checkpoint, tensors: Tensors) -> Tensors:
    """Drop the two rows that OPT's table has before the first position."""
    longest = size(checkpoint.config, "max_position_embeddings")
    _cut_positions(tensors, _architecture(checkpoint), longest + 2, 2)
    return tensors


def _cut_heads(checkpoint: Checkpoint, tensors: Tensors) -> Tensors:
    """Split fused QKV matrices into three, or matrices of keys and values into two.

    The fused matrix has, for each key-value head, the rows of its queries, its key and its value.
    The parts are copied when they are read: that is cheaper than to split the product in every
    step.
    """
    num_heads, kv_heads, head_dim = heads_of(checkpoint.config)
    names = _architecture(checkpoint).names
    num_queries = num_heads // kv_heads if names.fuses_queries else 0
    kinds: list[int | slice] = [slice(num_queries)] if names.fuses_queries else []
    kinds += [num_queries, num_queries + 1]
    shape = (kv_heads, num_queries + 2, head_dim)
    result = {}
    for name, stored in tensors.items():
        before, fused, after = name.partition(f".{names.fused}.")
        if not fused:
            result[name] = stored
            continue
        if not stored.shape or stored.shape[0] != prod(shape):
            raise StartError(
                f"tensor {name!r} has shape {stored.shape}, expected {prod(shape)} rows"
            )
        for part, kind in zip(names.qkv[-len(kinds) :], kinds, strict=True):
            result[f"{before}.{part}.{after}"] = _rows_of_heads(stored, shape, kind)
    return result


def _rows_of_heads(stored: StoredTensor, shape: Shape, kind: int | slice) -> StoredTensor:
    """Return the rows of one kind of a tensor whose rows are [heads, kinds, features]."""
    if isinstance(stored, QuantizedTensor):
        return stored.rows(np.arange(prod(shape)).reshape(shape)[:, kind].reshape(-1))
    rest = stored.shape[1:]
    bits = stored.bits.reshape(*shape, *rest)[:, kind]
    return StoredTensor(stored.dtype, (bits.size // prod(rest), *rest), bits)


def _cut_experts(checkpoint: Checkpoint, tensors: Tensors) -> Tensors:
    """Split tensors that hold the matrices of all experts into one per expert, views of the file.

    Gate and up are side by side, or interleaved where they are clamped (gpt-oss).
    """
    experts = _architecture(checkpoint).experts
    if experts is None or experts.joined is None:
        return tensors
    result: Tensors = {}
    for name, stored in tensors.items():
        before, is_expert, leaf = name.partition(f".{experts.prefix}.")
        if is_expert and isinstance(stored, QuantizedTensor):  # of one expert
            result |= _cut_quantised_expert(experts, name, stored)
            continue
        stem = leaf.removesuffix(".weight").removesuffix("_bias")
        if not is_expert or stem not in experts.joined:
            result[name] = stored
            continue
        kind = "bias" if leaf.endswith("_bias") else "weight"
        stacked = stored.bits.reshape(stored.shape)
        are_rows = experts.joined_rows
        if are_rows is None:
            axis = 2 if stem == experts.joined[0] else 1
            are_rows = stored.shape[axis] == size(flattened(checkpoint.config), "hidden_size")
        if are_rows:
            stacked = stacked.swapaxes(1, 2)
        for part, columns in _expert_matrices(experts, stem, stacked).items():
            for index, bits in enumerate(columns):
                expert = StoredTensor(stored.dtype, bits.T.shape, bits.T)
                result[f"{before}.{experts.prefix}.{index}.{part}.{kind}"] = expert
    return result


def _cut_quantised_expert(experts: Experts, name: str, stored: QuantizedTensor) -> Tensors:
    """Split a quantised matrix [out, in] of one expert into gate and up; keep any other matrix."""
    module, _, _ = name.rpartition(".weight")
    before, _, stem = module.rpartition(".")
    if experts.joined is None or stem != experts.joined[0]:
        return {name: stored}
    half = stored.shape[0] // 2
    halves = (slice(0, half), slice(half, None))
    gate, up = (slice(0, None, 2), slice(1, None, 2)) if experts.clamped else halves
    rows = {experts.gate: gate, experts.up: up}
    return {f"{before}.{part}.weight": stored.rows(some) for part, some in rows.items()}


def _expert_matrices(
    experts: Experts, stem: str, stacked: npt.NDArray[Any]
) -> dict[str, npt.NDArray[Any]]:
    """Return the matrices in `stacked`, [experts, in, out] or biases [experts, out], by name."""
    if experts.joined is None or stem == experts.joined[1]:
        return {experts.down: stacked}
    if experts.clamped:
        return {experts.gate: stacked[..., ::2], experts.up: stacked[..., 1::2]}
    half = stacked.shape[-1] // 2
    return {experts.gate: stacked[..., :half], experts.up: stacked[..., half:]}


def _normalise_baichuan_head(checkpoint: Checkpoint, tensors: Tensors) -> Tensors:
    """Normalise the rows of the output matrix to length 1, except in the first generation."""
    head, result = "lm_head.weight", dict(tensors)
    if checkpoint.config.get("vocab_size") != OLD_VOCAB:
        rows = checkpoint.f32(head)
        lengths = np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
        is_single = result[head].dtype in ("F32", "F64")
        result[head] = _stored(rows / lengths, "F32" if is_single else "BF16")
    return result


_TEXT_PARTS = (
    ("language_model.", ""), ("model.language_model.", "model."), ("model.text_model.", "model."),
    ("thinker.", ""),
)  # fmt: skip


def tower_patterns(architecture: Architecture) -> tuple[Leftover, ...]:
    """Return the patterns of the tensors that compute vectors of images and sounds."""
    images = (IMAGES,) if architecture.takes_images else ()
    return (*images, SOUNDS) if architecture.takes_sounds else images


def _text_model(checkpoint: Checkpoint, tensors: Tensors) -> Tensors:
    """Return the tensors under the names of a text model, without those that `llm.images` reads."""
    _, architecture = translate_config(checkpoint.config)
    result, towers = {}, tower_patterns(architecture)
    for name, stored in tensors.items():
        parts = (pair for pair in _TEXT_PARTS if name.startswith(pair[0]))
        before, after = next(parts, ("", ""))
        if not any(row.has(name, stored.shape) for row in towers):
            result[after + name[len(before) :]] = stored
    return result


def _stored(array: npt.NDArray[np.float32], dtype: str) -> StoredTensor:
    """Return `array` as F32 or BF16."""
    if dtype == "BF16":
        return StoredTensor("BF16", array.shape, to_bf16(array))
    return StoredTensor("F32", array.shape, array)


_Condition: TypeAlias = Callable[[Architecture, str], bool]
_Step: TypeAlias = Callable[[Checkpoint, Tensors], Tensors]
_STEPS: tuple[tuple[_Condition, _Step], ...] = (
    (
        lambda form, name: name.endswith("ForConditionalGeneration") and form is not CHATGLM,
        _text_model,
    ),
    (lambda form, name: bool(form.names.prefix), _add_prefix),
    (lambda form, name: form.names.matrix != "weight", _transpose_gpt2),
    (lambda form, name: name == "OPTForCausalLM", _drop_opt_positions),
    (lambda form, name: bool(form.names.fused), _cut_heads),
    (lambda form, name: bool(form.experts and form.experts.joined), _cut_experts),
    (lambda form, name: name == "BaichuanForCausalLM", _normalise_baichuan_head),
)
