"""A checkpoint's tensors as the decoder wants them, where an architecture stores them otherwise.

GPT-2 stores its matrices as [in, out]; InternLM2, GPT-NeoX, BLOOM and Falcon store queries, keys
and values in one matrix, head by head; Llama 4 and gpt-oss all experts in one; Baichuan 2
normalises the rows of its output matrix at every use; models with images have their text model
one level down, and encoders with a head are below a prefix.  Done once, when a model is opened, so
that no step pays for it.  A checkpoint that is arranged already stays as it is.
"""

import re
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.leftovers import IMAGES
from mindspore_serving.llm.checkpoint.packing import is_packed
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor
from mindspore_serving.llm.checkpoint.weights import Checkpoint, to_bf16
from mindspore_serving.llm.descriptions.architecture import Architecture, Experts
from mindspore_serving.llm.descriptions.config_types import size
from mindspore_serving.llm.descriptions.families import FAMILIES
from mindspore_serving.llm.descriptions.families.chatglm import CHATGLM
from mindspore_serving.llm.descriptions.families.encoders import PREFIXES, rows_before_first
from mindspore_serving.llm.models import encoder_form, has_encoder
from mindspore_serving.llm.models.bodies import generator_of, whole_name, with_generator
from mindspore_serving.llm.models.described import described
from mindspore_serving.llm.models.spec import heads_of

Tensors: TypeAlias = dict[str, StoredTensor]
BARE = "embed_tokens.weight"  # of a body that was saved alone
TURNED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")  # GPT-2's, [in, out]
OLD_VOCAB = 64000  # of the first Baichuan, which does not normalise


def open_arranged(directory: str | Path) -> Checkpoint:
    """The checkpoint in `directory`, `arranged`.  Raises StartError as `Checkpoint.open` does."""
    return arranged(Checkpoint.open(directory))


def arranged(checkpoint: Checkpoint) -> Checkpoint:
    """`checkpoint` with the tensors that its description names; itself if it has them."""
    if has_encoder(checkpoint.config):
        return _encoder(checkpoint)
    checkpoint = _completed(checkpoint)
    architecture = str((checkpoint.config.get("architectures") or [""])[0])
    form = FAMILIES.get(architecture)
    if form is None:
        return checkpoint
    steps = [step for wanted, step in _STEPS if wanted(form, architecture)]
    if not steps:
        return checkpoint
    tensors = {name: checkpoint.stored(name) for name in checkpoint.names()}
    moved = (name for name in tensors if _is_rearranged(form, name))
    quantised = next((name for name in moved if checkpoint.is_quantized(name)), None)
    if quantised is not None:
        raise StartError(
            f"tensor {quantised!r} is {tensors[quantised].dtype}, but {architecture} has its "
            "matrices rearranged, which is done with floats alone; take the float checkpoint"
        )
    for step in steps:
        tensors = step(checkpoint, tensors)
    return Checkpoint(checkpoint.directory, checkpoint.config, tensors)


def _is_rearranged(form: Architecture, name: str) -> bool:
    """Whether the rows of a tensor of that name are not rows of ours."""
    is_cut = bool(form.names.fused) and f".{form.names.fused}." in name
    return is_cut or (form.names.matrix != "weight" and name.endswith(TURNED))


def _completed(checkpoint: Checkpoint) -> Checkpoint:
    """A body of a model that generates, under the names and with the configuration of one."""
    names, config = checkpoint.names(), checkpoint.config
    if not generator_of(config) and BARE not in names:
        return checkpoint
    tensors = {whole_name(name): checkpoint.stored(name) for name in names}
    config = with_generator(config, has_head="lm_head.weight" in tensors)
    return Checkpoint(checkpoint.directory, config, tensors)


