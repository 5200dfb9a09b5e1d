"""The protocols of an HTTP server besides the classic one, and the path `/`, which they share."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from mindspore_serving.frontends import (
    anthropic,
    cohere,
    llm_serving,
    ollama,
    openai,
    openapi,
    page,
    tei,
    tgi,
)
from mindspore_serving.frontends.chat.endpoint import RouteIf
from mindspore_serving.frontends.health import still_loading
from mindspore_serving.frontends.llm_serving.frames import Form
from mindspore_serving.frontends.openapi import Visible
from mindspore_serving.frontends.site import Site
from mindspore_serving.frontends.v2 import routes as v2_routes
from mindspore_serving.frontends.v2 import v1
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.metrics.exposition import Page


@dataclass(frozen=True, slots=True)
class Mounted:
    """The routes of all protocols, of which the first that matches answers a request, and what adds
    their metrics to a page."""

    routes: tuple[BaseRoute, ...]
    add_metrics: Callable[[Page], None]


def mount(site: Site, form: Form, v2: V2, visible: Visible | None = None) -> Mounted:
    """`form` is the form of llm-serving's streams, `visible` what /openapi.json shows."""
    recorder = tgi.Recorder()

    async def root(request: Request) -> Response:
        """A page for browsers; for others TGI's health."""
        if page.wants_page(request):
            return page.show_page(request)
        return await tgi.root_health(site, request)

    def add_metrics(page: Page) -> None:
        engines = [row["engine"] for row in site.control.observe() if "engine" in row]
        if not engines:
            return
        gauges = {
            "queue_size": sum(engine.get("num_waiting", 0) for engine in engines),
            "batch_current_size": sum(engine.get("num_running", 0) for engine in engines),
        }
        recorder.add_to(page, gauges)

    def has_models(_: Scope) -> bool:
        control = site.control
        return control.has_language_models or still_loading(control) is not None

    reads_only = tei.generates_none(site)
    routes = (
        Route("/", root, methods=["GET"]),
        *(RouteIf(route, reads_only) for route in tei.shared_routes(site)),  # before TGI's
        *(RouteIf(route, has_models) for route in tei.routes(site)),
        *cohere.routes(site),  # behind TEI's /rerank, which declines what is not its own
        *(RouteIf(route, has_models) for route in tgi.routes(site, recorder=recorder)),
        *v2_routes.routes(v2, site.max_body),
        *v1.routes(v2, site.max_body),
        *anthropic.routes(site),  # before OpenAI's: both have /v1/models
        *openai.routes(site),  # behind TGI's /tokenize, which declines what is not its own
        *ollama.routes(site),
        *llm_serving.routes(site, form),
        *page.routes(site),
        *openapi.routes(v2, visible or Visible()),
    )
    return Mounted(routes, add_metrics)
