"""Opening of a checkpoint together with its definition, each checked against the other.

A tensor that is not read, or a setting that is not followed, would give wrong results silently.
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
from mindspore_serving.llm.checkpoint.leftovers import LEFTOVERS, Leftover, find_reasons, summarize
from mindspore_serving.llm.checkpoint.model_files import find_config
from mindspore_serving.llm.checkpoint.packing import is_packed
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.descriptions.architecture import Config
from mindspore_serving.llm.descriptions.settings import (
    NEUTRAL,
    OPTIONAL,
    TrackedSettings,
    flattened,
    settings_of,
)
from mindspore_serving.llm.models import Decoder, is_classifier_config, load_definition
from mindspore_serving.llm.models.layouts import open_converted
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.models.tracing import read_names

SHOWN = 5  # names in an error
CLASSIFIER = ("score.weight", "score.bias")  # read by `engine.last_token_pooler`
PREDICTING = ("num_nextn_predict_layers", "num_mtp_layers")  # multi-token prediction


def open_definition(
    directory: str | Path, *, max_model_len: int | None = None
) -> tuple[Checkpoint, ModelSpec, Decoder]:
    """Open the checkpoint in `directory`; return it with its spec and its definition.

    The checkpoint has only the tensors that the definition reads; those left out are logged once.

    Raises StartError: a broken or unknown checkpoint, a tensor that the definition does not read.
    """
    checkpoint = open_converted(directory)
    config = TrackedSettings(checkpoint.config)
    spec, decoder = load_definition(config, max_model_len=max_model_len)
    warn_unknown_settings(checkpoint.directory, config, spec.architecture.settings)
    names = spec.architecture.names
    head, table = f"{names.head}.weight", f"{names.embedding}.weight"
    also_read: tuple[str, ...] = (
        CLASSIFIER if is_classifier_config(find_config(Path(directory))) else ()
    )
    if spec.tied_embeddings and checkpoint.has(head):
        if _is_same(checkpoint, head, table):
            also_read = (*also_read, head)
        else:  # the output matrix was trained separately, whatever config.json says
            spec = replace(spec, tied_embeddings=False)
            checkpoint = Checkpoint.of(checkpoint, config=untied(checkpoint.config))
    read = read_names(spec, decoder, checkpoint.has)
    rows = (*LEFTOVERS, *_predicting(checkpoint.config, spec), *_switched_off(spec))
    return check_tensors(checkpoint, {*read, *also_read}, rows), spec, decoder


def check_tensors(
    checkpoint: Checkpoint, read: Collection[str], rows: Iterable[Leftover]
) -> Checkpoint:
    """Return `checkpoint` without the tensors that are not in `read`.

    Raises StartError naming unread tensors for which no row says why they may be left out.
    """
    unread = [name for name in checkpoint.names() if not _is_read(checkpoint, name, read)]
    if not unread:
        return checkpoint
    left_out = find_reasons(checkpoint, unread, rows)
    unexplained = [name for name in unread if name not in left_out]
    if unexplained:
        shown = ", ".join(map(repr, unexplained[:SHOWN])) + (
            ", ..." if len(unexplained) > SHOWN else ""
        )
        architecture = (checkpoint.config.get("architectures") or ["?"])[0]
        raise StartError(
            f"{checkpoint.directory} has {len(unexplained)} tensors that {architecture} with this "
            f"config.json does not have: {shown}. Without them results would be wrong: config.json "
            "belongs to another model, or the model is not supported"
        )
    message = summarize(left_out)
    if message:
        log.warning(
            "%s has tensors that are not for inference, which are left out: %s",
            checkpoint.directory.name, message,
        )  # fmt: skip
    kept = (name for name in checkpoint.names() if name not in left_out)
    return Checkpoint.of(checkpoint, tensors={name: checkpoint.stored(name) for name in kept})


def warn_unknown_settings(directory: Path, config: TrackedSettings, known: Collection[str]) -> None:
    """Log the settings of `config` that were not read and may matter.

    Settings known to change nothing, and settings at a neutral value, are not logged; neither are
    those of a GGUF file, whose configuration this server makes.
    """
    unknown = unknown_settings(config, known)
    if unknown and not is_gguf(directory):
        log.warning(
            "config.json of %s has settings that are unknown and therefore ignored: %s",
            directory.name, ", ".join(unknown),
        )  # fmt: skip


def unknown_settings(config: TrackedSettings, known: Collection[str]) -> list[str]:
    """Return the names that `warn_unknown_settings` logs; `known` are those of the description."""

    def is_known(name: str, value: Any) -> bool:
        if value is None or name in known or name.rpartition(".")[2] in NEUTRAL:
            return True
        return not value if name in OPTIONAL else name in config.read

    settings = settings_of(flattened(dict(config)))
    return [name for name, value in settings if not is_known(name, value)]


def untied(config: Config) -> dict[str, Any]:
    """Return `config` for a model whose output matrix is not its embedding."""
    changed: dict[str, Any] = {"tie_word_embeddings": False}
    if "tie_embedding" in config:  # LFM2's name
        changed["tie_embedding"] = False
    text = config.get("text_config")
    return {
        **config,
        **changed,
        **({"text_config": {**text, **changed}} if isinstance(text, dict) else {}),
    }


def _is_read(checkpoint: Checkpoint, name: str, read: Collection[str]) -> bool:
    """Return whether a tensor is read, by itself or as scale or zero point of a packed matrix."""
    stem, _, leaf = name.rpartition(".")
    is_auxiliary = leaf in ("scale", "zero") and stem in read and checkpoint.has(stem)
    return name in read or (is_auxiliary and is_packed(checkpoint.stored(stem).dtype))


def _is_same(checkpoint: Checkpoint, name: str, other: str) -> bool:
    """Return whether both tensors exist and are equal bit by bit."""
    if not checkpoint.has(other):
        return False
    first, second = checkpoint.stored(name), checkpoint.stored(other)
    if isinstance(first, QuantizedTensor) or isinstance(second, QuantizedTensor):
        return first is second
    return (first.dtype, first.shape) == (second.dtype, second.shape) and np.array_equal(
        first.bits, second.bits
    )


def _switched_off(spec: ModelSpec) -> Iterator[Leftover]:
    """Iterate over the tensors of parts that this model's config.json switches off."""
    stem = re.escape(spec.architecture.names.layers)
    if spec.streams and not spec.streams.scales_result:
        yield Leftover(rf"{stem}\.\d+\.altup\.correct_output_scale", "switched off")
    shared = [str(i) for i, source in enumerate(spec.sources) if source != i]
    if shared:
        parts = r"self_attn\.[kv]_(proj|norm)\.weight"
        yield Leftover(rf"{stem}\.({'|'.join(shared)})\.{parts}", "replaced by another layer's")


def _predicting(config: Config, spec: ModelSpec) -> list[Leftover]:
    """Return the tensors of layers after the last, which config.json says predict more tokens."""
    settings = flattened(config)
    counts = (settings.get(key) for key in PREDICTING)
    count = next((count for count in counts if isinstance(count, int)), 0)
    stem = re.escape(spec.architecture.names.layers)
    layers = range(spec.num_layers, spec.num_layers + min(count, 64))
    return [Leftover(rf"{stem}\.{i}\..*", "of layers that predict more tokens") for i in layers]
