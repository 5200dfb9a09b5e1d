"""Routes of all protocols, in the order in which they are matched, and the tree of their paths."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.routing import BaseRoute

from mindspore_serving.frontends import (
    anthropic,
    cohere,
    gemini,
    llamacpp,
    llm_serving,
    mcp,
    ollama,
    openai,
    server,
    tei,
    tgi,
)
from mindspore_serving.frontends.anthropic import batches as message_batches
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.llm_serving.frames import Form
from mindspore_serving.frontends.mindspore import routes as mindspore
from mindspore_serving.frontends.openai import batches
from mindspore_serving.frontends.openai.batches import OpenAILines
from mindspore_serving.frontends.openapi import DocumentOptions, OpenApiDocument
from mindspore_serving.frontends.paths import PathNode
from mindspore_serving.frontends.routes import HttpProtocol, HttpRoute, bind
from mindspore_serving.frontends.server import Describe
from mindspore_serving.frontends.state.batch import LineFormat
from mindspore_serving.frontends.v2 import mlflow, v1
from mindspore_serving.frontends.v2 import routes as v2_routes
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.metrics.exposition import Page

ROUTES: tuple[HttpRoute, ...] = (
    *mlflow.ROUTES,  # before TGI, which answers /invocations of language models
    *tei.ROUTES,  # before TGI, which has some of the same paths
    *cohere.ROUTES,
    *tgi.ROUTES,
    *v2_routes.ROUTES,
    *v1.ROUTES,
    *anthropic.ROUTES,  # before OpenAI: both have /v1/models
    *gemini.ROUTES,  # the same
    *openai.ROUTES,  # after TGI, whose /tokenize declines requests of OpenAI's form
    *ollama.ROUTES,
    *llamacpp.ROUTES,
    *llm_serving.ROUTES,
    *mcp.ROUTES,
    *server.ROUTES,
    *mindspore.ROUTES,
    mindspore.FALLBACK,
)
LINES: dict[str, LineFormat] = {
    batches.KIND: OpenAILines(),
    message_batches.KIND: message_batches.MessageLines(),
}
"""Lines of batches, by the kind of their records."""
PATHS = PathNode(mindspore.OTHER)
"""Tree of the paths of all routes."""
for _row in ROUTES:
    PATHS.add(_row)


@dataclass(frozen=True, slots=True)
class Mounted:
    """Routes of all protocols but the classic one, and functions for metrics and OpenAPI."""

    routes: tuple[BaseRoute, ...]
    add_metrics: Callable[[Page], None]
    describe: Describe


def mount(state: AppState, form: Form, v2: V2, document: DocumentOptions | None = None) -> Mounted:
    """Bind the routes of all protocols to their contexts.

    `form` is that of llm-serving's streams, `document` are the options of /openapi.json.
    """
    generating = tgi.TgiService(state)
    contexts = {
        **dict.fromkeys((tei.PROTOCOL, cohere.PROTOCOL, anthropic.PROTOCOL, mcp.PROTOCOL), state),
        **dict.fromkeys((openai.PROTOCOL, ollama.PROTOCOL, llamacpp.PROTOCOL), state),
        gemini.PROTOCOL: state,
        **dict.fromkeys((v2_routes.PROTOCOL, v1.PROTOCOL, mlflow.PROTOCOL), v2),
        tgi.PROTOCOL: generating,
        llm_serving.PROTOCOL: llm_serving.LlmServing(state, form),
    }

    def add_metrics(page: Page) -> None:
        engines = [row["engine"] for row in state.control.observe() if "engine" in row]
        if not engines:
            return
        gauges = {
            "queue_size": sum(engine.get("num_waiting", 0) for engine in engines),
            "batch_current_size": sum(engine.get("num_running", 0) for engine in engines),
        }
        generating.recorder.add_to(page, gauges)

    described = OpenApiDocument(v2, document or DocumentOptions(), ROUTES)
    return Mounted(tuple(bind_all(ROUTES, contexts)), add_metrics, described.render)


def bind_all(
    rows: Iterable[HttpRoute], contexts: Mapping[HttpProtocol, Any]
) -> Iterable[BaseRoute]:
    """Iterate over the routes of the protocols in `contexts`, bound to these, in order."""
    for row in rows:
        if row.protocol in contexts:
            yield from bind([row], contexts[row.protocol])
