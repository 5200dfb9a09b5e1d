"""GET /v1beta/models, and one of them; for Google's clients also below /v1."""

from starlette.requests import Request
from starlette.types import Scope

from mindspore_serving.frontends.access import is_from_google_client, is_predict
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.models import ServedModel
from mindspore_serving.frontends.gemini.answers import GeminiModel, GeminiModels


def list_all(state: AppState, _: Request) -> GeminiModels:
    """Return the served models, all on one page."""
    return GeminiModels([_to_model(model) for model in state.models.listed()])


def get_model(state: AppState, http: Request) -> GeminiModel:
    """Return one of the served models."""
    return _to_model(state.models.find(http.path_params["name"], is_exact=True))


def is_models_request(_: AppState, scope: Scope) -> bool:
    """Return whether one of Google's clients requests the models."""
    return is_from_google_client(scope) and not is_predict(scope["path"])


def _to_model(model: ServedModel) -> GeminiModel:
    """Return the description of a model; prompt and answer together share the limit."""
    card = model.card
    methods = {
        "generateContent": card.can_generate,
        "countTokens": card.can_generate,
        "embedContent": card.can_embed,
        "batchEmbedContents": card.can_embed,
    }
    return GeminiModel(
        name=f"models/{model.name}",
        version=str(model.version),
        displayName=model.name,
        description=card.summary,
        inputTokenLimit=card.max_model_len,
        outputTokenLimit=card.max_model_len,
        supportedGenerationMethods=[name for name, has in methods.items() if has],
        thinking=card.can_generate and bool(card.reasoning_format),
    )
