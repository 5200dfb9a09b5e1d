"""The routes of Ollama's protocol, which answer errors in its form, and name the fields that change
nothing here."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mindspore_serving.frontends.chat.endpoint import Endpoints, name_ignored
from mindspore_serving.frontends.ollama.errors import to_response
from mindspore_serving.frontends.ollama.fields import find_ignored
from mindspore_serving.frontends.ollama.requests import Common
from mindspore_serving.frontends.site import Site

ENDPOINTS = Endpoints(to_response)
Body = TypeVar("Body", bound=Common)


def post(
    site: Site,
    path: str,
    kind: type[Body],
    answer: Callable[[Site, Request, Body], Awaitable[Response]],
    ignored: Iterable[str],
) -> Route:
    """A route for POST to a model."""

    async def reported(site: Site, http: Request, body: Body) -> Response:
        found = [*find_ignored(body)]  # before there is an answer: it may refuse
        response = await answer(site, http, body)
        name_ignored(response, found)
        return response

    return ENDPOINTS.post(site, path, kind, reported, ignored)
