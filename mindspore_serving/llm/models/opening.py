"""A checkpoint opened with its definition, each held against the other: a tensor that is not read
and a setting that is not known make wrong results, which nobody would see.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.files import is_gguf
from mindspore_serving.llm.checkpoint.leftovers import LEFTOVERS, Leftover, find_reasons, told
from mindspore_serving.llm.checkpoint.model_files import find_config
from mindspore_serving.llm.checkpoint.packing import is_packed
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.descriptions.architecture import Config
from mindspore_serving.llm.descriptions.settings import (
    NEUTRAL,
    OPTIONAL,
    Noted,
    flattened,
    settings_of,
)
from mindspore_serving.llm.models import Decoder, classifies, load_definition
from mindspore_serving.llm.models.layouts import open_arranged
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.models.tracing import read_names

SHOWN = 5  # names in an error
CLASSIFIER = ("score.weight", "score.bias")  # read by `engine.last_token_pooler`
PREDICTING = ("num_nextn_predict_layers", "num_mtp_layers")


def open_definition(
    directory: str | Path, *, max_model_len: int | None = None
) -> tuple[Checkpoint, ModelSpec, Decoder]:
    """The checkpoint in `directory` with the tensors that its definition reads, its spec, and the
    definition.  What is left out is logged once.

    Raises StartError: a broken or unknown checkpoint, a tensor that is not read.
    """
    checkpoint = open_arranged(directory)
    config = Noted(checkpoint.config)
    spec, decoder = load_definition(config, max_model_len=max_model_len)
    tell_unknown(checkpoint.directory, config, spec.form.settings)
    names = spec.form.names
    head, table = f"{names.head}.weight", f"{names.embedding}.weight"
    beside: tuple[str, ...] = CLASSIFIER if classifies(find_config(Path(directory))) else ()
    if spec.tied_embeddings and checkpoint.has(head):
        if _is_same(checkpoint, head, table):
            beside = (*beside, head)
        else:  # it was trained by itself, whatever config.json says
            spec = replace(spec, tied_embeddings=False)
            checkpoint = Checkpoint.of(checkpoint, config=untied(checkpoint.config))
    read = read_names(spec, decoder, checkpoint.has)
    rows = (*LEFTOVERS, *_predicting(checkpoint.config, spec), *_switched_off(spec))
    return check_tensors(checkpoint, {*read, *beside}, rows), spec, decoder


def check_tensors(
    checkpoint: Checkpoint, read: Collection[str], rows: Iterable[Leftover]
) -> Checkpoint:
    """`checkpoint` without the tensors that are not in `read`.

    Raises StartError naming those of which no row says that they may be left out.
    """
    unread = [name for name in checkpoint.names() if not _is_read(checkpoint, name, read)]
    if not unread:
        return checkpoint
    left_out = find_reasons(checkpoint, unread, rows)
    wrong = [name for name in unread if name not in left_out]
    if wrong:
        shown = ", ".join(map(repr, wrong[:SHOWN])) + (", ..." if len(wrong) > SHOWN else "")
        architecture = (checkpoint.config.get("architectures") or ["?"])[0]
        raise StartError(
            f"{checkpoint.directory} has {len(wrong)} tensors that {architecture} with this "
            f"config.json does not have: {shown}. Without them results would be wrong: config.json "
            "is of another model, or it is one that is not computed"
        )
    words = told(left_out)
    if words:
        log.warning(
            "%s has tensors that are not for inference, which are left out: %s",
            checkpoint.directory.name, words,
        )  # fmt: skip
    kept = (name for name in checkpoint.names() if name not in left_out)
    return Checkpoint.of(checkpoint, tensors={name: checkpoint.stored(name) for name in kept})


def tell_unknown(directory: Path, config: Noted, known: Collection[str]) -> None:
    """Log the settings of `config` that nobody has read, unless they are known to change nothing,
    or say nothing.  Those of a GGUF file are made here.
    """
    unknown = unknown_settings(config, known)
    if unknown and not is_gguf(directory):
        log.warning(
            "config.json of %s has settings that are not known here and not followed: %s",
            directory.name, ", ".join(unknown),
        )  # fmt: skip


def unknown_settings(config: Noted, known: Collection[str]) -> list[str]:
    """Those of `tell_unknown`; `known` are what the description has."""

    def is_known(name: str, value: Any) -> bool:
        if value is None or name in known or name.rpartition(".")[2] in NEUTRAL:
            return True
        return not value if name in OPTIONAL else name in config.read

    given = settings_of(flattened(dict(config)))
    return [name for name, value in given if not is_known(name, value)]


def untied(config: Config) -> dict[str, Any]:
    """`config` of a model whose output matrix is its own."""
    own: dict[str, Any] = {"tie_word_embeddings": False}
    if "tie_embedding" in config:  # LFM2's name
        own["tie_embedding"] = False
    text = config.get("text_config")
    return {**config, **own, **({"text_config": {**text, **own}} if isinstance(text, dict) else {})}


def _is_read(checkpoint: Checkpoint, name: str, read: Collection[str]) -> bool:
    """Also what belongs to a matrix of our own integers."""
    stem, _, leaf = name.rpartition(".")
    is_beside = leaf in ("scale", "zero") and stem in read and checkpoint.has(stem)
    return name in read or (is_beside and is_packed(checkpoint.stored(stem).dtype))


def _is_same(checkpoint: Checkpoint, name: str, other: str) -> bool:
    """Whether two tensors are there and equal, bit by bit."""
    if not checkpoint.has(other):
        return False
    one, two = checkpoint.stored(name), checkpoint.stored(other)
    if isinstance(one, QuantizedTensor) or isinstance(two, QuantizedTensor):
        return one is two
    return (one.dtype, one.shape) == (two.dtype, two.shape) and np.array_equal(one.bits, two.bits)


def _switched_off(spec: ModelSpec) -> Iterator[Leftover]:
    """Of parts that this model has and does not use."""
    stem = re.escape(spec.form.names.layers)
    if spec.streams and not spec.streams.scales_result:
        yield Leftover(rf"{stem}\.\d+\.altup\.correct_output_scale", "switched off")
    shared = [str(i) for i, source in enumerate(spec.sources) if source != i]
    if shared:
        parts = r"self_attn\.[kv]_(proj|norm)\.weight"
        yield Leftover(rf"{stem}\.({'|'.join(shared)})\.{parts}", "in place of which are others'")


def _predicting(config: Config, spec: ModelSpec) -> list[Leftover]:
    """Of layers behind the last one, which config.json says predict more tokens."""
    settings = flattened(config)
    counts = (settings.get(key) for key in PREDICTING)
    count = next((count for count in counts if isinstance(count, int)), 0)
    stem = re.escape(spec.form.names.layers)
    layers = range(spec.num_layers, spec.num_layers + min(count, 64))
    return [Leftover(rf"{stem}\.{i}\..*", "of layers that predict more tokens") for i in layers]
