"""The HTTP application: what the fast path does not take.

GET /health, /livez, /readyz, /metrics and /servables; the classic RESTful protocol for URLs of
other forms, streams and wrong methods; and what is answered for a path that no protocol has.
"""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Scope

from mindspore_serving.aio import on_thread
from mindspore_serving.core.service import Control, Inference, Request
from mindspore_serving.errors import InvalidInputs, TooLarge
from mindspore_serving.frontends import refusals
from mindspore_serving.frontends.bodies import read_body
from mindspore_serving.frontends.disconnect import while_there
from mindspore_serving.frontends.gate import Gate
from mindspore_serving.frontends.health import routes as health_routes
from mindspore_serving.frontends.http.unrouted import Unrouted, without_slash
from mindspore_serving.frontends.keys import HOLDER, Keys
from mindspore_serving.frontends.mindspore.rest import MsRest, find_route, is_classic, to_request
from mindspore_serving.frontends.mindspore.rest_stream import method_of, respond, to_response
from mindspore_serving.frontends.replies import infer
from mindspore_serving.frontends.sites import SiteRules
from mindspore_serving.metrics.exposition import Page

# The original refused what is no POST by its own text, with status 200.
_CLASSIC_VERBS = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]


def make_app(
    inference: Inference,
    control: Control,
    metrics: Callable[[], Page],
    *,
    rest: MsRest,
    keys: Keys | None = None,
    sites: SiteRules | None = None,
    routes: Sequence[BaseRoute] = (),
    allow_loading: bool = False,
) -> ASGIApp:
    """The ASGI application over `inference`: `routes` of other protocols come first.  Without
    `sites`, web pages of other sites may ask.  With `allow_loading`, who has a key may operate."""
    own = own_routes(inference, control, metrics, rest, allow_loading=allow_loading)
    known = [*routes, *own]
    app = Starlette(routes=[*known, Route("/{path:path}", Unrouted(known))])
    return guarded(without_slash(app), keys or Keys(), sites)


def own_routes(
    inference: Inference,
    control: Control,
    metrics: Callable[[], Page],
    rest: MsRest,
    *,
    allow_loading: bool = False,
) -> list[BaseRoute]:
    """Those of no other protocol, the classic one last."""

    async def servables(http: HttpRequest) -> Response:
        is_operator = allow_loading and HOLDER in http.scope
        may = {"operator": True} if is_operator else {}  # for the page, which cannot see its key
        return JSONResponse({"servables": control.observe(), **may})

    async def history(_: HttpRequest) -> Response:
        found = control.history()
        body = await on_thread("history", lambda: msgspec.json.encode(found()))
        return Response(body, media_type="application/json")

    async def show_metrics(_: HttpRequest) -> Response:
        body = await on_thread("metrics", partial(metrics().render, has_process=True))
        return Response(body, media_type="text/plain; version=0.0.4")

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

    verbs = ["POST"] if rest.use_status_codes else _CLASSIC_VERBS
    return [
        *health_routes(control),
        Route("/metrics", show_metrics, methods=["GET"]),
        Route("/servables", servables, methods=["GET"]),
        Route("/servables/history", history, methods=["GET"]),
        Route("/model/{path:path}", classic, methods=verbs),
        ClassicRoute("/{path:path}", classic, methods=["POST"]),
    ]


class ClassicRoute(Route):
    """A classic URL with other words before "model", as the original takes it."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if refusals.is_protocol(scope["path"]) or not is_classic(scope["raw_path"]):
            return Match.NONE, {}
        return super().matches(scope)


def guarded(app: ASGIApp, keys: Keys, sites: SiteRules | None) -> ASGIApp:
    """`app` for those who may ask."""
    gate = Gate(app, keys, sites) if keys or sites else app
    if sites is None or not sites.allow_origins:
        return gate
    return CORSMiddleware(
        gate,
        allow_origins=sites.allow_origins,
        allow_methods=["GET", "HEAD", "POST", "DELETE"],
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
