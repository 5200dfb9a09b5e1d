"""The routes: bodies in, answers out, every request counted once."""

from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mindspore_serving.frontends.site import Site
from mindspore_serving.frontends.tgi.aliases import DecliningRoute, invocations
from mindspore_serving.frontends.tgi.checks import RequestLimits
from mindspore_serving.frontends.tgi.errors import TgiError, WrongBody, to_tgi_error
from mindspore_serving.frontends.tgi.generating import Generating
from mindspore_serving.frontends.tgi.info_routes import TOKENIZE, chat_tokenize, info, tokenize
from mindspore_serving.frontends.tgi.metrics import Recorder

_VERBS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")

Answer = Callable[[Request], Awaitable[Response]]


def routes(
    site: Site, limits: RequestLimits | None = None, recorder: Recorder | None = None
) -> list[BaseRoute]:
    """Every route but GET / and GET /health, which are others'.

    `recorder` counts what it shows as metrics.
    """
    limits, recorder = limits or RequestLimits(), recorder or Recorder()
    generating = Generating(site, limits, recorder)

    async def ask_health(request: Request) -> Response:
        return root_health(site, request)

    return [
        Route("/", _guarded(generating.compat), methods=["POST"]),
        _route("/generate", "POST", generating.generate),
        _route("/generate_stream", "POST", generating.generate_stream),
        _route("/invocations", "POST", invocations(site, generating)),
        DecliningRoute(TOKENIZE, _guarded(tokenize(site)), methods=["POST"]),
        _route("/chat_tokenize", "POST", chat_tokenize(site, recorder)),
        _route("/info", "GET", info(site, limits)),
        _route("/ping", "GET", ask_health),
    ]


def root_health(site: Site, request: Request) -> Response:
    """An empty body if everything can be called, else 503 and the reason in JSON."""
    if site.control.is_ready:
        return Response()
    return TgiError(503, "healthcheck", "unhealthy").to_response()


def _route(path: str, verb: str, answer: Answer) -> Route:
    """A route that answers other verbs as well: with 405 and an empty body."""
    guarded = _guarded(answer)

    async def endpoint(request: Request) -> Response:
        if request.method != verb:
            return Response(status_code=405, headers={"allow": verb})
        return await guarded(request)

    return Route(path, endpoint, methods=_VERBS)


def _guarded(answer: Answer) -> Answer:
    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except WrongBody as error:
            return error.to_response()
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            return to_tgi_error(error).to_response()

    return endpoint
