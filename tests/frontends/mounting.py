"""The routes of single protocols over a site of the test's own."""

from functools import partial

from starlette.routing import BaseRoute

from mindspore_serving.frontends import (
    anthropic,
    cohere,
    gemini,
    llamacpp,
    llm_serving,
    ollama,
    openai,
    tgi,
)
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.llm_serving.frames import Form
from mindspore_serving.frontends.routes import bind

anthropic_routes = partial(bind, anthropic.ROUTES)
cohere_routes = partial(bind, cohere.ROUTES)
gemini_routes = partial(bind, gemini.ROUTES)
llamacpp_routes = partial(bind, llamacpp.ROUTES)
ollama_routes = partial(bind, ollama.ROUTES)
openai_routes = partial(bind, openai.ROUTES)


def llm_serving_routes(state: AppState, form: Form = "r21") -> list[BaseRoute]:
    return bind(llm_serving.ROUTES, llm_serving.LlmServing(state, form))


def tgi_routes(
    state: AppState, limits: tgi.RequestLimits | None = None, recorder: tgi.Recorder | None = None
) -> list[BaseRoute]:
    return bind(tgi.ROUTES, tgi.TgiService(state, limits, recorder))
