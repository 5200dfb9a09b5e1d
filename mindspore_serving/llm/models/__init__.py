"""Which definition an architecture has: one of the decoders in `families`, or an encoder."""

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
from mindspore_serving.llm.models.unsupported import explained

Decoder: TypeAlias = Callable[[Ops, ModelSpec, DecoderInputs], Tensor]

# The first of config.json's `architectures`, of those that generate.
ARCHITECTURES = tuple(FAMILIES)
CLASSIFIER = "ForSequenceClassification"
GEMMA_ENCODER = "Gemma3TextModel"  # if it sees what is behind a token
_WITH_HEADS = tuple(family for family in ENCODER_FAMILIES if family + "Model" != GEMMA_ENCODER)
# Those that embed or classify and do not generate; `families.encoders` has their differences.
ENCODERS = (
    *(family + task for family in _WITH_HEADS for task in ("Model", "ForMaskedLM", CLASSIFIER)),
    GEMMA_ENCODER,
)


def load_definition(
    config: Mapping[str, Any], *, max_model_len: int | None = None
) -> tuple[ModelSpec, Decoder]:
    """The spec and the definition of the model that `config` (config.json) describes.

    Raises StartError: an unknown architecture, a key missing or out of range.
    """
    names = config.get("architectures")
    if is_encoder(config):
        raise StartError(
            f"config.json has architectures {names!r}, an encoder, expected a model that generates"
        )
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str) or name not in ARCHITECTURES:
        heads = ", ".join(f"{head} ({task})" for head, task in HEADS.items())
        why = explained(name, ARCHITECTURES) if isinstance(name, str) else "expected a name"
        raise StartError(
            f"config.json has architectures {names!r}: {why}; docs/architectures.md has those that "
            f"generate, and without generating are served those that end with {heads}"
        )
    return from_config(config, max_model_len=max_model_len), decoder


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Whether `config` (config.json) describes a model that embeds or classifies texts and does
    not generate.
    """
    names = config.get("architectures")
    if not isinstance(names, list) or not names or names[0] not in ENCODERS:
        return False
    return names[0] != GEMMA_ENCODER or is_bidirectional(config)


def is_bidirectional(config: Mapping[str, Any]) -> bool:
    """Whether a Gemma 3 sees what is behind a token too, and so generates nothing."""
    return bool(config.get("use_bidirectional_attention"))


def classifies(config: Mapping[str, Any]) -> bool:
    """Whether `config` (config.json) describes a classifier of whole texts."""
    names = config.get("architectures")
    return isinstance(names, list) and bool(names) and str(names[0]).endswith(CLASSIFIER)


def has_encoder(config: Mapping[str, Any]) -> bool:
    """Whether `config` (config.json) describes an encoder with any head that is served."""
    names = config.get("architectures")
    first = names[0] if isinstance(names, list) and names else None
    if not isinstance(first, str):
        return False
    return split_architecture(first)[0] in _WITH_HEADS or is_encoder(config)


def encoder_form(config: Mapping[str, Any]) -> Architecture:
    """The description of an encoder.  Raises StartError for any other model."""
    if not has_encoder(config):
        known = ", ".join(sorted(ENCODERS))
        raise StartError(
            f"config.json has architectures {config.get('architectures')!r}, expected one of "
            f"{known}"
        )
    return ENCODER_FAMILIES[split_architecture(config["architectures"][0])[0]]