def _encoder(checkpoint: Checkpoint) -> Checkpoint:
    """Without the prefix of an encoder that has a head, the names that TensorFlow has for the
    tensors of norms, and what RoBERTa's table of positions has before the first one.
    """
    config, form, tensors = checkpoint.config, encoder_form(checkpoint.config), {}
    for name in checkpoint.names():
        own = next((name[len(one) :] for one in PREFIXES if name.startswith(one)), name)
        own = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", own))
        tensors[own] = checkpoint.stored(name)
    if form.skips_positions:
        longest = size(config, "max_position_embeddings")
        _cut_positions(tensors, form, longest, rows_before_first(config))
    return Checkpoint(checkpoint.directory, config, tensors)


def _cut_positions(tensors: Tensors, form: Architecture, rows: int, first: int) -> None:
    """Take the rows before `first` off a table of positions with so many `rows`."""
    name = f"{form.names.positions}.weight"
    stored = tensors.get(name)
    if stored is not None and stored.shape[0] == rows:
        bits = stored.bits.reshape(stored.shape)[first:]
        tensors[name] = StoredTensor(stored.dtype, bits.shape, bits)


def _form(checkpoint: Checkpoint) -> Architecture:
    return FAMILIES[checkpoint.config["architectures"][0]]


def _prefixed(checkpoint: Checkpoint, tensors: Tensors) -> Tensors:
    """With the prefix that some files leave out."""
    names = _form(checkpoint).names
    return {
        name if name.startswith((names.prefix, f"{names.head}.")) else names.prefix + name: stored
        for name, stored in tensors.items()
    }


def _turned(checkpoint: Checkpoint, tensors: Tensors) -> Tensors:
    """GPT-2's [in, out] matrices become `<name>.linear.weight`."""
    result = {}
    for name, stored in tensors.items():
        if name.endswith(TURNED):
            stem = name.removesuffix(".weight")
            if is_packed(stored.dtype):  # in rows that are no rows of ours
                own = Checkpoint(checkpoint.directory, checkpoint.config, tensors)
                stored = _stored(own.f32(name), "BF16")
            bits = stored.bits.reshape(stored.shape).T
            result[f"{stem}.linear.weight"] = StoredTensor(stored.dtype, bits.shape, bits)
        else:
            result[name] = stored
    return result


def _learned_positions(checkpoint: Checkpoint, tensors: Tensors) -> Tensors:
    """OPT's table has two rows before that of the first position."""
    longest = size(checkpoint.config, "max_position_embeddings")
    _cut_positions(tensors, _form(checkpoint), longest + 2, 2)
    return tensors


def _cut_heads(checkpoint: Checkpoint, tensors: Tensors) -> Tensors:
    """One matrix has, for each key-value head, the rows of its queries, its key and its value.  It
    becomes three, copied when they are read: that is cheaper than to split the product in every
    step.
    """
    num_heads, kv_heads, head_dim = heads_of(checkpoint.config)
    names, queries = _form(checkpoint).names, num_heads // kv_heads
    result = {}
    for name, stored in tensors.items():
        before, fused, after = name.partition(f".{names.fused}.")
        if not fused:
            result[name] = stored
            continue
        expected = kv_heads * (queries + 2) * head_dim
        if not stored.shape or stored.shape[0] != expected:
            raise StartError(f"tensor {name!r} has shape {stored.shape}, expected {expected} rows")
        rest = stored.shape[1:]
        rows = stored.bits.reshape(kv_heads, queries + 2, head_dim, *rest)
        parts = (rows[:, :queries], rows[:, queries], rows[:, queries + 1])
        for part, bits in zip(names.qkv, parts, strict=True):
            count = bits.size // prod(rest)
            result[f"{before}.{part}.{after}"] = StoredTensor(stored.dtype, (count, *rest), bits)
    return result


