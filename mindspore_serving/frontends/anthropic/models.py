"""GET /v1/models for clients of Anthropic's, which say so by the header anthropic-version."""

from datetime import datetime, timezone
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from mindspore_serving.frontends.anthropic.answering import ENDPOINTS
from mindspore_serving.frontends.language import ServedModel
from mindspore_serving.frontends.site import Site


class _ForClients(BaseRoute):
    """A route that exists only for clients of Anthropic's."""

    def __init__(self, route: Route) -> None:
        self._route = route

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_meant = any(name == b"anthropic-version" for name, _ in scope["headers"])
        return self._route.matches(scope) if is_meant else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._route.handle(scope, receive, send)


def routes(site: Site) -> list[BaseRoute]:
    async def every(_: Request) -> Response:
        found = [to_object(model) for model in site.models.listed()]
        ends = {"first_id": found[0]["id"], "last_id": found[-1]["id"]} if found else {}
        return _respond({"data": found, "has_more": False, **ends})

    async def one(request: Request) -> Response:
        model = site.models.find(request.path_params["name"], is_exact=True)
        return _respond(to_object(model))

    get = ENDPOINTS.get
    return [_ForClients(get("/v1/models", every)), _ForClients(get("/v1/models/{name:path}", one))]


def to_object(model: ServedModel) -> dict[str, Any]:
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


def _respond(found: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(found), media_type="application/json")
