"""The HTTP application: what the fast path does not take.

GET /health, /livez, /readyz, /metrics and /servables; and the classic RESTful protocol for URLs of
other forms, streams, and wrong methods and paths.
"""

from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from mindspore_serving.core.service import Control, Inference, Request
from mindspore_serving.errors import InvalidInputs, TooLarge
from mindspore_serving.frontends.bodies import read_body
from mindspore_serving.frontends.disconnect import while_there
from mindspore_serving.frontends.gate import Gate
from mindspore_serving.frontends.health import routes as health_routes
from mindspore_serving.frontends.keys import Keys
from mindspore_serving.frontends.ms_rest import MsRest, find_route, to_request
from mindspore_serving.frontends.ms_rest_stream import method_of, respond, to_response
from mindspore_serving.frontends.replies import infer
from mindspore_serving.frontends.sites import SiteRules
from mindspore_serving.wire.status import seconds_of

_VERBS = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]


def make_app(
    inference: Inference,
    control: Control,
    metrics: Callable[[], bytes],
    *,
    rest: MsRest,
    keys: Keys | None = None,
    sites: SiteRules | None = None,
    routes: Sequence[BaseRoute] = (),
) -> ASGIApp:
    """The ASGI application over `inference`: `routes` of other protocols come first.  Without
    `sites`, web pages of other sites may ask."""

    async def health(_: HttpRequest) -> Response:
        if control.is_ready:
            return PlainTextResponse("ready")
        return PlainTextResponse("not ready", 503, {"retry-after": seconds_of(None)})

    async def servables(_: HttpRequest) -> Response:
        return JSONResponse({"servables": control.observe()})

    async def show_metrics(_: HttpRequest) -> Response:
        return Response(metrics(), media_type="text/plain; version=0.0.4")

    async def classic(http: HttpRequest) -> Response:
        try:
            request = await _read(http, rest)
            method = method_of(control, request)
            if method is not None:
                request.method = method
                return await respond(http, inference, request, rest)
            answer = rest.answer(await while_there(http, infer(inference, request)))
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            answer = rest.refuse(error)
        return to_response(answer)

    app = Starlette(
        routes=[
            *routes,
            Route("/health", health, methods=["GET"]),
            *health_routes(control),
            Route("/metrics", show_metrics, methods=["GET"]),
            Route("/servables", servables, methods=["GET"]),
            Route("/{path:path}", classic, methods=_VERBS),
        ]
    )
    return _guarded(app, keys or Keys(), sites)


def _guarded(app: ASGIApp, keys: Keys, sites: SiteRules | None) -> ASGIApp:
    """`app` for those who may ask."""
    gate = Gate(app, keys, sites) if keys or sites else app
    if sites is None or not sites.allow_origins:
        return gate
    return CORSMiddleware(
        gate,
        allow_origins=sites.allow_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["*"],
    )


async def _read(http: HttpRequest, rest: MsRest) -> Request:
    """The request that `http` is.  Raises InvalidInputs."""
    if http.method != "POST":
        raise InvalidInputs("http message only support POST right now")
    target = http.scope["raw_path"]
    if http.scope["query_string"]:
        target += b"?" + http.scope["query_string"]
    route, timeout = find_route(target), rest.to_timeout(dict(http.scope["headers"]))
    try:
        body = await read_body(http, rest.max_body)
    except TooLarge:
        raise rest.too_big() from None
    return to_request(route, body, timeout)
