"""GET /v1/models for Anthropic's clients, known by their header anthropic-version."""

from datetime import datetime, timezone
from typing import Any

from starlette.types import Scope

from mindspore_serving.frontends.access import is_from_anthropic_client, is_predict
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.models import ServedModel


def list_all(state: AppState) -> dict[str, Any]:
    """Return the served models."""
    listed = [to_model(model) for model in state.models.listed()]
    ends = {"first_id": listed[0]["id"], "last_id": listed[-1]["id"]} if listed else {}
    return {"data": listed, "has_more": False, **ends}


def is_models_request(_: AppState, scope: Scope) -> bool:
    """Return whether one of Anthropic's clients requests the models."""
    return is_from_anthropic_client(scope) and not is_predict(scope["path"])


def to_model(model: ServedModel) -> dict[str, Any]:
    """Return the description of a model; prompt and answer together share `max_input_tokens`."""
    created = datetime.fromtimestamp(model.card.created, timezone.utc)
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": model.card.max_model_len,
        "max_tokens": model.card.max_model_len,
    }
