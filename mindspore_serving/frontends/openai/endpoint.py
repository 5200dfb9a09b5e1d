"""What every route does around its answer: read the body, decode it, answer errors."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from mindspore_serving.frontends.bodies import read_json
from mindspore_serving.frontends.openai.decoding import decode
from mindspore_serving.frontends.openai.errors import to_failure
from mindspore_serving.frontends.site import Site
from mindspore_serving.frontends.unknown_fields import HEADER, KnownFields

Body = TypeVar("Body", bound=msgspec.Struct)


def get(path: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
    """A route for GET."""
    return _route(path, "GET", answer)


def post(
    site: Site,
    path: str,
    kind: type[Body],
    answer: Callable[[Site, Request, Body], Awaitable[Response]],
    ignored: Iterable[str] = (),
) -> Route:
    """A route for POST of a JSON body that is a `kind`, a struct; fields that are `ignored` are
    known, others are named in the answer."""
    fields = KnownFields(path, kind, ignored)

    async def decoded(request: Request) -> Response:
        body = await read_json(request, site.max_body, site.models.limits)
        unknown = fields.find_unknown(body)
        response = await answer(site, request, decode(body, kind))
        if unknown:
            response.headers[HEADER] = ", ".join(unknown)
        return response

    return _route(path, "POST", decoded)


def _route(path: str, verb: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            return to_failure(error).to_response()

    return Route(path, endpoint, methods=[verb])
