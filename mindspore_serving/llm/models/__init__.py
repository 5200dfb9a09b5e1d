"""Lookup of a model's definition by the architecture in config.json: a decoder or an encoder.

`families` describes the architectures; this module knows no runtime.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from mindspore_serving.core.tasks import HEADS, split_architecture
from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions.architecture import Architecture
from mindspore_serving.llm.descriptions.families import FAMILIES
from mindspore_serving.llm.descriptions.families.encoders import ENCODERS as ENCODER_FAMILIES
from mindspore_serving.llm.models.decoder import decoder
from mindspore_serving.llm.models.ops import DecoderInputs, Ops, Tensor
from mindspore_serving.llm.models.spec import ModelSpec, from_config
from mindspore_serving.llm.models.unsupported import explain_unsupported

Decoder: TypeAlias = Callable[[Ops, ModelSpec, DecoderInputs], Tensor]

# Architectures that generate, by the first entry of config.json's `architectures`.
ARCHITECTURES = tuple(FAMILIES)
CLASSIFIER = "ForSequenceClassification"
GEMMA_ENCODER = "Gemma3TextModel"  # an encoder only if its attention is bidirectional
_WITH_HEADS = tuple(family for family in ENCODER_FAMILIES if family + "Model" != GEMMA_ENCODER)
# Architectures that embed or classify; `families.encoders` has their differences.
ENCODERS = (
    *(family + task for family in _WITH_HEADS for task in ("Model", "ForMaskedLM", CLASSIFIER)),
    GEMMA_ENCODER,
)


def load_definition(
    config: Mapping[str, Any], *, max_model_len: int | None = None
) -> tuple[ModelSpec, Decoder]:
    """Return the spec and the definition of the model that `config` (config.json) describes.

    `max_model_len` is the longest sequence to serve, in tokens.

    Raises StartError: an unknown architecture, a key that is missing or out of range.
    """
    names = config.get("architectures")
    if is_encoder(config):
        raise StartError(
            f"config.json has architectures {names!r}, an encoder, expected a model that generates"
        )
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str) or name not in ARCHITECTURES:
        heads = ", ".join(f"{head} ({task})" for head, task in HEADS.items())
        why = "expected a name"
        if isinstance(name, str):
            why = explain_unsupported(name, ARCHITECTURES)
        raise StartError(
            f"config.json has architectures {names!r}: {why}; `mindspore-serving docs "
            f"architectures` lists those that generate; models that end with {heads} are served "
            "without generating"
        )
    return from_config(config, max_model_len=max_model_len), decoder


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Return whether `config` (config.json) is of a model that embeds or classifies texts."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names or names[0] not in ENCODERS:
        return False
    return names[0] != GEMMA_ENCODER or is_bidirectional(config)


def is_bidirectional(config: Mapping[str, Any]) -> bool:
    """Return whether a Gemma 3 attends to later tokens too, and so cannot generate."""
    return bool(config.get("use_bidirectional_attention"))


def is_classifier_config(config: Mapping[str, Any]) -> bool:
    """Return whether `config` (config.json) describes a classifier of sequences."""
    names = config.get("architectures")
    return isinstance(names, list) and bool(names) and str(names[0]).endswith(CLASSIFIER)


def has_encoder(config: Mapping[str, Any]) -> bool:
    """Return whether `config` (config.json) describes an encoder with any supported head."""
    names = config.get("architectures")
    first = names[0] if isinstance(names, list) and names else None
    if not isinstance(first, str):
        return False
    return split_architecture(first)[0] in _WITH_HEADS or is_encoder(config)


def encoder_architecture(config: Mapping[str, Any]) -> Architecture:
    """Return the description of an encoder.  Raises StartError for any other model."""
    if not has_encoder(config):
        known = ", ".join(sorted(ENCODERS))
        raise StartError(
            f"config.json has architectures {config.get('architectures')!r}, expected one of "
            f"{known}"
        )
    return ENCODER_FAMILIES[split_architecture(config["architectures"][0])[0]]
