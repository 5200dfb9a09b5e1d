"""Models: GET /api/tags, /api/ps and /api/version, POST /api/show.

Requests that would change the models are refused.
"""

import hashlib
import re
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving import __version__
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.sampling_params import SAMPLING
from mindspore_serving.errors import Forbidden, NotFound
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.models import ServedModel
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.ollama.answers import (
    ListedModel,
    OllamaDetails,
    OllamaModelDetails,
    OllamaModels,
    Pulled,
)
from mindspore_serving.frontends.ollama.requests import ModelRequest, PullRequest
from mindspore_serving.frontends.ollama.writing import LINES, to_time

TAG = ":latest"
# Clients of Ollama, Open WebUI for one, read three numbers and drop what follows a hyphen.
VERSION = re.sub(r"^(\d+\.\d+\.\d+)\.?(.+)$", r"\1-\2", __version__)
NEVER = "9999-12-31T23:59:59Z"
_PULLED = ("pulling manifest", "success")

Object = dict[str, Any]


def refuse_change(_: AppState, http: Request) -> NoReturn:
    """Refuse a request that would change the models.

    Raises Forbidden.
    """
    raise Forbidden(
        f"{http.url.path} is not allowed: only the operator of this server chooses its models"
    )


def list_all(state: AppState) -> OllamaModels:
    """Return the served models."""
    return OllamaModels([_listed(model) for model in state.models.listed()])


def list_running(state: AppState) -> OllamaModels:
    """Return the served models, which are all loaded."""
    return OllamaModels([_running(model) for model in state.models.listed()])


async def show(state: AppState, _: Request, body: ModelRequest) -> OllamaModelDetails:
    """Return the details of a model."""
    model = state.models.find(without_tag(body.model or body.name), is_exact=True)
    card = model.card
    return OllamaModelDetails(
        modelfile=f"# {model.name}, served by MindSpore Serving",
        parameters="\n".join([f"{_name(name)} {value}" for name, value in card.defaults.items()]),
        template="",
        details=_details(model),
        model_info=_about(card),
        capabilities=_capabilities(card),
        modified_at=to_time(card.created),
    )


async def pull(state: AppState, _: Request, body: PullRequest) -> Response:
    """Confirm that a model is served.

    Raises Forbidden for a model that is not.
    """
    name = body.model or body.name
    try:
        state.models.find(without_tag(name), is_exact=True)
    except NotFound as error:
        text = f"{error}. Clients cannot pull models: the operator of this server chooses them"
        raise Forbidden(text) from None
    if body.stream is False:
        return to_json(Pulled("success"))
    lines = b"".join([msgspec.json.encode(Pulled(status)) + b"\n" for status in _PULLED])
    return Response(lines, media_type=LINES)


def without_tag(name: str | None) -> str | None:
    """Remove the tag that all models have here from a model's name."""
    return None if name is None else name.removesuffix(TAG)


def _listed(model: ServedModel) -> ListedModel:
    """Return a model's entry; its digest changes whenever the model is loaded."""
    parts = (model.name, model.version, model.card.created)
    return ListedModel(
        name=model.name + TAG,
        model=model.name + TAG,
        modified_at=to_time(model.card.created),
        digest=hashlib.sha256(repr(parts).encode()).hexdigest(),
        details=_details(model),
    )


def _running(model: ServedModel) -> ListedModel:
    length = model.card.max_model_len
    return replace(_listed(model), size_vram=0, expires_at=NEVER, context_length=length)


def _details(model: ServedModel) -> OllamaDetails:
    card = model.card
    return OllamaDetails(
        parent_model=model.servable if model.adapter else "",
        format=card.runtime,
        family=card.architecture,
        families=[card.architecture],
        parameter_size="",
        quantization_level=card.quantization or card.dtype,
    )


def _name(parameter: str) -> str:
    """Return Ollama's name of a sampling parameter."""
    return SAMPLING[parameter].aliases["ollama"] or parameter


def _about(card: ModelCard) -> Object:
    info: Object = {
        "general.architecture": card.architecture,
        f"{card.architecture}.context_length": card.max_model_len,
        f"{card.architecture}.vocab_size": card.vocab_size,
    }
    if card.embedding_size:
        info[f"{card.architecture}.embedding_length"] = card.embedding_size
    return info


def _capabilities(card: ModelCard) -> list[str]:
    capabilities = {
        "completion": card.can_generate,
        "tools": card.can_generate and bool(card.tool_format),
        "vision": card.takes_images,
        "thinking": card.can_generate and bool(card.reasoning_format),
        "embedding": card.can_embed,
    }
    return [name for name, has in capabilities.items() if has]