def _cut_experts(checkpoint: Checkpoint, tensors: Tensors) -> Tensors:
    """One tensor has the matrices of all experts, gate beside up: side by side, or in turns where
    there are limits (gpt-oss).  They become one each, views of the file.
    """
    experts = _form(checkpoint).experts
    if experts is None or experts.joined is None:
        return tensors
    result: Tensors = {}
    for name, stored in tensors.items():
        before, is_expert, leaf = name.partition(f".{experts.prefix}.")
        if is_expert and isinstance(stored, QuantizedTensor):  # of one expert
            result |= _quantised_parts(experts, name, stored)
            continue
        stem = leaf.removesuffix(".weight").removesuffix("_bias")
        if not is_expert or stem not in experts.joined:
            result[name] = stored
            continue
        kind = "bias" if leaf.endswith("_bias") else "weight"
        whole = stored.bits.reshape(stored.shape)
        if experts.joined_rows:
            whole = whole.swapaxes(1, 2)
        for part, columns in _parts(experts, stem, whole).items():
            for index, bits in enumerate(columns):
                own = StoredTensor(stored.dtype, bits.T.shape, bits.T)
                result[f"{before}.{experts.prefix}.{index}.{part}.{kind}"] = own
    return result


def _quantised_parts(experts: Experts, name: str, stored: QuantizedTensor) -> Tensors:
    """As `_cut_experts`, of a matrix [out, in] of one expert; itself if it is another's."""
    module, _, _ = name.rpartition(".weight")
    before, _, stem = module.rpartition(".")
    if experts.joined is None or stem != experts.joined[0]:
        return {name: stored}
    half = stored.shape[0] // 2
    halves = (slice(0, half), slice(half, None))
    gate, up = (slice(0, None, 2), slice(1, None, 2)) if experts.clamped else halves
    rows = {experts.gate: gate, experts.up: up}
    return {f"{before}.{part}.weight": stored.rows(some) for part, some in rows.items()}


def _parts(experts: Experts, stem: str, whole: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """`whole` is [experts, in, out], or [experts, out]."""
    if experts.joined is None or stem == experts.joined[1]:
        return {experts.down: whole}
    if experts.clamped:
        return {experts.gate: whole[..., ::2], experts.up: whole[..., 1::2]}
    half = whole.shape[-1] // 2
    return {experts.gate: whole[..., :half], experts.up: whole[..., half:]}


def _baichuan(checkpoint: Checkpoint, tensors: Tensors) -> Tensors:
    """The output's rows have length 1, but in the first generation."""
    head, result = "lm_head.weight", dict(tensors)
    if checkpoint.config.get("vocab_size") != OLD_VOCAB:
        rows = checkpoint.f32(head)
        lengths = np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
        is_single = result[head].dtype in ("F32", "F64")
        result[head] = _stored(rows / lengths, "F32" if is_single else "BF16")
    return result


_TEXT_PARTS = (
    ("language_model.", ""), ("model.language_model.", "model."), ("model.text_model.", "model."),
)  # fmt: skip


def _text_part(checkpoint: Checkpoint, tensors: Tensors) -> Tensors:
    """The text model under the names that it has alone; without what `llm.images` reads."""
    _, form = described(checkpoint.config)
    result = {}
    for name, stored in tensors.items():
        parts = (pair for pair in _TEXT_PARTS if name.startswith(pair[0]))
        before, after = next(parts, ("", ""))
        if not (form.takes_images and IMAGES.has(name, stored.shape)):
            result[after + name[len(before) :]] = stored
    return result


def _stored(array: npt.NDArray[np.float32], dtype: str) -> StoredTensor:
    """`array` as F32 or BF16."""
    if dtype == "BF16":
        return StoredTensor("BF16", array.shape, to_bf16(array))
    return StoredTensor("F32", array.shape, array)


_Wanted: TypeAlias = Callable[[Architecture, str], bool]
_Step: TypeAlias = Callable[[Checkpoint, Tensors], Tensors]
_STEPS: tuple[tuple[_Wanted, _Step], ...] = (
    (
        lambda form, name: name.endswith("ForConditionalGeneration") and form is not CHATGLM,
        _text_part,
    ),
    (lambda form, name: bool(form.names.prefix), _prefixed),
    (lambda form, name: form.names.matrix != "weight", _turned),
    (lambda form, name: name == "OPTForCausalLM", _learned_positions),
    (lambda form, name: bool(form.names.fused), _cut_heads),
    (lambda form, name: bool(form.experts and form.experts.joined), _cut_experts),
    (lambda form, name: name == "BaichuanForCausalLM", _baichuan),
)
