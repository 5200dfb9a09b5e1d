"""The HTTP application: what is not on the short way of `http_protocol`.

GET /health, /metrics and /servables; and the classic RESTful protocol for URLs of other forms and
for the errors of wrong methods and paths.
"""

from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from mindspore_serving import log
from mindspore_serving.core.service import Control, Inference, Request
from mindspore_serving.errors import InvalidInputs, ServingError, TooLarge
from mindspore_serving.frontends import rest_ms, rest_stream
from mindspore_serving.frontends.bodies import read_body
from mindspore_serving.frontends.disconnect import while_there
from mindspore_serving.frontends.keys import KeyGate, Keys
from mindspore_serving.frontends.replies import infer

_VERBS = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]


def make_app(
    inference: Inference,
    control: Control,
    metrics: Callable[[], bytes],
    *,
    max_body: int,
    use_status_codes: bool,
    keys: Keys | None = None,
    routes: Sequence[BaseRoute] = (),
) -> ASGIApp:
    """The ASGI application over `inference`: `routes` of other protocols come first."""

    async def health(_: HttpRequest) -> Response:
        ready = control.is_ready
        return PlainTextResponse("ready" if ready else "not ready", 200 if ready else 503)

    async def servables(_: HttpRequest) -> Response:
        return JSONResponse({"servables": control.observe()})

    async def show_metrics(_: HttpRequest) -> Response:
        return Response(metrics(), media_type="text/plain; version=0.0.4")

    async def classic(request: HttpRequest) -> Response:
        try:
            asked = await _read(request, max_body)
            method = rest_stream.method_of(control, asked)
            if method is None:
                reply = await while_there(request, infer(inference, asked))
                status, body = rest_ms.to_body(reply)
            else:
                asked.method = method
                answer = await rest_stream.answer(request, inference, asked)
                if isinstance(answer, Response):
                    return answer
                status, body = answer
        except ServingError as error:
            status, body = rest_ms.to_error(error)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:
            log.error("answering a request", exc_info=True)
            status, body = rest_ms.to_error(ServingError("Predict failed"))
        status = status if use_status_codes else 200
        return Response(body, status, media_type="application/json")

    app = Starlette(
        routes=[
            *routes,
            Route("/health", health, methods=["GET"]),
            Route("/metrics", show_metrics, methods=["GET"]),
            Route("/servables", servables, methods=["GET"]),
            Route("/{path:path}", classic, methods=_VERBS),
        ]
    )
    return KeyGate(app, keys) if keys else app


async def _read(request: HttpRequest, max_body: int) -> Request:
    if request.method != "POST":
        raise InvalidInputs("http message only support POST right now")
    try:
        body = await read_body(request, max_body)
    except TooLarge:
        raise rest_ms.too_big(max_body) from None
    target = request.scope["raw_path"]
    if request.scope["query_string"]:
        target += b"?" + request.scope["query_string"]
    header = request.headers.get("x-request-timeout")
    timeout = rest_ms.to_timeout(header.encode("latin-1")) if header else None
    return rest_ms.to_request(rest_ms.find_route(target), body, timeout)
