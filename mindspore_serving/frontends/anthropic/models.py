"""GET /v1/models for clients of Anthropic's, which say so by the header anthropic-version."""

from datetime import datetime, timezone
from typing import Any

from starlette.types import Scope

from mindspore_serving.frontends.access import is_predict
from mindspore_serving.frontends.anthropic.errors import asks_as_anthropic
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.models import ServedModel


def list_all(state: AppState) -> dict[str, Any]:
    found = [to_model(model) for model in state.models.listed()]
    ends = {"first_id": found[0]["id"], "last_id": found[-1]["id"]} if found else {}
    return {"data": found, "has_more": False, **ends}


def is_anthropics(_: AppState, scope: Scope) -> bool:
    """Whether a client of Anthropic's asks for models."""
    return asks_as_anthropic(scope) and not is_predict(scope["path"])


def to_model(model: ServedModel) -> dict[str, Any]:
    """Prompt and answer together have `max_input_tokens`."""
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
