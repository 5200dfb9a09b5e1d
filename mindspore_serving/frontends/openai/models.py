"""GET /v1/models: what is served, by the names that requests give."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Scope

from mindspore_serving.frontends.access import is_predict
from mindspore_serving.frontends.chat.endpoint import RouteIf
from mindspore_serving.frontends.chat.models import ServedModel
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.openai.endpoint import get
from mindspore_serving.frontends.site import Site

OWNER = "mindspore-serving"


def routes(site: Site) -> list[BaseRoute]:
    async def every(_: Request) -> Response:
        found = [to_object(model) for model in site.models.listed()]
        return to_json({"object": "list", "data": found})

    async def one(request: Request) -> Response:
        model = site.models.find(request.path_params["name"], is_exact=True)
        return to_json(to_object(model))

    by_name = RouteIf(get("/v1/models/{name:path}", one), names_model)
    return [get("/v1/models", every), by_name]


def names_model(scope: Scope) -> bool:
    """Whether a path below /v1/models is of a model, and not of a call by protocol v1."""
    return not is_predict(scope["path"])


def to_object(model: ServedModel) -> dict[str, Any]:
    """`max_model_len`, `root`, `parent` and `input_modalities` are not OpenAI's: tokens of prompt
    and answer together, the directory of an adapter, the model that it belongs to, and what a model
    reads beside text."""
    modalities = {"input_modalities": ["text", "image"]} if model.card.takes_images else {}
    return {
        "id": model.name,
        "object": "model",
        "created": model.card.created,
        "owned_by": OWNER,
        "max_model_len": model.card.max_model_len,
        "root": _root(model),
        "parent": model.servable if model.adapter else None,
        **modalities,
    }


def _root(model: ServedModel) -> str:
    directories = dict(zip(model.card.adapters, model.card.adapter_paths, strict=False))
    return directories.get(model.adapter, model.servable)
