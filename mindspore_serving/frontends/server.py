"""Routes of no protocol: health, metrics, pages, and the OpenAPI document."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mindspore_serving.aio import on_thread
from mindspore_serving.core.service import Control, ServableReadiness
from mindspore_serving.errors import Forbidden, NoRoute
from mindspore_serving.frontends import page
from mindspore_serving.frontends.health import are_ready, still_loading, versions_of
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.keys import TENANT, Tenant, owner_of
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
from mindspore_serving.frontends.state.batch import BatchProgress
from mindspore_serving.frontends.tenants.report import UsageReport
from mindspore_serving.frontends.tgi import root_health
from mindspore_serving.metrics.exposition import Page
from mindspore_serving.wire.status import seconds_of

Describe = Callable[[], Awaitable[tuple[str, bytes]]]
ReportUsage = Callable[[str | None], UsageReport]
ListBatches = Callable[[], Awaitable[Sequence[BatchProgress]]]


class ServerError(msgspec.Struct):
    """An error of these routes."""

    error_msg: str


class ServableState(msgspec.Struct):
    """Readiness of a servable version, and the reason if it is not ready."""

    name: str
    version: int
    ready: bool
    reason: str


class RunningBatches(msgspec.Struct):
    """The batches of all keys that have not ended, the oldest first."""

    batches: Sequence[BatchProgress]


class Readiness(msgspec.Struct):
    """Readiness of the server, or of the named servables."""

    ready: bool
    servables: list[ServableState]


@dataclass(frozen=True, slots=True)
class ServerContext:
    """State of one server for these routes.

    With `allow_loading`, clients with a key can load and unload models.  `describe` returns the
    ETag and the JSON of the OpenAPI document, `list_batches` the progress of running batches,
    `report_usage` the usage of a tenant, by its name in stored state, or of all.
    """

    control: Control
    metrics: Callable[[], Page]
    allow_loading: bool = False
    describe: Describe | None = None
    list_batches: ListBatches | None = None
    report_usage: ReportUsage | None = None

    def is_operator(self, http: Request) -> bool:
        """Return whether a request may operate the server."""
        tenant: Tenant | None = http.scope.get(TENANT)
        return tenant is not None and (self.allow_loading or tenant.key.is_operator)


# --- health ------------------------------------------------------------------------------------


async def show_health(server: ServerContext, _: Request) -> Response:
    """Answer 503 until all servables are ready."""
    control = server.control
    if control.is_ready:
        return PlainTextResponse("ready")
    missing = still_loading(control) if control.readiness() else None
    text = "not ready" if missing is None else f"not ready: {missing}"
    return PlainTextResponse(text, 503, {"retry-after": seconds_of(None)})


async def show_ready(server: ServerContext, http: Request) -> Response:
    """Answer 503 until all servables are ready, or those of `/readyz/NAME` and `?servable=NAME`."""
    control = server.control
    names = [*http.query_params.getlist("servable"), *http.path_params.values()]
    if not names:
        return _readiness(control.readiness(), is_ready=control.is_ready)
    named: list[ServableReadiness] = []
    for name in names:
        versions = versions_of(control, name)
        if not versions:
            return to_json(ServerError(f"there is no servable {name!r}"), 404)
        named += versions
    return _readiness(named, is_ready=are_ready(control, named))


def _readiness(versions: Sequence[ServableReadiness], *, is_ready: bool) -> Response:
    servables = [
        ServableState(version.name, version.version, version.is_ready, version.reason)
        for version in versions
    ]
    body = Readiness(is_ready, servables)
    return to_json(body) if is_ready else to_json(body, 503, seconds_of(None))


# --- numbers and pages -------------------------------------------------------------------------


async def show_servables(server: ServerContext, http: Request) -> Response:
    """Answer with the servables, their methods and their load."""
    # For the page, which cannot see its key.
    rights = {"operator": True} if server.is_operator(http) else {}
    return to_json({"servables": server.control.observe(), **rights})


async def show_history(server: ServerContext, _: Request) -> Response:
    """Answer with the load of servables in the last hour."""
    make = server.control.history()
    body = await on_thread("history", lambda: msgspec.json.encode(make()))
    return Response(body, media_type="application/json")


async def show_batches(server: ServerContext, http: Request) -> RunningBatches:
    """Answer with the progress of the running batches of all keys."""
    if not server.is_operator(http):
        raise Forbidden(
            "the batches of all keys are shown to requests with a key, by a server with "
            "--allow-loading"
        )
    return RunningBatches(await server.list_batches() if server.list_batches else ())


async def show_usage(server: ServerContext, http: Request) -> UsageReport:
    """Answer with the usage of the request's key; an operator sees all keys."""
    if server.report_usage is None or not (owner := owner_of(http.scope)):
        return UsageReport([])
    return server.report_usage(None if server.is_operator(http) else owner)


