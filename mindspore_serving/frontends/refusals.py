"""A request that no route answers, refused in the form of the protocol of its path."""

from starlette.responses import Response
from starlette.types import Scope

from mindspore_serving.errors import ServingError, Unauthorized, WrongVerb
from mindspore_serving.frontends import anthropic
from mindspore_serving.frontends.anthropic.errors import is_from_anthropic_client
from mindspore_serving.frontends.protocols import PATHS


def refuse(scope: Scope, error: ServingError, path: str = "") -> Response:
    """The answer to a request, which is refused for `error`; as one for `path`, if it is given."""
    path = path or scope["path"]
    is_anthropics = path.startswith("/v1/") and is_from_anthropic_client(scope)
    protocol = anthropic.PROTOCOL if is_anthropics else PATHS.find(path).protocol
    response = protocol.refuse(error)
    if isinstance(error, Unauthorized):
        # A header each: browsers do not read a list.
        response.headers.append("www-authenticate", 'Basic realm="API key as password"')
        response.headers.append("www-authenticate", "Bearer")
    if isinstance(error, WrongVerb):
        response.headers["allow"] = ", ".join(error.allowed)
    return response
