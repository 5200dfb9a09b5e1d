"""GET /v1/models: the served models, by the names that requests use."""

from typing import Any

from msgspec import UNSET, UnsetType
from starlette.types import Scope

from mindspore_serving.core.default_sampling import suggest_max_tokens
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.frontends.access import is_predict
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.models import ServedModel
from mindspore_serving.frontends.openai.answers import OpenAIModel


def names_model(_: AppState, scope: Scope) -> bool:
    """Return whether a path below /v1/models names a model and is no call of protocol v1."""
    return not is_predict(scope["path"])


def to_model(model: ServedModel) -> OpenAIModel:
    """Return the description of a model."""
    return OpenAIModel(
        id=model.name,
        created=model.card.created,
        max_model_len=model.card.max_model_len,
        root=_root(model),
        parent=model.servable if model.adapter else None,
        input_modalities=_modalities(model.card),
        output_modalities=["audio"] if model.card.can_speak else UNSET,
        **_defaults(model.card),
    )


def _modalities(card: ModelCard) -> list[str] | UnsetType:
    if card.can_transcribe and not card.can_generate:
        return ["audio"]
    more = [*(["image"] if card.takes_images else []), *(["audio"] if card.takes_sounds else [])]
    return ["text", *more] if more else UNSET


def _defaults(card: ModelCard) -> dict[str, Any]:
    """Return what a request gets for parameters that it leaves out."""
    if not card.can_generate:
        return {}
    limits = {
        "default_max_tokens": card.default_max_tokens,
        "suggested_max_tokens": suggest_max_tokens(card),
    }
    if not card.sampling:  # of an upstream
        return limits
    source = {"sampling_source": card.sampling_source}
    return {"default_sampling": dict(card.sampling), **source, **limits}


def _root(model: ServedModel) -> str:
    directories = dict(zip(model.card.adapters, model.card.adapter_paths, strict=False))
    return directories.get(model.adapter, model.servable)
