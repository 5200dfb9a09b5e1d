"""Refusals of requests before any route, in the error format of the protocol of the path."""

import time

from starlette.responses import Response
from starlette.types import Scope

from mindspore_serving.errors import ServingError, Unauthorized, WrongVerb
from mindspore_serving.frontends import anthropic, gemini
from mindspore_serving.frontends.access import is_from_anthropic_client, is_from_google_client
from mindspore_serving.frontends.protocols import PATHS
from mindspore_serving.frontends.routes import HttpProtocol
from mindspore_serving.frontends.tenants.limits import (
    Headers,
    LimitLeft,
    to_anthropic_headers,
    to_headers,
)


def refuse(scope: Scope, error: ServingError, path: str = "") -> Response:
    """Return the answer that refuses a request; `path` replaces the path of `scope`."""
    path = path or scope["path"]
    response = _protocol_of(scope, path).refuse(error)
    if isinstance(error, Unauthorized):
        # A header for each scheme: browsers do not parse a list.
        response.headers.append("www-authenticate", 'Basic realm="API key as password"')
        response.headers.append("www-authenticate", "Bearer")
    if isinstance(error, WrongVerb):
        response.headers["allow"] = ", ".join(error.allowed)
    return response


def limit_headers(scope: Scope, allowances: tuple[LimitLeft, ...]) -> Headers:
    """Return the headers of limits, by the names of the protocol of the path."""
    if _protocol_of(scope, scope["path"]) is anthropic.PROTOCOL:
        return to_anthropic_headers(allowances, time.time())
    return to_headers(allowances)


def _protocol_of(scope: Scope, path: str) -> HttpProtocol:
    if path.startswith("/v1/") and is_from_anthropic_client(scope):
        return anthropic.PROTOCOL
    if path.startswith("/v1/models") and is_from_google_client(scope):
        return gemini.PROTOCOL
    return PATHS.find(path).protocol
