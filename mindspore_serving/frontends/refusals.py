"""Refusals of requests before any route, in the error format of the protocol of the path."""

from starlette.responses import Response
from starlette.types import Scope

from mindspore_serving.errors import ServingError, Unauthorized, WrongVerb
from mindspore_serving.frontends import anthropic
from mindspore_serving.frontends.access import is_from_anthropic_client
from mindspore_serving.frontends.protocols import PATHS


def refuse(scope: Scope, error: ServingError, path: str = "") -> Response:
    """Return the answer that refuses a request; `path` replaces the path of `scope`."""
    path = path or scope["path"]
    is_anthropics = path.startswith("/v1/") and is_from_anthropic_client(scope)
    protocol = anthropic.PROTOCOL if is_anthropics else PATHS.find(path).protocol
    response = protocol.refuse(error)
    if isinstance(error, Unauthorized):
        # A header for each scheme: browsers do not parse a list.
        response.headers.append("www-authenticate", 'Basic realm="API key as password"')
        response.headers.append("www-authenticate", "Bearer")
    if isinstance(error, WrongVerb):
        response.headers["allow"] = ", ".join(error.allowed)
    return response
