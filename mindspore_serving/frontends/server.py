"""The routes of no protocol: health, numbers, the pages, and the document of all routes."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from mindspore_serving.aio import on_thread
from mindspore_serving.core.service import Control, ServableReadiness
from mindspore_serving.errors import NoRoute
from mindspore_serving.frontends import page
from mindspore_serving.frontends.health import are_ready, of_servable, still_loading
from mindspore_serving.frontends.keys import HOLDER
from mindspore_serving.frontends.mindspore.routes import to_error
from mindspore_serving.frontends.operation import (
    HTML,
    JSON,
    STRING,
    TEXT,
    Schema,
    to_array,
    to_object,
)
from mindspore_serving.frontends.routes import HttpProtocol, HttpRoute
from mindspore_serving.frontends.tgi import root_health
from mindspore_serving.metrics.exposition import Page
from mindspore_serving.wire.status import seconds_of

Describe = Callable[[], Awaitable[tuple[str, bytes]]]


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What these routes show.  With `allow_loading`, who has a key may operate; `describe` gives
    the tag of the document of all routes, and its JSON.
    """

    control: Control
    metrics: Callable[[], Page]
    allow_loading: bool = False
    describe: Describe | None = None


# --- health ------------------------------------------------------------------------------------


async def show_health(server: ServerContext, _: Request) -> Response:
    """503 until everything takes requests."""
    control = server.control
    if control.is_ready:
        return PlainTextResponse("ready")
    missing = still_loading(control) if control.readiness() else None
    text = "not ready" if missing is None else f"not ready: {missing}"
    return PlainTextResponse(text, 503, {"retry-after": seconds_of(None)})


async def show_ready(server: ServerContext, http: Request) -> Response:
    """503 until everything, or the servables that `/readyz/NAME` or `?servable=NAME` name, take
    requests.
    """
    control = server.control
    names = [*http.query_params.getlist("servable"), *http.path_params.values()]
    if not names:
        return _readiness(control.readiness(), is_ready=control.is_ready)
    found = []
    for name in names:
        versions = of_servable(control, name)
        if not versions:
            return JSONResponse({"error_msg": f"there is no servable {name!r}"}, 404)
        found += versions
    return _readiness(found, is_ready=are_ready(control, found))


def _readiness(found: Sequence[ServableReadiness], *, is_ready: bool) -> Response:
    servables = [
        {"name": one.name, "version": one.version, "ready": one.is_ready, "reason": one.reason}
        for one in found
    ]
    body = {"ready": is_ready, "servables": servables}
    if is_ready:
        return JSONResponse(body)
    return JSONResponse(body, 503, {"retry-after": seconds_of(None)})


# --- numbers and pages -------------------------------------------------------------------------


async def show_servables(server: ServerContext, http: Request) -> Response:
    is_operator = server.allow_loading and HOLDER in http.scope
    may = {"operator": True} if is_operator else {}  # for the page, which cannot see its key
    return JSONResponse({"servables": server.control.observe(), **may})


async def show_history(server: ServerContext, _: Request) -> Response:
    found = server.control.history()
    body = await on_thread("history", lambda: msgspec.json.encode(found()))
    return Response(body, media_type="application/json")


async def show_metrics(server: ServerContext, _: Request) -> Response:
    body = await on_thread("metrics", partial(server.metrics().render, has_process=True))
    return Response(body, media_type="text/plain; version=0.0.4")


def show_root(server: ServerContext, http: Request) -> Response:
    """A page for browsers; for others TGI's health."""
    return page.show_page(http) if page.wants_page(http) else root_health(server.control)


async def show_document(server: ServerContext, http: Request) -> Response:
    if server.describe is None:
        raise NoRoute("this server describes no routes")
    etag, body = await server.describe()
    headers = {"etag": etag, "cache-control": "no-cache"}
    if http.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


# --- rows --------------------------------------------------------------------------------------

_OBJECT: Schema = {"type": "object"}
_SERVABLE = to_object(
    {"name": STRING, "version": {"type": "integer"}, "ready": {"type": "boolean"}, "reason": STRING}
)
_READY = to_object({"ready": {"type": "boolean"}, "servables": to_array(_SERVABLE)})
_OBSERVED = to_object({"name": STRING, "version": {"type": "integer"}, "methods": _OBJECT})
_ALL_OBSERVED = to_object(
    {"servables": to_array(_OBSERVED), "operator": {"type": "boolean"}}, "operator"
)


PROTOCOL = HttpProtocol(
    "server",
    to_error,
    title="server",
    about="Health, numbers and pages.",
    errors={JSON: to_object({"error_msg": STRING}), TEXT: STRING},
)
_READINESS = {JSON: _READY}
_UNHEALTHY = {"503": {JSON: to_object({"error": STRING, "error_type": STRING})}}
_HISTORY = to_object({"seconds": {"type": "number"}, "columns": to_array(STRING)})

_get = partial(HttpRoute, "GET", protocol=PROTOCOL)
_probe = partial(_get, is_open=True)
_ready = partial(_probe, handler=show_ready, answers=_READINESS, others={"503": _READINESS})
_WHETHER = "Whether everything can be called"

ROUTES = (
    _probe(
        "/livez",
        lambda *_: PlainTextResponse("alive"),
        "Whether the server answers",
        {TEXT: STRING},
    ),
    _probe(
        "/health",
        show_health,
        _WHETHER,
        {TEXT: STRING},
        others={"503": {TEXT: STRING}},
    ),
    _ready("/readyz", summary=f"{_WHETHER}, or the servables that are named", query=("servable",)),
    _ready("/readyz/{servable:path}", summary="Whether a servable can be called"),
    _get(
        "/servables",
        show_servables,
        "What is served, its methods, and how busy it is",
        {JSON: _ALL_OBSERVED},
    ),
    _get(
        "/servables/history",
        show_history,
        "How busy each servable was in the last hour",
        {JSON: _HISTORY},
    ),
    _get("/metrics", show_metrics, "Numbers for Prometheus", {TEXT: STRING}),
    _get("/", show_root, "A page for browsers; for others nothing, or 503", others=_UNHEALTHY),
    _get("/page/{name:path}", lambda _, http: page.show_file(http), "A file of the pages"),
    _get(
        "/docs",
        lambda _, http: page.show(http, "docs/docs.html"),
        "This document, for people",
        {HTML: STRING},
    ),
    _get("/openapi.json", show_document, "This document", {JSON: _OBJECT}),
)
