"""GET /v1/models: what is served, by the names that requests give."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from mindspore_serving.frontends.access import is_predict
from mindspore_serving.frontends.chat.models import ServedModel
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.site import Site

OWNER = "mindspore-serving"


async def show_all(site: Site, _: Request) -> Response:
    found = [to_object(model) for model in site.models.listed()]
    return to_json({"object": "list", "data": found})


async def show(site: Site, http: Request) -> Response:
    return to_json(to_object(site.models.find(http.path_params["name"], is_exact=True)))


def names_model(_: Site, scope: Scope) -> bool:
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
