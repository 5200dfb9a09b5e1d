"""What every route does around its answer: read the body, decode it, answer errors, and name the
request.
"""

import re
import secrets
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from mindspore_serving.frontends.bodies import read_json
from mindspore_serving.frontends.openai.decoding import decode
from mindspore_serving.frontends.openai.errors import Failure, to_failure
from mindspore_serving.frontends.site import Site

REQUEST_ID = "x-request-id"
_VERBS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")
_GOOD_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)

Body = TypeVar("Body")


def get(path: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
    """A route for GET."""
    return _route(path, "GET", answer)


def post(
    site: Site,
    path: str,
    kind: type[Body],
    answer: Callable[[Site, Request, Body], Awaitable[Response]],
) -> Route:
    """A route for POST of a JSON body that is a `kind`."""

    async def decoded(request: Request) -> Response:
        body = await read_json(request, site.max_body, site.models.limits)
        return await answer(site, request, decode(body, kind))

    return _route(path, "POST", decoded)


def _route(path: str, verb: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            if request.method != verb:
                response = _wrong_verb(request.method, verb)
            else:
                response = await answer(request)
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception as error:
            response = to_failure(error).to_response()
        response.headers[REQUEST_ID] = _request_id(request)
        return response

    return Route(path, endpoint, methods=_VERBS)


def _wrong_verb(given: str, verb: str) -> Response:
    text = f"the method is {given}, expected {verb}"
    response = Failure(405, text, "invalid_request_error").to_response()
    response.headers["allow"] = verb
    return response


def _request_id(request: Request) -> str:
    """The client's own, if it sent one."""
    given = request.headers.get(REQUEST_ID, "")
    return given if _GOOD_ID.fullmatch(given) else f"req_{secrets.token_hex(16)}"
