"""Routes of the RESTful protocol of the original for requests that the fast path does not take.

These are URLs of other forms, streams and wrong methods.
"""

from dataclasses import dataclass
from functools import partial

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Scope

from mindspore_serving.core.service import Control, Inference, Request
from mindspore_serving.errors import InvalidInputs, TooLarge
from mindspore_serving.frontends.bodies import read_body
from mindspore_serving.frontends.disconnect import while_connected
from mindspore_serving.frontends.mindspore.rest import (
    MsRest,
    find_route,
    is_classic,
    sequence_of_headers,
    to_priority,
    to_request,
)
from mindspore_serving.frontends.mindspore.rest_stream import method_of, respond, to_response
from mindspore_serving.frontends.operation import JSON, STRING, to_object
from mindspore_serving.frontends.paths import PathNode
from mindspore_serving.frontends.replies import infer
from mindspore_serving.frontends.routes import HttpProtocol, HttpRoute
from mindspore_serving.frontends.tgi.errors import to_refusal
from mindspore_serving.frontends.tgi.errors import to_response as to_tgi

_ANY = "/{path:path}"
_PROXIED = "/api"  # classic URLs can begin with it, as Ollama's do


@dataclass(frozen=True, slots=True)
class Classic:
    """The protocol of one server; `paths` is the tree of the paths of all protocols."""

    inference: Inference
    control: Control
    rest: MsRest
    paths: PathNode


def to_error(error: Exception) -> Response:
    """Return the answer for an error of a request that calls no method, with a status code."""
    return to_response(MsRest(0, use_status_codes=True).refuse(error))


async def answer(classic: Classic, http: HttpRequest) -> Response:
    """Call a method, or stream its answer."""
    rest = classic.rest
    try:
        request = await _read(http, rest)
        method = method_of(classic.control, request)
        if method is not None:
            request.method = method
            return await respond(http, classic.inference, request, rest)
        result = rest.answer(await while_connected(http, infer(classic.inference, request)))
    except ClientDisconnect:
        raise
    except Exception as error:
        result = rest.refuse(error)
    return to_response(result)


async def _read(http: HttpRequest, rest: MsRest) -> Request:
    """Read the request.  Raises InvalidInputs."""
    if http.method != "POST":
        raise InvalidInputs("http message only support POST right now")
    target = http.scope["raw_path"]
    if http.scope["query_string"]:
        target += b"?" + http.scope["query_string"]
    headers = dict(http.scope["headers"])
    route, timeout = find_route(target), rest.to_timeout(headers)
    priority = to_priority(headers.get(b"x-request-priority"))
    sequence = sequence_of_headers(headers)
    try:
        body = await read_body(http, rest.max_body)
    except TooLarge:
        raise rest.too_big() from None
    return to_request(route, body, timeout, priority=priority, sequence=sequence)


def _takes_any_verb(classic: Classic, _: Scope) -> bool:
    return not classic.rest.use_status_codes


def _is_classic(classic: Classic, scope: Scope) -> bool:
    node = classic.paths.find(scope["path"])
    return node.path in (_ANY, _PROXIED) and is_classic(scope["raw_path"])


ERROR = {"error_msg": STRING}
PROTOCOL = HttpProtocol(
    "rest",
    to_error,
    title="RESTful",
    about="MindSpore Serving's own protocol: an instance is an object with the inputs of a method.",
    errors={JSON: (to_object(ERROR), to_object({"instances": {"type": "array"}}))},
)
OTHER = HttpProtocol("other", to_tgi, to_refusal)
"""Unknown paths, whose errors are those of TGI, as its paths have no common prefix."""

_route = partial(HttpRoute, protocol=PROTOCOL, path="/model/{path:path}", handler=answer)

# OpenAPI describes each deployed method instead of these paths.
ROUTES = (
    _route("POST", accepts_text_plain=True),
    # The original answers other methods than POST with an error and status 200.
    *(
        _route(verb, applies=_takes_any_verb, accepts_text_plain=True)
        for verb in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS")
    ),
)
FALLBACK = HttpRoute(
    "POST", _ANY, answer, protocol=OTHER, applies=_is_classic, accepts_text_plain=True
)
"""A classic URL with a prefix before "model", which the original accepts."""