async def show_metrics(server: ServerContext, _: Request) -> Response:
    """Answer with metrics in the text format of Prometheus."""
    body = await on_thread("metrics", partial(server.metrics().render, has_process=True))
    return Response(body, media_type="text/plain; version=0.0.4")


def show_root(server: ServerContext, http: Request) -> Response:
    """Answer browsers with a page, other clients with TGI's health."""
    return page.show_page(http) if page.wants_page(http) else root_health(server.control)


async def show_document(server: ServerContext, http: Request) -> Response:
    """Answer with the OpenAPI document, 304 if its ETag is known."""
    if server.describe is None:
        raise NoRoute("this server has no OpenAPI document")
    etag, body = await server.describe()
    headers = {"etag": etag, "cache-control": "no-cache"}
    if http.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


# --- rows --------------------------------------------------------------------------------------

_OBJECT: Schema = {"type": "object"}
_OBSERVED = to_object({"name": STRING, "version": {"type": "integer"}, "methods": _OBJECT})
_ALL_OBSERVED = to_object(
    {"servables": to_array(_OBSERVED), "operator": {"type": "boolean"}}, "operator"
)


PROTOCOL = HttpProtocol(
    "server",
    to_error,
    title="server",
    about="Health, metrics and pages.",
    errors={JSON: ServerError, TEXT: STRING},
)
_READINESS = {JSON: Readiness}
_UNHEALTHY = {"503": {JSON: to_object({"error": STRING, "error_type": STRING})}}
_HISTORY = to_object({"seconds": {"type": "number"}, "columns": to_array(STRING)})

_get = partial(HttpRoute, "GET", protocol=PROTOCOL)
_probe = partial(_get, is_open=True)
_ready = partial(_probe, handler=show_ready, answers=_READINESS, other_answers={"503": _READINESS})
_WHETHER = "Readiness of all servables"

ROUTES = (
    _probe(
        "/livez",
        lambda *_: PlainTextResponse("alive"),
        "Liveness of the server",
        {TEXT: STRING},
    ),
    _probe(
        "/health",
        show_health,
        _WHETHER,
        {TEXT: STRING},
        other_answers={"503": {TEXT: STRING}},
    ),
    _ready("/readyz", summary=f"{_WHETHER}, or of named servables", query=("servable",)),
    _ready("/readyz/{servable:path}", summary="Readiness of a servable"),
    _get(
        "/servables",
        show_servables,
        "Servables, their methods, and their load",
        {JSON: _ALL_OBSERVED},
    ),
    _get(
        "/servables/history",
        show_history,
        "Load of each servable in the last hour",
        {JSON: _HISTORY},
    ),
    _get(
        "/batches",
        show_batches,
        "Progress of the running batches of all keys, for the operator",
        {JSON: RunningBatches},
    ),
    _get(
        "/usage",
        show_usage,
        "Usage of models by this key, or by all keys for the operator",
        {JSON: UsageReport},
    ),
    _get("/metrics", show_metrics, "Metrics for Prometheus", {TEXT: STRING}),
    _get(
        "/",
        show_root,
        "A page for browsers; an empty answer or 503 for other clients",
        other_answers=_UNHEALTHY,
    ),
    _get("/page/{name:path}", lambda _, http: page.show_file(http), "A file of the pages"),
    _get(
        "/docs",
        lambda _, http: page.show(http, "docs/docs.html"),
        "This document as a web page",
        {HTML: STRING},
    ),
    _get("/openapi.json", show_document, "This document", {JSON: _OBJECT}),
)
