"""ASGI application: the routes of all protocols, and access control before them."""

from collections.abc import Callable, Sequence
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from mindspore_serving.core.service import Control, Inference
from mindspore_serving.frontends import server
from mindspore_serving.frontends.gate import Gate
from mindspore_serving.frontends.http.unrouted import Unrouted, without_slash
from mindspore_serving.frontends.keys import Keys
from mindspore_serving.frontends.mindspore import routes as mindspore
from mindspore_serving.frontends.mindspore.rest import MsRest
from mindspore_serving.frontends.mindspore.routes import Classic
from mindspore_serving.frontends.origins import OriginPolicy
from mindspore_serving.frontends.protocols import PATHS, ROUTES, bind_all
from mindspore_serving.frontends.routes import to_app
from mindspore_serving.frontends.server import Describe, ListBatches, ReportUsage, ServerContext
from mindspore_serving.metrics.exposition import Page


def make_app(
    inference: Inference,
    control: Control,
    metrics: Callable[[], Page],
    *,
    keys: Keys | None = None,
    origins: OriginPolicy | None = None,
    **options: Any,
) -> ASGIApp:
    """Make the ASGI application of a server; `options` are those of `make_router`."""
    router = make_router(inference, control, metrics, **options)
    return guarded(router, keys or Keys(), origins)


def make_router(
    inference: Inference,
    control: Control,
    metrics: Callable[[], Page],
    *,
    rest: MsRest,
    routes: Sequence[BaseRoute] = (),
    allow_loading: bool = False,
    describe: Describe | None = None,
    list_batches: ListBatches | None = None,
    report_usage: ReportUsage | None = None,
) -> ASGIApp:
    """Make the application without access control, for requests of the server itself.

    `routes` of other protocols are matched first.  With `allow_loading`, clients with a key can
    load and unload models.  `describe` makes the OpenAPI document, `list_batches` the progress of
    the running batches, `report_usage` the usage of keys.
    """
    classic = Classic(inference, control, rest, PATHS)
    contexts = {
        server.PROTOCOL: ServerContext(
            control, metrics, allow_loading, describe, list_batches, report_usage
        ),
        mindspore.PROTOCOL: classic,
        mindspore.OTHER: classic,
    }
    all_routes = [*routes, *bind_all(ROUTES, contexts)]
    app = to_app(all_routes, Unrouted(all_routes))
    return without_slash(app)


def guarded(app: ASGIApp, keys: Keys, origins: OriginPolicy | None) -> ASGIApp:
    """Return `app` behind checks of keys and origins.

    Without `origins`, web pages of all sites can send requests.
    """
    gate = Gate(app, keys, origins) if keys or origins else app
    if origins is None or not origins.allow_origins:
        return gate
    return CORSMiddleware(
        gate,
        allow_origins=origins.allow_origins,
        allow_methods=["GET", "HEAD", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["*"],
    )
